"""What an attack came to: lines for a terminal, a table for the docs, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from onrig.tools.bench.report import Check, at_most, describe_machine
from onrig.tools.bench.report import aligned, markdown
from onrig.tools.faultlab.campaign import GROWN_MB, Verdict

_HEAD: Final = ("part", "what was done", "findings", "what came of it", "memory, last tenth over first", "took")
_SHOWN: Final = 20


def rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """One line for each campaign, the head first."""
    return [
        _HEAD,
        *(
            (
                v.name,
                v.does if v.whole else f"{v.does} (not all of it yet)",
                str(len(v.findings)) if v.findings else "none",
                ", ".join(f"{what} {n}" for what, n in v.counts.items()),
                "" if v.grown_mb is None else f"{v.grown_mb:+.1f} MB",
                f"{v.took_s:.0f} s",
            )
            for v in verdicts
        ),
    ]


def line(v: Verdict) -> str:
    """The verdict of one campaign."""
    state = "holds" if v.holds else "NOT WHOLE" if not v.findings else f"{len(v.findings)} FINDINGS"
    return f"{v.name}: {state} ({v.does}, {v.took_s:.0f} s)"


def text(verdicts: Sequence[Verdict]) -> str:
    """Everything, for a person."""
    parts = [aligned(rows(verdicts))]
    for v in verdicts:
        parts += v.findings[:_SHOWN]
        if len(v.findings) > _SHOWN:
            parts.append(f"{v.name}: and {len(v.findings) - _SHOWN} more")
    holds = all(v.holds for v in verdicts)
    parts.append("everything holds" if holds else "NOT everything holds")
    return "\n".join(parts)


def table(verdicts: Sequence[Verdict]) -> str:
    """The table as Markdown."""
    return markdown(rows(verdicts))


def write_json(path: Path, seed: int, verdicts: Sequence[Verdict]) -> None:
    """Write all of it, checks in the shape of a benchmark's."""
    checks = [Check(f"{v.name}: findings", float(len(v.findings)), 0.0, v.holds) for v in verdicts]
    checks += [at_most(f"{v.name}: MB grown", v.grown_mb, GROWN_MB) for v in verdicts if v.grown_mb is not None]
    whole = {"machine": describe_machine(), "seed": seed, "verdicts": verdicts, "checks": checks}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
