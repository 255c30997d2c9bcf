"""Tables of ``onrig bench loop`` for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onrig.runtime.record import Miss
from onrig.tools.benchmarks.loop_report import AtRate, LoopMiss, period_ns, variant_ratio
from onrig.tools.benchmarks.loop_stalls import Stalls
from onrig.tools.benchmarks.report import Row
from onrig.tools.benchmarks.table import aligned, number

_LISTED: Final = 20


def rows_table(rows: Sequence[Row]) -> str:
    """Set out the rows."""
    head = ["case", "subject", "unit", "p50", "p99", "p99.9", "max"]
    cells = [[r.case, r.subject, r.unit, *(number(v) for v in (r.p50, r.p99, r.p999, r.max))] for r in rows]
    return aligned([head, *cells])


def misses_table(measured: Sequence[AtRate]) -> str:
    """Missed ticks by cause, and how many of each fall into stalls that a sentinel saw."""
    head = [
        "missed ticks",
        "ticks",
        "swaps",
        "link",
        "program",
        "host",
        "in a stall",
        "line slow",
        "by chance",
        "twin paused",
    ]
    cells = []
    for found in measured:
        stalls = Stalls(found.sentinels, period_ns(found.rate_hz))
        for rig in found.rigs:
            t = rig.tally
            counts = [t.missed_ticks[cause] for cause in (Miss.LINK, Miss.PROGRAM, Miss.HOST)]
            misses = [stalls.explain(m) for m in t.missed]
            in_stall = sum(e.missed.frames for e in misses if e.is_machine)
            on_line = sum(e.missed.frames for e in misses if e.is_line)
            seen = [in_stall, on_line] if found.sentinels else ["?", "?"]
            chance = f"{100 * stalls.share_of(found.sentinel_s):.2g} %"
            figures = [t.ticks, t.swaps, *counts, *seen, chance, t.pauses]
            cells.append([f"{found.rate_hz:g} Hz, {rig.name}", *map(str, figures)])
    return aligned([head, *cells])


def misses_list(misses: Sequence[LoopMiss]) -> str:
    """The first of the misses, one line each."""
    head = ["miss", "frames", "cause", "delay us", "stall ms", "line ms", "tick before us", "mostly", "near a swap"]
    cells = [
        [
            f"{m.rate_hz:g} Hz, {m.subject}",
            str(m.frames),
            m.cause,
            number(m.delay_us),
            number(m.stall_ms) if m.stall_ms else "none seen",
            number(m.line_ms) if m.line_ms else "none seen",
            number(m.tick_before_us),
            m.longest_stage,
            "yes" if m.near_swap else "",
        ]
        for m in misses[:_LISTED]
    ]
    more = [f"... and {len(misses) - _LISTED} more (--json has them all)"] if len(misses) > _LISTED else []
    return "\n".join([aligned([head, *cells]), *more])


def ratios_table(measured: Sequence[AtRate]) -> str:
    """Ratios of the first subject's figures to each variant's, with their spread over slices."""
    head = ["ratio of slices", "slices", "p50", "95 % interval", "p99", "95 % interval"]
    cells = []
    for found in measured:
        base = found.rigs[0]
        for rig in found.rigs[1:]:
            for what in ("tick", "lateness"):
                figures: list[str] = []
                for q in ("p50", "p99"):
                    r = variant_ratio(base, rig, f"{what}_{q}")
                    figures += [f"{r.value:.3f}", f"{r.low:.3f} to {r.high:.3f}"]
                case = f"{found.rate_hz:g} Hz, {what}: {base.name} / {rig.name}"
                cells.append([case, f"{len(base.slices)}+{len(rig.slices)}", *figures])
    return aligned([head, *cells])
