"""Plan of the loop benchmark: options, slice order, and settings for each subject."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import plant_delay_s_of
from onrig.tools.terminal import file_problem, plot_problem

CONFIG: Final = "pendulum-hardware"
RATES_HZ: Final = (200.0, 500.0, 1000.0)
_EXCLUDABLE_PARTS: Final = ("burner", "cyclictest", "learner", "log", "sentinel", "web")
CYCLICTEST: Final = "cyclictest"
ONRIG: Final = "onrig"
_LEASE_S: Final = 0.04
"""Minimum lease; with a shorter one, a machine stall could end the episode."""

MAX_LOAD_SETTINGS: Final = (
    "exploration.near_envelope={from: 0.3, floor: 0.0}",
    "exploration.back_off={factor: 0.5, least: 0.1, clean_episodes: 5}",
    "exploration.quiet={every: 10, episodes: 1}",
    "exploration.budgets.episode={interventions: 1000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "exploration.budgets.hour={interventions: 100000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "exploration.budgets.session={interventions: 100000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "learner.updates_per_episode=null",
    "learner.updates_per_transition=1.0",
)
"""Settings for the maximum work per tick: exploration budgets that are counted but never exhausted, and a learner that
is never idle."""


class Subject(NamedTuple):
    """Variant of the rig, or cyclictest, with its settings and flags."""

    name: str
    settings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class Slice(NamedTuple):
    """Continuous measurement of one subject."""

    subject: Subject
    seconds: float


class Request(NamedTuple):
    """Options of ``onrig bench loop``."""

    config: str | None = None
    json: Path | None = None
    rate: Sequence[float] = ()
    """Rates in Hz; ``RATES_HZ`` if empty."""
    seconds: float = 60.0
    slice: float = 30.0
    """Approximate duration of a slice (s)."""
    set: Sequence[str] = ()
    trust: bool = False
    without: str = ""
    compare: Sequence[str] = ()
    against: Sequence[str] = ()
    swaps: float | None = None
    """Interval between policy swaps (s); None if policies are not swapped."""
    device: str | None = None
    plot: Path | None = None
    keep: Path | None = None


def find_problem(args: Request) -> str | None:
    """Return what is wrong with the options, or None."""
    for option, path in (("json", args.json), ("plot", args.plot)):
        if problem := file_problem(option, path):
            return problem
    if problem := plot_problem("plot", args.plot):
        return problem
    if args.plot is not None and find_spec("matplotlib") is None:
        return "--plot: matplotlib is not installed (pip install 'onrig[viz]')"
    for part in args.without.split(","):
        if part and part not in _EXCLUDABLE_PARTS:
            return f"--without: unknown part '{part}'; choose from {', '.join(_EXCLUDABLE_PARTS)}"
    if not 1 <= args.seconds < math.inf or not 1 <= args.slice < math.inf:
        return "--seconds, --slice: expected at least 1 s each"
    if args.swaps is not None and not 0.05 <= args.swaps < math.inf:
        return f"--swaps: expected at least 0.05 s, got {args.swaps:g}"
    if any(not 1 <= rate <= 10_000 for rate in args.rate):
        return "--rate: expected 1 to 10000 Hz"
    return None


def list_subjects(args: Request, excluded_parts: set[str], settings: tuple[str, ...]) -> list[Subject]:
    """List the requested rig and its variants."""
    flags = ["--device", args.device] if args.device is not None else []
    base = _variant(ONRIG, settings, tuple(flags), excluded_parts)
    variants = [_variant(f"without {part}", settings, tuple(flags), excluded_parts | {part}) for part in args.compare]
    variants += [base._replace(name=change, settings=(*base.settings, change)) for change in args.against]
    return [base, *variants]


def _variant(name: str, settings: tuple[str, ...], flags: tuple[str, ...], excluded_parts: set[str]) -> Subject:
    if "learner" in excluded_parts:
        settings = (*settings, "local_learner=false")
    if "log" in excluded_parts:
        settings = (*settings, "log.mcap=false")
    if "web" not in excluded_parts:
        flags = (*flags, "--web")
    return Subject(name, settings, flags)


def schedule(subjects: Sequence[Subject], seconds: float, slice_s: float) -> list[Slice]:
    """Divide ``seconds`` per subject into equal slices of about ``slice_s``, in alternating order.

    Disturbances then affect all subjects equally, and slow drift cancels.
    """
    rounds = max(1, round(seconds / slice_s))
    slices: list[Slice] = []
    for n in range(rounds):
        order = subjects if n % 2 == 0 else tuple(reversed(subjects))
        slices += [Slice(subject, seconds / rounds) for subject in order]
    return slices


def settings_at_rate(config: RunConfig, rate_hz: float, slice_s: float) -> tuple[str, ...]:
    """Return the settings for a real-time run at ``rate_hz`` that outlasts a slice."""
    settings = ["device.pace=realtime", f"rate_hz={rate_hz:g}", "evaluate_every=0"]
    settings.append(f"episodes={50 + round(4 * slice_s / config.task.episode_s)}")
    lease_s = max(_LEASE_S, config.rig.lease_periods / config.rate_hz)
    settings.append(f"rig.lease_periods={min(255, max(2, round(lease_s * rate_hz)))}")
    period_us = round(1e6 / rate_hz)
    predicted_box = config.limits.predicted
    if predicted_box is not None:
        delay_us = round(1e6 * plant_delay_s_of(predicted_box))
        if delay_us > period_us:
            settings.append(f"limits.predicted.plant_delay_us={period_us}")
        if predicted_box.late_us > period_us + min(delay_us, period_us):
            settings.append(f"limits.predicted.late_us={period_us + min(delay_us, period_us)}")
    return tuple(settings)
