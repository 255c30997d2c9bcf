"""Time of policies of several sizes, in a tick and to build, next to numpy and torch.

Measures random networks of the rig's width in several sizes (needs onnx), next to numpy and torch if installed, or
policies from files. Runs are timed back to back, and again with cold caches as in a tick every few milliseconds.
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
    """Also write the figures to FILE."""
    quick: bool = False
    """A fifth of the rounds, each shorter."""
    file: Annotated[tuple[Path, ...], Value("FILE", complete="file")] = ()
    """A policy (ONNX); may be repeated."""
    hidden: Annotated[tuple[str, ...], Value("N,N")] = ()
    """Units of hidden layers; may be repeated (default: 50,20 64,64 128,128 400,300)."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Measure, print table and checks; returns the exit code."""
    from onrig.tools.bench.policy import benchmark
    from onrig.tools.terminal import warn_missing_library

    warn_missing_library("bench")
    return benchmark(options.config, options.set, options.file, options.hidden, options.json, quick=options.quick)
