"""Measure the evaluation and build times of policies of several sizes, compared with numpy and torch.

Measures either random networks of several sizes for the rig's signals (needs onnx), with numpy and torch for comparison
if they are installed, or policies from files. Evaluations are timed back to back, and also with cold caches, as in a
loop that ticks every few milliseconds.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from onrig.tools.options import Config, File, Overrides, Trust, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the benchmark."""

    config: Config = "pendulum"
    """Path or shipped name of a run."""
    _: KW_ONLY
    json: File | None = None
    """Also write the results to FILE, as JSON."""
    quick: bool = False
    """Run a fifth of the rounds, each of them shorter."""
    file: Annotated[tuple[Path, ...], Value("FILE", complete="file")] = ()
    """A policy (ONNX); may be repeated."""
    hidden: Annotated[tuple[str, ...], Value("N,N")] = ()
    """Number of units in each hidden layer; may be repeated (default: 50,20 64,64 128,128 400,300)."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Measure, print the table and the checks, and return the exit code."""
    from onrig.tools.bench.policy import benchmark
    from onrig.tools.terminal import warn_missing_library

    warn_missing_library("bench")
    return benchmark(options.config, options.set, options.file, options.hidden, options.json, quick=options.quick)
