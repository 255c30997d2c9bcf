from __future__ import annotations

import numpy as np
import pytest

from onrig.runtime.memory.order.uniforms import ARRAY_BLOCK_SIZE, BLOCK_SIZE, UniformArrays, Uniforms


def test_numbers_equal_those_of_the_generator() -> None:
    uniforms = Uniforms(np.random.default_rng(3))
    assert [uniforms.next() for _ in range(2 * BLOCK_SIZE + 5)] == np.random.default_rng(3).random(
        2 * BLOCK_SIZE + 5
    ).tolist()


def test_arrays_equal_those_of_the_generator_across_blocks() -> None:
    uniforms = UniformArrays(np.random.default_rng(3))
    sizes = [16, ARRAY_BLOCK_SIZE - 20, 7, 3 * ARRAY_BLOCK_SIZE, 1]
    values = np.concatenate([uniforms.take(n).copy() for n in sizes])
    assert np.array_equal(values, np.random.default_rng(3).random(sum(sizes)))


@pytest.mark.parametrize("n_used", [0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_a_restored_stream_continues_where_it_was(n_used: int) -> None:
    original, other = Uniforms(np.random.default_rng(1)), Uniforms(np.random.default_rng(2))
    for _ in range(n_used):
        original.next()
    other.next()
    other.restore(original.state())
    assert [original.next() for _ in range(1000)] == [other.next() for _ in range(1000)]


@pytest.mark.parametrize("n_used", [0, 1, ARRAY_BLOCK_SIZE, ARRAY_BLOCK_SIZE + 1])
def test_a_restored_array_stream_continues_where_it_was(n_used: int) -> None:
    original, other = UniformArrays(np.random.default_rng(1)), UniformArrays(np.random.default_rng(2))
    original.take(n_used)
    other.restore(original.state())
    assert np.array_equal(original.take(9000), other.take(9000))


def test_another_bit_generator_is_refused() -> None:
    for kind in (Uniforms, UniformArrays):
        with pytest.raises(ValueError, match="runs on Philox"):
            kind(np.random.Generator(np.random.Philox(1)))
