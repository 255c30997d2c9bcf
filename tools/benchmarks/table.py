"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onrig.tools.benchmarks.report import Check


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Set out ``rows`` of equal length in columns: the first to the left, the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """Write ``value`` with about three digits that matter."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def checks_table(checks: Iterable[Check]) -> str:
    """Set out the checks, those that do not hold marked."""
    rows = [["check", "value", "bound", ""]]
    rows += [[c.name, number(c.value), number(c.bound), "holds" if c.holds else "DOES NOT HOLD"] for c in checks]
    return aligned(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Set out rows, the first one the head, as a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|{'---|' * len(rows[0])}")
    return "\n".join(lines) + "\n"
