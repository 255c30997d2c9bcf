"""Results of a soak and of an attack: text for a terminal, tables, report, and the plot of a soak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from onrig.tools.bench.report import Check, Report, check_at_most, describe_machine
from onrig.tools.reports.sheet import markdown_table
from onrig.tools.terminal import align
from tests.lab.attacks.campaign import MAX_GROWTH_MB, Verdict
from tests.lab.endurance.schedule import NATURES, Place
from tests.lab.rig.balance import (
    FLAT_MB_PER_MIN,
    MIN_SLOPE_TIME_S,
    WARM_UP_S,
    Gauges,
    Ledger,
    Trend,
    by_kind,
    causes,
    failed,
    trend,
)

Table = list[tuple[str, ...]]
"""Rows of cells, header first."""
_COLOURS: Final = {Place.SERIAL: "tab:red", Place.NETWORK: "tab:blue", Place.PROCESS: "tab:purple"}
_ATTACK_HEAD: Final = ("part", "attacks", "findings", "outcome", "memory, last tenth minus first", "took")
_MEMORY_HEAD: Final = ("MB first", "MB last", "MB peak", "MB/min")
_MAX_FINDINGS_SHOWN: Final = 20


# -- soak ------------------------------------------------------------------------------------------------------------


def totals(ledger: Ledger) -> list[tuple[str, str]]:
    """Return the totals of the soak, as (name, number)."""
    lifetimes = ledger.lifetimes
    missed: Counter[str] = sum((life.missed for life in lifetimes), Counter())
    batches = [life.error_batches for life in lifetimes if life.reported.error_batches is not None]
    by_cause = ", ".join(f"{cause} {missed[cause]}" for cause in causes())
    return [
        ("runs (of them resumed)", f"{len(lifetimes)} ({sum(life.resumed for life in lifetimes)})"),
        ("learners started", str(ledger.learner_starts)),
        ("records of ticks", str(sum(life.written for life in lifetimes))),
        ("ticks missed", f"{sum(missed.values())} ({by_cause})"),
        ("records lost by kills", str(sum(max(life.lost, 0) for life in lifetimes))),
        ("experiences produced", str(sum(life.produced for life in lifetimes))),
        ("experiences kept", str(sum(life.kept for life in lifetimes))),
        ("writes mirrored, snapshots included", str(ledger.mirrored)),
        ("mirror comparisons", f"{ledger.compared}, of the whole memory {ledger.compared_complete}"),
        ("mirror mismatches", str(ledger.mismatches)),
        ("policies offered", str(sum(life.admitted + life.refused for life in lifetimes))),
        ("policies admitted", str(sum(life.admitted for life in lifetimes))),
        ("policies refused", str(sum(life.refused for life in lifetimes))),
        ("policies rolled back", str(sum(life.rolled_back for life in lifetimes))),
        ("TD-error batches taken", str(sum(batches)) if batches else "not reported by the rig"),
        ("faults", f"{len(ledger.faults)} of {ledger.planned}"),
    ]


def fault_table(ledger: Ledger) -> Table:
    """Return one row for each kind of fault."""
    rows: Table = [("fault", "times", "over", "ended the run", "median", "longest", "named")]
    for kind, group in by_kind(ledger.faults).items():
        times = [h.recovered_s for h in group if h.recovered_s is not None]
        reported = Counter(name for h in group for name in h.names)
        named = sum(bool(h.names) for h in group)
        names = (
            ", ".join(f"{name} {n}" for name, n in reported.most_common()) if NATURES[kind].names else "nothing to name"
        )
        over, ended = str(len(times)), str(sum(h.ended_run for h in group))
        spans = (f"{median(times):.1f} s", f"{max(times):.1f} s") if times else ("", "")
        rows.append((kind.value, str(len(group)), over, ended, *spans, f"{named}: {names}" if reported else names))
    return rows


def process_table(gauges: Gauges) -> Table:
    """Return one row for each role."""
    rows: Table = [("process", "started", "longest", *_MEMORY_HEAD, "descriptors", "per min")]
    for role in gauges.roles:
        series = gauges.of(role)
        longest = max(series, key=lambda s: s.times_s[-1] - s.times_s[0])
        memory, descriptors = gauges.memory(role), gauges.open_descriptors(role)
        rows.append(
            (
                role,
                str(len(series)),
                f"{longest.times_s[-1] - longest.times_s[0]:.0f} s",
                f"{longest.private_mb[0]:.1f}",
                f"{longest.private_mb[-1]:.1f}",
                f"{max(max(s.private_mb) for s in series):.1f}",
                "too short" if memory is None else f"{memory.per_minute:+.3f}",
                f"{longest.descriptors[-1]:.0f}",
                "" if descriptors is None else f"{descriptors.per_minute:+.2f}",
            )
        )
    return rows


def soak_text(ledger: Ledger, gauges: Gauges, found: Sequence[Check]) -> str:
    """Return the text of a soak's results."""
    width = max(len(what) for what, _ in totals(ledger))
    note = (
        "MB: private memory; slopes: Theil-Sen over all processes of a role; "
        f"flat is at most {FLAT_MB_PER_MIN:g} MB/min, judged where one lived for {MIN_SLOPE_TIME_S:g} s"
    )
    verdict = [f"NOT balanced: {c.name}: {c.value:g}, bound {c.bound:g}" for c in failed(found)]
    verdict += [f"  {line}" for line in (*ledger.unexpected_ends, *ledger.unreported)]
    parts = [
        "\n".join(f"{what:<{width}}  {figure}" for what, figure in totals(ledger)),
        align(fault_table(ledger)),
        f"{align(process_table(gauges))}\n{note}",
        "\n".join(verdict) if verdict else f"the ledger balances: {len(found)} checks hold",
    ]
    return "\n\n".join(parts)


class Measured(msgspec.Struct, frozen=True):
    """Memory and descriptors of one process over time, and the slope of its memory."""

    role: str
    pid: int
    t_s: list[float]
    private_mb: list[float]
    descriptors: list[float]
    trend: Trend | None


class SoakReport(Report, frozen=True):
    """Common benchmark report, with the ledger and all time series."""

    plan: dict[str, float]
    totals: dict[str, str]
    ledger: Ledger
    processes: list[Measured]
    balances: bool


def soak_report(plan: dict[str, float], ledger: Ledger, gauges: Gauges, found: list[Check]) -> SoakReport:
    """Return the complete report of a soak."""
    series = [
        Measured(s.role, s.pid, s.times_s, s.private_mb, s.descriptors, trend([(s.times_s, s.private_mb)], WARM_UP_S))
        for s in gauges.series.values()
    ]
    totals_by_name = dict(totals(ledger))
    return SoakReport(describe_machine(), 0.0, [], found, plan, totals_by_name, ledger, series, not failed(found))


def draw_soak(path: Path, ledger: Ledger, gauges: Gauges, offset_s: float) -> bool:
    """Plot the memory of every process over time, and the faults; returns False if matplotlib is not installed.

    ``offset_s``: time at which faults began to count, on the clock of the gauges.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    roles, groups = gauges.roles, by_kind(ledger.faults)
    figure, axes = plt.subplots(
        len(roles) + 1,
        1,
        sharex=True,
        figsize=(11, 1.1 * len(roles) + 1.2 + 0.24 * len(groups)),
        height_ratios=[1.0] * len(roles) + [0.8 + 0.24 * len(groups)],
        layout="constrained",
    )
    for axis, role in zip(axes, roles, strict=False):
        for one in gauges.of(role):
            axis.plot(one.times_s, one.private_mb, lw=1.2, color="tab:green")
            axis.plot(one.times_s[:1], one.private_mb[:1], marker="|", color="0.2", ms=9)
        slope = ledger.memory.get(role)
        title = f"{role}, MB" if slope is None else f"{role}, MB ({slope.per_minute:+.2f}/min)"
        axis.set_title(title, loc="left", fontsize=9, pad=2)
        low, high = axis.get_ylim()
        if high - low < 4:  # the axis must not exaggerate a single page
            axis.set_ylim((low + high) / 2 - 2, (low + high) / 2 + 2)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=8)
    events = axes[-1]
    for y, (kind, group) in enumerate(groups.items()):
        colour = _COLOURS[NATURES[kind].place]
        for h in group:
            x, over_s = h.at_s + offset_s, h.recovered_s or 0.0
            events.plot([x, x + over_s], [y, y], color=colour, lw=3, solid_capstyle="butt", alpha=0.5)
            events.plot([x], [y], marker="x" if h.ended_run else "o", color=colour, ms=5 if h.ended_run else 3.5)
            if h.recovered_s is None:
                events.plot([x], [y], marker="s", color="k", ms=8, fillstyle="none")
    events.set_yticks(range(len(groups)), [k.value for k in groups], fontsize=8)
    events.invert_yaxis()
    events.grid(alpha=0.3, axis="x")
    events.set_xlabel("time (s); bars: until the fault was over; crosses: faults that ended the run")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


# -- attack ----------------------------------------------------------------------------------------------------------


def attack_table(verdicts: Sequence[Verdict]) -> Table:
    """Return one row for each campaign."""
    rows: Table = [_ATTACK_HEAD]
    for v in verdicts:
        description = v.description if v.complete else f"{v.description} (incomplete)"
        counts = ", ".join(f"{what} {n}" for what, n in v.counts.items())
        grown = "" if v.growth_mb is None else f"{v.growth_mb:+.1f} MB"
        rows.append(
            (
                v.name,
                description,
                str(len(v.findings)) if v.findings else "none",
                counts,
                grown,
                f"{v.duration_s:.0f} s",
            )
        )
    return rows


def attack_line(v: Verdict) -> str:
    """Return the verdict of one campaign."""
    state = "holds" if v.holds else "NOT WHOLE" if not v.findings else f"{len(v.findings)} FINDINGS"
    return f"{v.name}: {state} ({v.description}, {v.duration_s:.0f} s)"


def attack_text(verdicts: Sequence[Verdict]) -> str:
    """Return the text of an attack's results."""
    parts = [align(attack_table(verdicts))]
    for v in verdicts:
        parts += v.findings[:_MAX_FINDINGS_SHOWN]
        if len(v.findings) > _MAX_FINDINGS_SHOWN:
            parts.append(f"{v.name}: and {len(v.findings) - _MAX_FINDINGS_SHOWN} more")
    parts.append("everything holds" if all(v.holds for v in verdicts) else "VIOLATIONS found")
    return "\n".join(parts)


def attack_markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the table as Markdown."""
    return markdown_table(attack_table(verdicts)) + "\n"


class AttackReport(Report, frozen=True):
    """Common benchmark report, with the verdicts and their findings."""

    seed: int
    verdicts: list[Verdict]


def attack_report(seed: int, verdicts: list[Verdict]) -> AttackReport:
    """Return the complete report of an attack."""
    checks = [Check(f"{v.name}: findings", float(len(v.findings)), 0.0, v.holds) for v in verdicts]
    checks += [
        check_at_most(f"{v.name}: MB grown", v.growth_mb, MAX_GROWTH_MB) for v in verdicts if v.growth_mb is not None
    ]
    return AttackReport(describe_machine(), 0.0, [], checks, seed, verdicts)
