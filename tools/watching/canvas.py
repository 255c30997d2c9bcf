"""Small drawings in text: a canvas of braille dots, curves and bars one line high.  Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_BARS: Final = " ▏▎▍▌▋▊▉█"
_ASCII_LEVELS: Final = " .:-=+*#@"
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Canvas:
    """``width`` x ``height`` characters of 2 x 4 dots each; without ``fancy`` an ASCII character stands for eight."""

    def __init__(self, width: int, height: int, *, fancy: bool = True) -> None:
        self.dots_wide, self.dots_high = 2 * width, 4 * height
        self._cells = [[0] * width for _ in range(height)]
        self._fancy = fancy

    def dot(self, x: float, y: float) -> None:
        """Set one dot, y downwards; beyond the edges nothing."""
        column, row = round(x), round(y)
        if 0 <= column < self.dots_wide and 0 <= row < self.dots_high:
            self._cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]

    def line(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draw a straight line."""
        steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
        for k in range(steps + 1):
            self.dot(x0 + (x1 - x0) * k / steps, y0 + (y1 - y0) * k / steps)

    def circle(self, x: float, y: float, radius: float, every: float = 1.0) -> None:
        """Draw a circle, a dot for every so many dots of its length."""
        n = max(8, round(2 * math.pi * radius / every))
        for k in range(n):
            self.dot(x + radius * math.cos(2 * math.pi * k / n), y + radius * math.sin(2 * math.pi * k / n))

    def disc(self, x: float, y: float, radius: float) -> None:
        """Draw a filled circle."""
        reach = math.ceil(radius)
        for dy in range(-reach, reach + 1):
            for dx in range(-reach, reach + 1):
                if dx * dx + dy * dy <= radius * radius:
                    self.dot(x + dx, y + dy)

    def rows(self) -> list[str]:
        """The lines of text, each as wide as the canvas."""
        if self._fancy:
            return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in self._cells]
        return ["".join(_ascii(cell) for cell in row) for row in self._cells]


def _ascii(cell: int) -> str:
    return " " if not cell else "." if cell.bit_count() < 2 else "o" if cell.bit_count() < 6 else "#"


def sparkline(values: Sequence[float], width: int, low: float, high: float, *, fancy: bool = True) -> str:
    """A curve in one line: the last ones at the right; where there are more than fit, neighbours are averaged.

    What is no number leaves a gap.
    """
    if not values or width < 1:
        return ""
    n = min(width, len(values))
    levels = _BLOCKS if fancy else _ASCII_LEVELS
    line = []
    for k in range(n):
        some = [v for v in values[k * len(values) // n : (k + 1) * len(values) // n] if math.isfinite(v)]
        if not some:
            line.append(" ")
            continue
        share = (sum(some) / len(some) - low) / (high - low) if high > low else 0.0
        line.append(levels[1 + min(7, max(0, math.floor(8 * share)))])
    return "".join(line)


def bar(share: float, width: int, *, fancy: bool = True) -> str:
    """A bar from the left, ``share`` of ``width`` characters long."""
    share = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    if not fancy:
        return ("#" * round(share * width)).ljust(width, ".")
    eighths = round(8 * share * width)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_BARS[rest] if rest else "")).ljust(width, "·")


def both_ways(share: float, half: int, *, fancy: bool = True) -> str:
    """A bar from the middle to either side; ``share`` in [-1, 1], ``half`` characters each way."""
    share = min(max(share, -1.0), 1.0) if math.isfinite(share) else 0.0
    n = round(abs(share) * half)
    full, empty, middle = ("█", "·", "│") if fancy else ("#", ".", "|")
    left = (empty * (half - n) + full * n) if share < 0 else empty * half
    right = (full * n + empty * (half - n)) if share > 0 else empty * half
    return f"{left}{middle}{right}"


def columns(counts: Sequence[int], *, fancy: bool = True) -> str:
    """A histogram in one line; square roots, so that single ones are seen."""
    most = max(counts, default=0)
    levels = _BLOCKS if fancy else _ASCII_LEVELS
    return "".join(levels[math.ceil(8 * math.sqrt(n / most))] if n else " " for n in counts) if most else ""
