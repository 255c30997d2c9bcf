"""What ``onrig bench replay`` prints: times, bytes, checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onrig.tools.benchmarks.cases import CASES, MEMORIES, Case, Shape
from onrig.tools.benchmarks.figures import Figures, Place, Weights
from onrig.tools.benchmarks.table import aligned, number

Marked = Collection[tuple[str, str]]
"""(package, kind) of what did not pass the gate."""


def times_table(figures: Figures, shape: Shape, capacity: int, peers: Sequence[str], marked: Marked) -> str:
    """Set out the times of one shape and capacity: Onrig's percentiles, the peers' medians and how often ours goes in.

    A "!" behind a figure says that its library did not pass the gate.
    """
    head = [f"{shape}, {capacity:_}: us", "onrig p50", "p99", "p99.9", "max", *peers]
    rows = [head]
    for case in CASES:
        ours = figures.get(Place(case.name, shape, capacity, "onrig"))
        if ours is None:
            continue
        mark = "!" if ("onrig", case.onrig) in marked else ""
        q = ours.all
        row = [case.name, number(q.p50) + mark, number(q.p99), number(q.p999), number(q.max)]
        rows.append(row + [_beside(figures, case, shape, capacity, peer, q.p50, marked) for peer in peers])
    return aligned(rows)


def _beside(figures: Figures, case: Case, shape: Shape, capacity: int, peer: str, ours: float, marked: Marked) -> str:
    theirs = figures.get(Place(case.beside or case.name, shape, capacity, peer))
    if theirs is None:
        return ""
    kind = next(c.peer for c in CASES if c.name == (case.beside or case.name))
    mark = "!" if (peer, kind) in marked else ""
    return f"{number(theirs.all.p50)}{mark} ({theirs.all.p50 / ours:.1f}x)"


def memory_table(weights: Weights, shapes: Iterable[Shape], packages: Sequence[str]) -> str:
    """Set out bytes per transition: what the process grew by, and Onrig's arrays."""
    rows = [["bytes per transition", "raw", "arrays", *packages]]
    for shape in shapes:
        for memory in MEMORIES:
            found = {p.package: w for p, w in weights.items() if (p.case, p.shape) == (memory.name, shape)}
            if "onrig" not in found:
                continue
            arrays = found["onrig"].arrays
            cells = ["" if p not in found or (grown := found[p].resident) is None else f"{grown:.1f}" for p in packages]
            rows.append([f"{memory.name}, {shape}", str(shape.raw_bytes), f"{arrays:.1f}" if arrays else "", *cells])
    return aligned(rows)
