"""What a soak came to, as tables and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from onrig.runtime.replaced_file import replace_file
from onrig.tools.bench.report import Check, aligned, describe_machine
from onrig.tools.faultlab.gauges import JUDGED_S, WARM_UP_S, Gauges, trend
from onrig.tools.faultlab.soak.ledger import FLAT_MB_PER_MIN, Ledger, by_kind, causes, failed
from onrig.tools.faultlab.soak.plan import NATURES


def totals(ledger: Ledger) -> list[tuple[str, str]]:
    """The figures of the whole soak, as (what, how many)."""
    lives = ledger.lives
    missed: Counter[str] = sum((life.missed for life in lives), Counter())
    batches = [life.error_batches for life in lives if life.told.error_batches is not None]
    by_cause = ", ".join(f"{cause} {missed[cause]}" for cause in causes())
    return [
        ("runs (of them resumed)", f"{len(lives)} ({sum(life.resumed for life in lives)})"),
        ("learners started", str(ledger.learner_starts)),
        ("records of ticks", str(sum(life.written for life in lives))),
        ("ticks missed", f"{sum(missed.values())} ({by_cause})"),
        ("records lost by kills", str(sum(max(life.lost, 0) for life in lives))),
        ("experiences produced", str(sum(life.produced for life in lives))),
        ("experiences kept", str(sum(life.kept for life in lives))),
        ("writes mirrored, snapshots included", str(ledger.mirrored)),
        ("mirror comparisons", f"{ledger.compared}, of the whole memory {ledger.compared_whole}"),
        ("mirror mismatches", str(ledger.mismatches)),
        ("policies offered", str(sum(life.admitted + life.refused for life in lives))),
        ("policies admitted", str(sum(life.admitted for life in lives))),
        ("policies refused", str(sum(life.refused for life in lives))),
        ("policies rolled back", str(sum(life.rolled_back for life in lives))),
        ("TD-error batches taken", str(sum(batches)) if batches else "not told by the rig"),
        ("faults", f"{len(ledger.happenings)} of {ledger.planned}"),
    ]


def fault_rows(ledger: Ledger) -> list[tuple[str, ...]]:
    """One line for each kind, the head first."""
    rows: list[tuple[str, ...]] = [("fault", "times", "over", "ended the run", "median", "longest", "named")]
    for kind, group in by_kind(ledger.happenings).items():
        times = [h.recovered_s for h in group if h.recovered_s is not None]
        told = Counter(name for h in group for name in h.names)
        named = sum(bool(h.names) for h in group)
        names = ", ".join(f"{name} {n}" for name, n in told.most_common()) if NATURES[kind].names else "nothing to name"
        rows.append(
            (
                kind.value,
                str(len(group)),
                str(len(times)),
                str(sum(h.ended_run for h in group)),
                f"{median(times):.1f} s" if times else "",
                f"{max(times):.1f} s" if times else "",
                f"{named}: {names}" if told else names,
            )
        )
    return rows


def process_rows(gauges: Gauges) -> list[tuple[str, ...]]:
    """One line for each role, the head first."""
    rows: list[tuple[str, ...]] = [
        ("process", "started", "longest", "MB first", "MB last", "MB peak", "MB/min", "descriptors", "per min")
    ]
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


def text(ledger: Ledger, gauges: Gauges, found: Sequence[Check]) -> str:
    """Everything, for a person."""
    width = max(len(what) for what, _ in totals(ledger))
    parts = ["\n".join(f"{what:<{width}}  {figure}" for what, figure in totals(ledger))]
    parts.append(aligned(fault_rows(ledger)))
    note = (
        "MB: private memory; slopes: Theil-Sen over all processes of a role; "
        f"flat is at most {FLAT_MB_PER_MIN:g} MB/min, judged where one lived for {JUDGED_S:g} s"
    )
    parts.append(f"{aligned(process_rows(gauges))}\n{note}")
    wrong = failed(found)
    verdict = [f"NOT balanced: {c.name}: {c.value:g}, bound {c.bound:g}" for c in wrong]
    verdict += [f"  {line}" for line in (*ledger.unexpected_ends, *ledger.untold)]
    parts.append("\n".join(verdict) if verdict else f"the ledger balances: {len(found)} checks hold")
    return "\n\n".join(parts)


def write_json(path: Path, plan: dict[str, float], ledger: Ledger, gauges: Gauges, found: Sequence[Check]) -> None:
    """Write all of it, checks in the shape of a benchmark's, and every process's slope by itself."""
    series = [
        {
            "role": s.role,
            "pid": s.pid,
            "t_s": s.times_s,
            "private_mb": s.private_mb,
            "descriptors": s.descriptors,
            "trend": trend([(s.times_s, s.private_mb)], WARM_UP_S),
        }
        for s in gauges.series.values()
    ]
    whole = {
        "machine": describe_machine(),
        "plan": plan,
        "totals": dict(totals(ledger)),
        "ledger": ledger,
        "processes": series,
        "checks": found,
        "balances": not failed(found),
    }
    replace_file(path, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
