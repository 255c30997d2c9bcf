import msgspec
import numpy as np
import pytest

from onrig.runtime.policy.contract import Signal
from onrig.runtime.policy.probes import probe_states
from tests.runtime.policy.models import CONTRACT


def test_has_the_centre_and_all_corners_of_both_boxes() -> None:
    states = probe_states(CONTRACT, 64, seed=0)
    assert states.dtype == np.float32
    rows = {tuple(map(float, row)) for row in states}
    assert (0.0, 0.0) in rows
    for widen in (1.0, 2.0):
        assert {(s * widen * 3.0, t * widen * 20.0) for s in (-1, 1) for t in (-1, 1)} <= rows


@pytest.mark.parametrize("n", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("width", [1, 2, 17, 40])
def test_has_as_many_rows_as_asked_within_the_widened_range(n: int, width: int) -> None:
    signals = tuple(Signal(f"x{i}", "m", 1.0 + i, 3.0 + i) for i in range(width))
    contract = msgspec.structs.replace(CONTRACT, observations=signals)
    states = probe_states(contract, n, seed=1)
    assert states.shape == (n, width)
    centre = 2.0 + np.arange(width)
    assert (np.abs(states - centre) <= 2.0 + 1e-5).all()
    if n >= 300:
        assert (np.abs(states - centre) > 1.0).any(axis=0).all()


def test_is_the_same_for_the_same_seed_alone() -> None:
    np.testing.assert_array_equal(probe_states(CONTRACT, 50, 1), probe_states(CONTRACT, 50, 1))
    assert not np.array_equal(probe_states(CONTRACT, 50, 1), probe_states(CONTRACT, 50, 2))
