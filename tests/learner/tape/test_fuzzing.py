"""Random lists, run by the C library under the sanitizers: no list that the validator accepts may do any harm."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from onrig.hw.native import build, variant
from onrig.learner.tape.checks import faults
from onrig.learner.tape.native_executor import transposed_elements
from onrig.learner.tape.operations import RECORD
from tests.learner.tape.lists import OperationLists, draw_lists, is_accepted, is_safe, mutate

N_VALID, N_INVALID = 10_000_000, 1_000_000
"""Numbers of lists in the study."""
BATCH: Final = 10_000


def _driver(folder: Path, variant: str, *extra_flags: str) -> Path:
    """The program that runs lists from its input, with the kernels of a variant, sanitized."""
    machine = next(machine for machine, variants in build.VARIANTS.items() if variant in variants)
    command, binary = build.compiler(), folder / variant
    flags = [*build.FLAGS, *build.SANITIZER_FLAGS, *extra_flags, *build.VARIANTS[machine][variant]]
    (folder / f"{variant}.objects").mkdir()
    tape = [source for source in build.SOURCES if source.file == "tape.c"]
    objects = build.compile_sources(command, flags, folder / f"{variant}.objects", tape)
    source = Path(__file__).with_name("driver.c")
    subprocess.run([*command, *flags, str(source), *objects, "-o", str(binary), "-lm"], check=True)
    return binary


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if variant() == "none":
        pytest.skip("the C library is not built")
    folder = tmp_path_factory.mktemp("driver")
    try:
        return _driver(folder, variant(), "-fno-sanitize=null,object-size,alignment")  # halves the build time
    except (build.BuildError, subprocess.CalledProcessError):
        if os.environ.get("CI") or shutil.which("cc"):
            raise
        pytest.skip("no compiler")


def _packed(lists: OperationLists, dtype: type[np.floating], seed: int) -> bytes:
    """A batch as read by the driver."""
    count, length = lists.operations.shape
    packed_lists = np.zeros(count, np.dtype([("sizes", "<i4", 3), ("spare", "<i4"), ("operations", RECORD, length)]))
    packed_lists["sizes"], packed_lists["operations"] = lists.sizes, lists.operations
    packed_lists["spare"] = transposed_elements(lists.operations).max(axis=1)
    return np.array([count, length, dtype is np.float64, seed], np.uint32).tobytes() + packed_lists.tobytes()


def _run(driver: Path, batches: Iterable[OperationLists], dtype: type[np.floating]) -> int:
    """Run all lists and return their number."""
    count = 0
    with subprocess.Popen([driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        try:
            for seed, lists in enumerate(batches):
                process.stdin.write(_packed(lists, dtype, seed))
                count += len(lists.sizes)
        except BrokenPipeError:
            pass
        out, error_output = process.communicate()
    assert (error_output.decode(), process.returncode, out.decode().strip()) == ("", 0, str(count))
    return count


DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@DTYPES
def test_valid_lists_do_no_harm_and_trials_are_independent(driver: Path, dtype: type[np.floating]) -> None:
    batches = [draw_lists(np.random.default_rng(length), 1000, length) for length in (2, 3, 6)]
    assert all(is_accepted(lists).all() for lists in batches)
    assert _run(driver, batches, dtype) == 3000


def _keep_valid(mutants: OperationLists, compare_every: int) -> OperationLists:
    """The valid ones; a sample of them is compared with the conditions for an operation to be safe."""
    is_valid = is_accepted(mutants)
    valid_lists = OperationLists(mutants.operations[is_valid], mutants.sizes[is_valid])
    for operations, sizes in zip(
        valid_lists.operations[::compare_every], valid_lists.sizes[::compare_every], strict=True
    ):
        assert all(is_safe(op, sizes) for op in operations)
    return valid_lists


def test_mutants_are_refused_or_do_no_harm(driver: Path) -> None:
    rng = np.random.default_rng(0)
    valid_lists = _keep_valid(mutate(rng, draw_lists(rng, 4000, 3)), compare_every=1)
    assert 1200 < _run(driver, [valid_lists], np.float32) < 2800


@pytest.mark.study
@DTYPES
def test_ten_million_valid_lists(tmp_path: Path, dtype: type[np.floating]) -> None:
    variants_supported = list(build.VARIANTS["aarch64" if variant() == "aarch64" else "x86_64"])
    variants = variants_supported[: variants_supported.index(variant()) + 1]
    batch_count = N_VALID // 2 // len(variants) // BATCH + 1

    def batches(number: int) -> Iterator[OperationLists]:
        for k in range(batch_count):
            lists = draw_lists(np.random.default_rng((number, k, dtype is np.float64)), BATCH, 2 + k % 3)
            # The scratch that they read has been written: their first operation fills it.
            assert not faults(lists.operations.reshape(-1), lists.sizes.repeat(2 + k % 3, axis=0)).any()
            yield lists

    drivers = [_driver(tmp_path, variant_name) for variant_name in variants]
    for number, (variant_name, driver) in enumerate(zip(variants, drivers, strict=True)):
        print(f"{variant_name}, {np.dtype(dtype)}: {_run(driver, batches(number), dtype)} lists")


@pytest.mark.study
def test_a_million_invalid_lists(tmp_path: Path) -> None:
    n_refused = 0

    def batches() -> Iterator[OperationLists]:
        nonlocal n_refused
        for seed in count():
            rng = np.random.default_rng(seed)
            mutants = mutate(rng, draw_lists(rng, BATCH, 3))
            valid_lists = _keep_valid(mutants, compare_every=20)
            n_refused += len(mutants.sizes) - len(valid_lists.sizes)
            yield valid_lists
            if n_refused >= N_INVALID:
                return

    n_executed = _run(_driver(tmp_path, variant()), batches(), np.float32)
    print(f"{n_refused} refused, {n_executed} of the mutants valid and run")
