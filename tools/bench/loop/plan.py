"""Plan of ``onrig bench loop``: options, order of the slices, settings of each subject."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.run_config import RunConfig
from onrig.tools.bench.report import parser_of
from onrig.tools.terminal import VerbParser, picture_problem, unwritable

CONFIG: Final = "pendulum-hardware"
RATES_HZ: Final = (200.0, 500.0, 1000.0)
_SECONDS: Final = 60.0
_SLICE_S: Final = 30.0
_PARTS: Final = ("burner", "cyclictest", "learner", "log", "sentinel", "web")
_COMPARED: Final = ("learner", "log", "web")
"""What a rig can be run with and without."""
CYCLICTEST: Final = "cyclictest"
ONRIG: Final = "onrig"
_LEASE_S: Final = 0.04
"""Minimum lease, so that a stall of the machine does not end the episode."""

EVERYTHING: Final = (
    "exploration.near_envelope={from: 0.3, floor: 0.0}",
    "exploration.back_off={factor: 0.5, least: 0.1, clean_episodes: 5}",
    "exploration.quiet={every: 10, episodes: 1}",
    "exploration.budgets.episode={interventions: 1000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "exploration.budgets.hour={interventions: 100000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "exploration.budgets.session={interventions: 100000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "learner.updates_per_episode=null",
    "learner.updates_per_transition=1.0",
)
"""Maximum work per tick: budgets that count but never run out, and a learner that never idles."""


class Subject(NamedTuple):
    """Subject of a slice."""

    name: str
    settings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class Slice(NamedTuple):
    """A stretch of time given to one subject."""

    subject: Subject
    seconds: float


def parser(description: str | None) -> VerbParser:
    """Build the benchmark's argument parser."""
    p = parser_of("onrig bench loop", description)
    p.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help=f"configuration (default: {CONFIG} with every option that a tick can run)",
    )
    p.add_argument(
        "--rate",
        dest="rates",
        action="append",
        type=float,
        metavar="HZ",
        help=f"repeat for several (default: {', '.join(f'{r:g}' for r in RATES_HZ)})",
    )
    p.add_argument(
        "--seconds",
        type=float,
        default=_SECONDS,
        metavar="S",
        help=f"seconds per subject and rate (default: {_SECONDS:g})",
    )
    p.add_argument(
        "--slice", type=float, default=_SLICE_S, metavar="S", help=f"seconds per slice (default: {_SLICE_S:g})"
    )
    p.add_overrides()
    p.add_argument("--without", default="", metavar="PART,...", help=f"leave out parts everywhere: {', '.join(_PARTS)}")
    p.add_argument(
        "--compare",
        action="append",
        default=[],
        choices=_COMPARED,
        help="compare slices with and without it; repeatable",
    )
    p.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="a.b=c",
        help="compare with slices at another value; repeatable",
    )
    p.add_argument(
        "--swaps",
        type=float,
        nargs="?",
        const=1.0,
        metavar="S",
        help="instead of a learner, a fresh policy every S seconds (default: 1)",
    )
    p.add_argument("--device", metavar="PORT", help="a device on a serial port instead of the twin")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw the histograms (PNG, PDF or SVG)")
    p.add_argument("--keep", type=Path, metavar="DIR", help="keep the run folders in DIR")
    return p


def problem_of(args: argparse.Namespace) -> str | None:
    """Problem with the arguments, or None."""
    for option in ("json", "plot"):
        path: Path | None = getattr(args, option)
        if missing := unwritable(option, path):
            return missing
    if problem := picture_problem("plot", args.plot):
        return problem
    if args.plot is not None and find_spec("matplotlib") is None:
        return "--plot: matplotlib is not installed (pip install 'onrig[viz]')"
    for part in args.without.split(","):
        if part and part not in _PARTS:
            return f"--without: unknown part '{part}'; choose from {', '.join(_PARTS)}"
    if not 1 <= args.seconds < math.inf or not 1 <= args.slice < math.inf:
        return "--seconds, --slice: expected at least 1 s"
    if args.swaps is not None and not 0.05 <= args.swaps < math.inf:
        return f"--swaps: expected at least 0.05 s, got {args.swaps:g}"
    if any(not 1 <= rate <= 10_000 for rate in args.rates or ()):
        return "--rate: expected 1 to 10000 Hz"
    return None


def subjects_of(args: argparse.Namespace, without: set[str], settings: tuple[str, ...]) -> list[Subject]:
    """The requested rig, then each of its variants."""
    flags = ["--device", args.device] if args.device is not None else []
    base = _variant(ONRIG, settings, tuple(flags), without)
    others = [_variant(f"without {part}", settings, tuple(flags), without | {part}) for part in args.compare]
    others += [base._replace(name=change, settings=(*base.settings, change)) for change in args.against]
    return [base, *others]


def _variant(name: str, settings: tuple[str, ...], flags: tuple[str, ...], without: set[str]) -> Subject:
    if "learner" in without:
        settings = (*settings, "local_learner=false")
    if "log" in without:
        settings = (*settings, "log.mcap=false")
    if "web" not in without:
        flags = (*flags, "--web")
    return Subject(name, settings, flags)


def schedule(subjects: Sequence[Subject], seconds: float, slice_s: float) -> list[Slice]:
    """Give each subject ``seconds`` in equal slices of about ``slice_s``, in turns and every other time in reverse.

    Disturbances then affect all subjects alike, and slow drift cancels.
    """
    rounds = max(1, round(seconds / slice_s))
    slices: list[Slice] = []
    for n in range(rounds):
        order = subjects if n % 2 == 0 else tuple(reversed(subjects))
        slices += [Slice(subject, seconds / rounds) for subject in order]
    return slices


def at_rate(config: RunConfig, rate_hz: float, slice_s: float) -> tuple[str, ...]:
    """Settings by which a configuration runs in real time at a rate, for longer than a slice."""
    settings = ["device.pace=realtime", f"rate_hz={rate_hz:g}", "evaluate_every=0"]
    settings.append(f"episodes={50 + round(4 * slice_s / config.task.episode_s)}")
    lease_s = max(_LEASE_S, config.rig.lease_periods / config.rate_hz)
    settings.append(f"rig.lease_periods={min(255, max(2, round(lease_s * rate_hz)))}")
    period_us = round(1e6 / rate_hz)
    predicted = config.limits.predicted
    if predicted is not None and predicted.late_us > period_us:
        settings.append(f"limits.predicted.late_us={period_us}")
    return tuple(settings)
