"""Rendering of the rig as text, in pure functions: outlines of its scene, a ball on a track above the coils, or bars.

The canvas consists of braille dots; sparklines and bars are one line high.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from onrig.hw.rig import Actuator, Rig
from onrig.runtime.run_config import RunConfig
from onrig.tools.drawings import drawing_of
from onrig.tools.watching.snapshot import LastStep

_BLOCK_CHARACTERS: Final = " ▁▂▃▄▅▆▇█"
_BAR_CHARACTERS: Final = " ▏▎▍▌▋▊▉█"
_ASCII_LEVELS: Final = " .:-=+*#@"
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Canvas:
    """Canvas of ``width`` x ``height`` braille characters with 2 x 4 dots each.

    Without ``unicode``, it consists of ASCII characters, each of which represents eight dots.
    """

    def __init__(self, width: int, height: int, *, unicode: bool = True) -> None:
        self.dots_wide, self.dots_high = 2 * width, 4 * height
        self._cells = [[0] * width for _ in range(height)]
        self._unicode = unicode

    def dot(self, x: float, y: float) -> None:
        """Set a dot, with y downwards; dots outside the canvas are ignored."""
        column, row = round(x), round(y)
        if 0 <= column < self.dots_wide and 0 <= row < self.dots_high:
            self._cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]

    def line(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draw a straight line."""
        steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
        for k in range(steps + 1):
            self.dot(x0 + (x1 - x0) * k / steps, y0 + (y1 - y0) * k / steps)

    def circle(self, x: float, y: float, radius: float, spacing: float = 1.0) -> None:
        """Draw a circle of dots that are ``spacing`` dots apart along the arc."""
        n = max(8, round(2 * math.pi * radius / spacing))
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
        """Return the lines of text, each as wide as the canvas."""
        if self._unicode:
            return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in self._cells]
        return ["".join(_ascii(cell) for cell in row) for row in self._cells]


def _ascii(cell: int) -> str:
    return " " if not cell else "." if cell.bit_count() < 2 else "o" if cell.bit_count() < 6 else "#"


def sparkline(values: Sequence[float], width: int, low: float, high: float, *, unicode: bool = True) -> str:
    """Draw a sparkline with the latest value at the right, averaging neighbours if there are too many values.

    Non-finite values leave gaps.
    """
    if not values or width < 1:
        return ""
    n = min(width, len(values))
    levels = _BLOCK_CHARACTERS if unicode else _ASCII_LEVELS
    line = []
    for k in range(n):
        finite = [v for v in values[k * len(values) // n : (k + 1) * len(values) // n] if math.isfinite(v)]
        if not finite:
            line.append(" ")
            continue
        fraction = (sum(finite) / len(finite) - low) / (high - low) if high > low else 0.0
        line.append(levels[1 + min(7, max(0, math.floor(8 * fraction)))])
    return "".join(line)


def bar(fraction: float, width: int, *, unicode: bool = True) -> str:
    """Draw a bar from the left, ``fraction`` of ``width`` characters long."""
    fraction = min(max(fraction, 0.0), 1.0) if math.isfinite(fraction) else 0.0
    if not unicode:
        return ("#" * round(fraction * width)).ljust(width, ".")
    eighths = round(8 * fraction * width)
    n_full, n_eighths = divmod(eighths, 8)
    return ("█" * n_full + (_BAR_CHARACTERS[n_eighths] if n_eighths else "")).ljust(width, "·")


def centred_bar(fraction: float, half_width: int, *, unicode: bool = True) -> str:
    """Draw a bar from the middle to one side; ``fraction`` is in [-1, 1], each side has ``half_width`` characters."""
    fraction = min(max(fraction, -1.0), 1.0) if math.isfinite(fraction) else 0.0
    n = round(abs(fraction) * half_width)
    full, empty, middle = ("█", "·", "│") if unicode else ("#", ".", "|")
    left = (empty * (half_width - n) + full * n) if fraction < 0 else empty * half_width
    right = (full * n + empty * (half_width - n)) if fraction > 0 else empty * half_width
    return f"{left}{middle}{right}"


def columns(counts: Sequence[int], *, unicode: bool = True) -> str:
    """Draw a one-line histogram of the square roots of the counts, so that single counts remain visible."""
    maximum = max(counts, default=0)
    levels = _BLOCK_CHARACTERS if unicode else _ASCII_LEVELS
    return "".join(levels[math.ceil(8 * math.sqrt(n / maximum))] if n else " " for n in counts) if maximum else ""


_THIN: Final = 2.5
"""Width (px) below which outlines are dotted."""
_FINE: Final = 1.0
"""Width (px) up to which lines are too fine for a terminal."""
_MIN_DISC: Final = 1.8
"""Minimum radius of a disc, in dots."""
_LEVELS: Final = " ▁▂▃▄▅▆▇█"


class Magnet(msgspec.Struct):
    """Coil under the track."""

    at: float
    actuator: int


Source = tuple[Literal["observation", "applied"], int]


class Move(msgspec.Struct):
    """Motion of a shape (``onrig.runtime.view.drawing.Motion``)."""

    by: Source
    turn: float
    about: tuple[float, float]
    shift: tuple[float, float]


class Part(msgspec.Struct):
    """Shape in a scene (``onrig.runtime.view.drawing.Shape``)."""

    form: str
    points: tuple[tuple[float, float], ...]
    radius: float
    outlined: bool
    width: float
    motions: tuple[Move, ...]
    grown_by: Source | None
    lit_by: Source | None


class Track(msgspec.Struct):
    """Ball above its coils, drawn in a few lines."""

    position: int
    low: float
    high: float
    target: float | None = None
    magnets: tuple[Magnet, ...] = ()


class Sketch(msgspec.Struct):
    """Parts of ``drawing_of`` that can be drawn as text."""

    low: tuple[float, float] = (0.0, 0.0)
    high: tuple[float, float] = (1.0, 1.0)
    shapes: tuple[Part, ...] = ()
    track: Track | None = None


def create_sketch(config: RunConfig) -> Sketch:
    """Return the drawing of a rig, which is constant over a run."""
    return msgspec.convert(drawing_of(config), Sketch)


def rig_rows(
    rig: Rig, sketch: Sketch, last_step: LastStep | None, width: int, height: int, *, unicode: bool = True
) -> list[str]:
    """Draw the rig in the state of its last record, in at most ``height`` lines of ``width`` characters."""
    if last_step is None:
        return ["no step record yet"]
    values = _observation_rows(rig, last_step)
    if sketch.track is not None:
        track = ball_on_track(sketch.track, last_step, rig, width, unicode=unicode)
        rows = [*track, "   ".join(values), *_command_rows(rig, last_step, 6, unicode=unicode)]
    elif sketch.shapes:
        text_column = [*values, "", *_stacked_command_rows(rig, last_step, 7, unicode=unicode)]
        size = max(3, min(height, (width - max(map(len, text_column)) - 2) // 2))
        dial = scene_rows(sketch, last_step, size, unicode=unicode)
        lines = max(len(dial), len(text_column))
        dial += [" " * (2 * size)] * (lines - len(dial))
        text_column += [""] * (lines - len(text_column))
        return [f"{d}  {text}"[:width].rstrip() for d, text in zip(dial, text_column, strict=True)][:height]
    else:
        rows = [*_bar_rows(rig, last_step, unicode=unicode), *_command_rows(rig, last_step, 6, unicode=unicode)]
    return [row[:width].rstrip() for row in rows][:height]


def scene_rows(sketch: Sketch, last_step: LastStep, size: int, *, unicode: bool = True) -> list[str]:
    """Draw the outlines of a scene in ``size`` lines of 2 * ``size`` characters."""
    canvas = Canvas(2 * size, size, unicode=unicode)
    (left, bottom), (right, top) = sketch.low, sketch.high
    scale = min((canvas.dots_wide - 1) / (right - left), (canvas.dots_high - 1) / (top - bottom))
    for part in sketch.shapes:
        if part.form == "text" or part.grown_by is not None or part.lit_by is not None:
            continue
        if part.form == "line" and part.width <= _FINE:
            continue
        points = [transform_point(point, part, last_step) for point in part.points]
        if not all(math.isfinite(x) and math.isfinite(y) for x, y in points):
            continue
        pixels = [
            (
                0.5 * (canvas.dots_wide - 1) + scale * (x - 0.5 * (left + right)),
                0.5 * (canvas.dots_high - 1) - scale * (y - 0.5 * (bottom + top)),
            )
            for x, y in points
        ]
        if part.form == "circle" and part.outlined:
            canvas.circle(*pixels[0], scale * part.radius, spacing=3.0 if part.width < _THIN else 1.0)
            continue
        if part.form == "circle":
            canvas.disc(*pixels[0], max(_MIN_DISC, scale * part.radius))
            continue
        for start, end in itertools.pairwise(pixels if part.form == "line" else [*pixels, pixels[0]]):
            canvas.line(*start, *end)
    return canvas.rows()


def transform_point(point: tuple[float, float], part: Part, last_step: LastStep) -> tuple[float, float]:
    """Return the position of a shape's point after all of the shape's motions."""
    x, y = point
    for motion in part.motions:
        value, (cx, cy) = _source_value(motion.by, last_step), motion.about
        if not math.isfinite(value):
            return math.nan, math.nan
        c, s = math.cos(motion.turn * value), math.sin(motion.turn * value)
        x, y = (
            cx + c * (x - cx) - s * (y - cy) + motion.shift[0] * value,
            cy + s * (x - cx) + c * (y - cy) + motion.shift[1] * value,
        )
    return x, y


def _source_value(source: Source, last_step: LastStep) -> float:
    kind, index = source
    value = (last_step.observation if kind == "observation" else last_step.commanded)[index]
    return value if math.isfinite(value) else math.nan


def ball_on_track(track: Track, last_step: LastStep, rig: Rig, width: int, *, unicode: bool = True) -> list[str]:
    """Draw the ball, its rail with the target, and below it the coils, with heights proportional to their commands."""
    low, high = track.low, track.high

    def column(value: float) -> int:
        return min(max(round((value - low) / (high - low) * (width - 1)), 0), width - 1)

    position = last_step.observation[track.position]
    ball = " " * column(position) + ("●" if unicode else "O") if math.isfinite(position) else ""
    rail = [("├" if unicode else "|"), *("─" if unicode else "-") * (width - 2), ("┤" if unicode else "|")]
    if track.target is not None:
        rail[column(track.target)] = "┼" if unicode else "+"
    coils = [" "] * width
    for magnet in track.magnets:
        if low <= magnet.at <= high:
            actuator, value = rig.actuators[magnet.actuator], last_step.commanded[magnet.actuator]
            share = (value - actuator.low) / (actuator.high - actuator.low) if math.isfinite(value) else 0.0
            level = min(max(math.ceil(8 * share), 0), 8)
            coils[column(magnet.at)] = (_LEVELS[level] if level else "·") if unicode else str(level)
    return [ball, "".join(rail), "".join(coils)]


def _observation_rows(rig: Rig, last_step: LastStep) -> list[str]:
    return [f"{o.name} {v:+.3g} {o.unit}" for o, v in zip(rig.observations, last_step.observation, strict=False)]


def _bar_rows(rig: Rig, last_step: LastStep, *, unicode: bool) -> list[str]:
    rows = []
    for o, value in zip(rig.observations, last_step.observation, strict=False):
        fraction = (value - o.low) / (o.high - o.low)
        rows.append(f"{o.name[:10]:10} {bar(fraction, 12, unicode=unicode)} {value:+.3g} {o.unit}")
    return rows


def _stacked_command_rows(rig: Rig, last_step: LastStep, half_width: int, *, unicode: bool) -> list[str]:
    """Return rows with each command and a bar below it, for a narrow column."""
    rows = []
    for actuator, value in zip(rig.actuators, last_step.commanded, strict=True):
        text = centred_bar(_effort_fraction(actuator, value), half_width, unicode=unicode)
        rows += [f"{actuator.name[:10]} {value:+.3g} {actuator.unit}", text]
    return rows


def _effort_fraction(actuator: Actuator, value: float) -> float:
    """Return the effort as a fraction of the range: 0 at the safe value, 1 and -1 at the ends."""
    reach = actuator.high - actuator.safe if value > actuator.safe else actuator.safe - actuator.low
    return (value - actuator.safe) / reach if reach > 0 else 0.0


def _command_rows(rig: Rig, last_step: LastStep, half_width: int, *, unicode: bool) -> Sequence[str]:
    rows = []
    for actuator, value in zip(rig.actuators, last_step.commanded, strict=True):
        if actuator.low < actuator.safe < actuator.high:
            text = centred_bar(_effort_fraction(actuator, value), half_width, unicode=unicode)
        else:
            text = bar((value - actuator.low) / (actuator.high - actuator.low), 2 * half_width, unicode=unicode)
        rows.append(f"{actuator.name[:10]} {text} {value:+.3g} {actuator.unit}")
    return rows
