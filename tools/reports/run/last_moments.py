"""Reads what ``onrig.runtime.supervise.post_mortem`` wrote; whatever is damaged is left out."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.supervise.post_mortem import FAULT, FRAMES, RECORDS

Values = NDArray[np.float64]
_WORDS: Final = ("kind", "rule", "miss", "flags")


class Frame(msgspec.Struct, frozen=True):
    """One line of ``frames.jsonl``, as far as the picture needs it."""

    t_mono_ns: int
    type: str
    frame: int | None = None
    t_us: int | None = None
    status: int | None = None
    fault: int | None = None
    answers: int | None = None


class LastMoments(NamedTuple):
    """One post-mortem."""

    folder: Path
    story: Mapping[str, object]
    """``fault.json``; empty where it cannot be read."""
    columns: Mapping[str, Values]
    """Records by column, each (n,); words as in ``words``."""
    words: Mapping[str, Sequence[str]]
    frames: Sequence[Frame]

    @property
    def fault(self) -> str:
        """Its name."""
        return str(self.story.get("fault", self.folder.name))

    @property
    def virtual(self) -> bool:
        """Whether times in the records are not the machine's."""
        return bool(self.story.get("virtual_time"))

    def seconds(self) -> Values:
        """When the records' frames were received (in virtual time: sampled), in s before (negative) or after zero.

        Zero is the fault; in virtual time, or where that is not known, it is the last record.
        """
        return (self.columns["t_mono_ns" if self.virtual else "t_receive_ns"] - self._zero_ns()) / 1e9

    def frame_seconds(self, frames: Sequence[Frame]) -> Values:
        """The frames' times on the same axis."""
        if self.virtual:
            return (np.array([float(f.t_us or 0) for f in frames]) * 1e3 - self._zero_ns()) / 1e9
        return (np.array([float(f.t_mono_ns) for f in frames]) - self._zero_ns()) / 1e9

    def _zero_ns(self) -> float:
        told = self.story.get("t_mono_ns")
        if isinstance(told, int) and not self.virtual:
            return float(told)
        times = self.columns.get("t_mono_ns" if self.virtual else "t_receive_ns")
        if times is not None and len(times):
            return float(times[-1])
        return float(self.frames[-1].t_mono_ns) if self.frames else 0.0


def read_last_moments(folder: Path) -> LastMoments:
    """Read one folder of ``post-mortem/``; never raises for what is in it."""
    story: dict[str, object] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        story = msgspec.json.decode((folder / FAULT).read_bytes(), type=dict[str, object])
    return LastMoments(folder, story, *_records(folder / RECORDS), _frames(folder / FRAMES))


def _records(path: Path) -> tuple[dict[str, Values], dict[str, list[str]]]:
    heads: list[str] = []
    rows: list[list[str]] = []
    with contextlib.suppress(OSError, UnicodeDecodeError, csv.Error), path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        heads = next(reader, [])
        rows = [row for row in reader if len(row) == len(heads)]
    words, columns = {}, {}
    for i, head in enumerate(heads):
        cells = [row[i] for row in rows]
        if head in _WORDS:
            words[head] = cells
        else:
            with contextlib.suppress(ValueError):
                columns[head] = np.array(cells, np.float64)
    return columns, words


def _frames(path: Path) -> list[Frame]:
    frames = []
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                frames.append(msgspec.json.decode(line, type=Frame))
    return frames
