"""Tables that explain the section ``exploration``: sampled schedule, gates, budgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from onrig.runtime.explore.budgets import QUANTITIES, SPANS
from onrig.runtime.explore.schedule import (
    BackOffState,
    amplitudes,
    back_off_factor,
    back_off_once,
    noisy_episodes,
    schedules,
)
from onrig.runtime.explore.settings import Budgets, EpsilonGreedy, OwnNoise, ScheduledNoise
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.tools.terminal import Table

_POINT_LABELS: Final = {"episodes": "episode {:g}", "steps": "step {:g}", "seconds": "{:g} s"}
_QUOTA_LABELS: Final = {
    "interventions": "interventions (ticks)",
    "trips": "trips",
    "energy_s": "energy (s of full effort)",
    "wear_strokes": "wear (full strokes)",
    "driven_s": "time under command (s)",
}
_REACTIONS: Final = {
    "episode": "the episode ends",
    "hour": "pause until the budget allows",
    "session": "pause until resumed by an operator",
}


def exploration_tables(config: RunConfig) -> Iterator[Table]:
    """Yield the tables of the schedule and noise process, and of any gates and budgets."""
    exploration = config.exploration
    if not isinstance(exploration, ScheduledNoise):
        yield Table("exploration", (), ((exploration.title, exploration.describe()),))
    else:
        yield _schedule(config, exploration)
        yield from _gates(exploration)
    if exploration.budgets != Budgets():
        yield _budgets(config, exploration.budgets)


def schedule_range(config: RunConfig, exploration: ScheduledNoise) -> tuple[float, float]:
    """Return the first and last values that the schedule's variable takes during the run."""
    # Schedules over steps or seconds do not advance in quiet and evaluation episodes, which have no noise.
    n_noisy = noisy_episodes(exploration.quiet, config.episodes)
    steps = n_noisy * episode_steps(config.task, config.rate_hz)
    return {
        "episodes": (1.0, float(config.episodes)),
        "steps": (0.0, float(steps)),
        "seconds": (0.0, steps * config.period_us * 1e-6),
    }[exploration.over]


def sample_points(config: RunConfig, exploration: ScheduledNoise) -> list[float]:
    """Return the sampling points of the schedule: both ends of the run, its quarters, and the breakpoints of the
    schedule.
    """
    first_x, last_x = schedule_range(config, exploration)
    all_schedules = schedules(exploration.amplitude, [a.name for a in config.rig.actuators])
    breakpoints = {x for points in all_schedules for x, _ in points if first_x <= x <= last_x}
    quarters = {float(int(last_x * q / 4)) for q in (1, 2, 3)}
    return sorted({first_x, last_x, *breakpoints, *(q for q in quarters if q > first_x)})


def _schedule(config: RunConfig, exploration: ScheduledNoise) -> Table:
    names = [a.name for a in config.rig.actuators]
    rows: list[tuple[str, ...]] = []
    for x in sample_points(config, exploration):
        values = amplitudes(exploration, names, x)
        distinct_texts = dict.fromkeys(f"{v:.3g}" for v in values)
        text = ", ".join(f"{v:.3g}" for v in values) if len(distinct_texts) > 1 else next(iter(distinct_texts))
        match exploration:
            case OwnNoise():
                maximum_text = "of the policy's own noise"
            case EpsilonGreedy():
                maximum_text = "of the steps use a random level"
            case _:
                maximum_text = _format_amplitudes(config, values)
        rows.append((_POINT_LABELS[exploration.over].format(x), text, maximum_text))
    rows.append(("process", "", exploration.describe()))
    quiet = exploration.quiet
    if quiet is not None:
        rows.append(("quiet", "", f"the last {quiet.episodes} of every {quiet.every} training episodes have no noise"))
        if noisy_episodes(quiet, config.episodes) == config.episodes:
            rows.append(("", "", f"none of the {config.episodes} episodes of this run is quiet"))
    rows += [("advance", "", line) for line in _advance_lines(config, exploration)]
    return Table("exploration", ("amplitude", "maximum, in the actuators' units"), tuple(rows))


def _advance_lines(config: RunConfig, exploration: ScheduledNoise) -> Iterator[str]:
    """Yield notes on how the schedule advances and where it ends."""
    _, last_x = schedule_range(config, exploration)
    if exploration.over != "episodes":
        constant_kinds = "quiet and evaluation" if exploration.quiet is not None else "evaluation"
        yield f"only in noisy training episodes; constant in {constant_kinds} episodes"
    names = [a.name for a in config.rig.actuators]
    end = max((points[-1][0] for points in schedules(exploration.amplitude, names)), default=last_x)
    if end > last_x:
        label = _POINT_LABELS[exploration.over]
        yield f"the schedule ends at {label.format(end)}, but this run ends at {label.format(last_x)} or earlier"


def _format_amplitudes(config: RunConfig, values: tuple[float, ...]) -> str:
    groups: dict[str, list[str]] = {}
    for a, amplitude in zip(config.rig.actuators, values, strict=True):
        groups.setdefault(f"{amplitude * a.half_range:.3g} {a.unit}", []).append(a.name)
    return "; ".join(f"{maximum} ({', '.join(names)})" for maximum, names in groups.items())


def _gates(exploration: ScheduledNoise) -> Iterator[Table]:
    near_envelope, back_off = exploration.near_envelope, exploration.back_off
    rows: list[tuple[str, ...]] = []
    if near_envelope is not None:
        rows.append(
            ("near envelope", f"1 .. {near_envelope.floor:g}", f"from margin {near_envelope.start:g} down to 0, linear")
        )
    if back_off is not None:
        steps: list[str] = []
        state = BackOffState()
        while (next_state := back_off_once(back_off, state)).level > state.level and len(steps) < 8:
            state = next_state
            steps.append(f"{back_off_factor(back_off, state):.3g}")
        rows.append(("back-off", ", ".join(steps), "after the first trip, the second, ..."))
        rows.append(("", "", f"one step back after {back_off.clean_episodes} noisy episodes without a trip"))
    if rows:
        yield Table("gate", ("amplitude times", "when"), tuple(rows))


def _budgets(config: RunConfig, budgets: Budgets) -> Table:
    m, steps = len(config.rig.actuators), episode_steps(config.task, config.rate_hz)
    driven_s = steps * config.period_us * 1e-6
    maxima = {"energy_s": m * driven_s, "wear_strokes": float(m * steps), "driven_s": driven_s}
    rows: list[tuple[str, ...]] = []
    for name in QUANTITIES:
        limits = [msgspec.structs.asdict(getattr(budgets, span))[name] for span in SPANS]
        if any(limit is not None for limit in limits):
            cells = ["-" if limit is None else f"{limit:.12g}" for limit in limits]
            rows.append((_QUOTA_LABELS[name], *cells, f"{maxima.get(name, steps):g}"))
    t = budgets.temperature
    if t is not None:
        unit = next(s.unit for s in config.rig.sensors if s.name == t.sensor)
        limit = f"{t.warn:g} .. {t.limit:g} {unit}"
        rows.append((f"temperature '{t.sensor}'", limit, limit, limit, f"at the limit: pause for {t.cool_s:g} s"))
    rows.append(("amplitude falls", *([f"from {100 * budgets.warn:g} %"] * len(SPANS)), ""))
    rows.append(("once spent", *(_REACTIONS[span] for span in SPANS), ""))
    return Table("budget", ("episode", "any hour", "session", "maximum per episode"), tuple(rows))
