"""What a run left behind, read for its report; whatever is missing or damaged is left out, never raised."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.accounts.timing import FILE as TIMING_FILE
from onrig.runtime.replay.accounts.timing import Timing
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.event_kinds import times
from onrig.runtime.view.layout import BINS_PER_OCTAVE
from onrig.tools.plots import episode_columns

Values = NDArray[np.float64]
Columns = Mapping[str, Values]
Fields = Mapping[str, object]

COLUMNS: Final = (
    *("episode", "steps", "return", "mean_reward", "normalized", "exploration"),
    *("interventions", "missed_ticks", "policy_id", "t_mono_ns"),
)
_MOST_BYTES: Final = 64 << 20
"""Of ``events.jsonl``: its end, where it is longer."""


class Event(NamedTuple):
    """One line of ``events.jsonl``."""

    t_unix_s: float
    kind: str
    fields: Fields


class Histogram(NamedTuple):
    """Durations counted in bins."""

    edges_us: Values
    """(n + 1,)"""
    counts: NDArray[np.int64]
    """(n,)"""

    def percentile_us(self, q: float) -> float:
        """Upper edge of the bin that holds the q-th percentile."""
        total = np.cumsum(self.counts)
        return float(self.edges_us[1 + int(np.searchsorted(total, max(1.0, q / 100 * float(total[-1]))))])


class Material(NamedTuple):
    """A run folder's content."""

    folder: Path
    config: RunConfig
    summary: Fields
    meta: Fields
    train: Columns
    evaluation: Columns
    events: Sequence[Event]
    timing: Mapping[str, Histogram]

    def section(self, key: str) -> Fields:
        """A mapping within the summary; empty where there is none."""
        section = self.summary.get(key)
        return section if isinstance(section, dict) else {}

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of some kinds."""
        return [e for e in self.events if e.kind in kinds]


def read_material(folder: Path, config: RunConfig) -> Material:
    """Read everything but the memory."""
    return Material(
        folder,
        config,
        _fields(folder / "summary.json"),
        _fields(folder / "meta.json"),
        episode_columns(folder, "train", COLUMNS),
        episode_columns(folder, "eval", COLUMNS),
        read_events(folder / "events.jsonl"),
        _timing(folder / TIMING_FILE),
    )


def _fields(path: Path) -> dict[str, object]:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    return {}


def read_events(path: Path) -> list[Event]:
    """Read ``events.jsonl``: all of it, or its last 64 MiB."""
    data = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _MOST_BYTES))
        data = file.read()
        if size > _MOST_BYTES:
            data = data.partition(b"\n")[2]
    decoder = msgspec.json.Decoder(dict[str, object])
    events = []
    for line in data.splitlines():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            fields = decoder.decode(line)
            t, kind = fields.pop("t_unix_s", 0.0), fields.pop("kind", "?")
            if isinstance(t, float | int):
                events.append(Event(float(t), str(kind), fields))
    return events


def _timing(path: Path) -> dict[str, Histogram]:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        told = msgspec.json.decode(path.read_bytes(), type=Timing)
        return {
            name: Histogram(
                2.0 ** ((counts.first + np.arange(len(counts.counts) + 1)) / BINS_PER_OCTAVE) / 1e3,
                np.array(counts.counts, np.int64),
            )
            for name, counts in told.histograms.items()
            if sum(counts.counts)
        }
    return {}


def number(value: object, default: float = 0.0) -> float:
    """Take a value of a file as a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def by_episode(events: Sequence[Event], name: str, amount: str | None = None) -> dict[str, Counter[int]]:
    """Add up ``tick`` events by the word in ``name`` (``rule``, ``cause``), then by episode; each one counts
    ``amount`` (a field), or as many as its line stands for.  Where the word is ``none`` it does not count."""
    found: dict[str, Counter[int]] = {}
    for event in events:
        word = event.fields.get(name)
        n = times(event.fields) if amount is None else int(number(event.fields.get(amount)))
        if event.kind == "tick" and isinstance(word, str) and word != "none" and n:
            found.setdefault(word, Counter())[int(number(event.fields.get("episode")))] += n
    return found
