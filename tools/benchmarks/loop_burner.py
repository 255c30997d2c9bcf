"""Keeps a CPU and its caches as busy as a learner does: ``python -m onrig.tools.benchmarks.loop_burner`` until killed.

Matrix products of a learner's sizes in float32, small ones (a batch of 64 through 50 units) and large ones that go
past the caches, at the learner's niceness, on the CPUs that the caller leaves it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from onrig.runtime.control.realtime import die_with_parent

_NICE: Final = 10
_SMALL: Final = (64, 50)
_LARGE: Final = 1024


class Burner:
    """The process; a context that ends it."""

    def __init__(self, cpus: Iterable[int]) -> None:
        listed = ",".join(map(str, cpus))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, listed],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the benchmark, which ends it
        )

    def __enter__(self) -> Burner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def main(arguments: list[str]) -> None:
    """Multiply for ever."""
    die_with_parent()
    if arguments[0] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(cpu) for cpu in arguments[0].split(",")})
    os.nice(_NICE)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (_SMALL, (_SMALL[1], _SMALL[1])))
    a, b = (rng.standard_normal((_LARGE, _LARGE)).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    while True:
        np.matmul(a, b, out=out)
        for _ in range(1000):
            np.maximum(x @ w, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
