"""Which cells of a grid `--only` means."""

from __future__ import annotations

from collections.abc import Sequence

from onrig.runtime.config.problem import suggestion
from onrig.tools.experiments.axes import short_name
from onrig.tools.experiments.store import Cell


class NoSuchCells(Exception):
    """No cell is meant; the message says what there is."""


def chosen(cells: Sequence[Cell], conditions: Sequence[str]) -> list[Cell]:
    """The cells that have all of the values of ``AXIS=VALUE``; several values of one axis are alternatives.

    Raises NoSuchCells.
    """
    wanted: dict[str, set[str]] = {}
    for condition in conditions:
        axis, equals, value = (part.strip() for part in condition.partition("="))
        if not equals:
            raise NoSuchCells(f"expected AXIS=VALUE, got '{condition}'")
        axis = short_name(axis)
        known = {axis: None for cell in cells for axis in cell.label}
        if axis not in known:
            raise NoSuchCells(f"the grid has no axis '{axis}' ({suggestion(axis, list(known))})")
        values = list(dict.fromkeys(str(cell.label[axis]) for cell in cells if axis in cell.label))
        matching = {v for v in values if v == value or _same_number(v, value)}
        if not matching:
            raise NoSuchCells(f"no cell has '{axis}' {value} ({suggestion(value, values)})")
        wanted.setdefault(axis, set()).update(matching)
    found = [cell for cell in cells if all(str(cell.label.get(axis)) in values for axis, values in wanted.items())]
    if not found:
        raise NoSuchCells(f"no cell has all of {', '.join(conditions)}")
    return found


def _same_number(a: str, b: str) -> bool:
    try:
        return float(a) == float(b)
    except ValueError:
        return False
