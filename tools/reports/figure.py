"""What every kind of figure hands back."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Picture(NamedTuple):
    """One drawn figure."""

    number: int
    """Of the figure of 000 that shows the same."""
    title: str
    caption: str
    path: Path


def counted(numbers: list[int]) -> str:
    """Write numbers of trials: ``n = 50``, ``n = 12 to 50``."""
    low, high = min(numbers), max(numbers)
    return f"n = {low}" if low == high else f"n = {low} to {high}"
