"""View of a run, live or finished: its folder and, while it is live, its shared memory.

Used by ``onrig watch``, the live page and the report. Missing or damaged parts of a folder are skipped without an
error.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import MAX_JSON_BYTES, MAX_TABLE_BYTES, LineTail, open_file, read_fields, read_file
from onrig.runtime.histogram import BINS_PER_OCTAVE, N_COARSE_BINS, CoarseHistogram
from onrig.runtime.replay.accounts.figures import FILE as TIMING
from onrig.runtime.replay.accounts.figures import Counts, Timing
from onrig.runtime.run_config import RunConfig, capacity_of, layout_of
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.episodes import COLUMNS, EpisodeRow, parse_row, read_rows
from onrig.runtime.run_state.running import Running, find_running
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.runtime.view.reader import ViewReader
from onrig.runtime.view.sentences import Event, parse_event

if TYPE_CHECKING:
    from onrig.runtime.replay.experiences import Memory

Fields = Mapping[str, object]
Values = NDArray[np.float64]
Columns = Mapping[str, Values]
"""Episodes by the columns of ``episodes.csv``, each (n,)."""

_MAX_MEMORY_BYTES: Final = 2 << 30


class RunView:
    """View of one run; a context manager that releases the shared memory."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder, self.config = folder.resolve(), config
        self.running: Running | None = None
        self.live: ViewReader | None = None
        """Reader of the run's shared memory while attached."""
        self.rewind()

    @classmethod
    def from_running(cls, running: Running) -> RunView:
        """Return the view of a run in progress; raises SegmentError, or ConfigError if its folder is damaged."""
        running.trust_files()
        view = cls(running.folder, load_resolved(running.folder / "config.yaml"))
        view.attach(running)
        return view

    def __enter__(self) -> RunView:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    # -- live run --------------------------------------------------------------------------------------------------

    def find_running(self) -> Running | None:
        """Find the run in shared memory; None before its start and after its end."""
        return find_running(self.folder)

    def attach(self, running: Running) -> None:
        """Map a run's shared memory; raises SegmentError if the run has ended, or belongs to another version."""
        self.live, self.running = ViewReader(running.shm, self.config), running

    def detach(self) -> None:
        """Release the shared memory."""
        if self.live is not None:
            self.live.close()
        self.live = self.running = None

    def word(self, word: Word) -> int:
        """Return a word of the board; 0 once the run is over."""
        return self.live.word(word) if self.live is not None else 0

    @property
    def state(self) -> State | None:
        """State of the loop; None if unknown."""
        state = self.word(Word.STATE)
        return State(state) if self.live is not None and state in set(State) else None

    # -- growing files ---------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Read the files from the start again; a resumed run may have truncated them to its checkpoint."""
        self._episodes = LineTail(self.folder / "episodes.csv")
        self._events = LineTail(self.folder / "events.jsonl")

    def episodes(self) -> list[EpisodeRow]:
        """Return the episodes since the last call."""
        return [row for line in self._episodes.lines() if (row := parse_row(line)) is not None]

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        return [event for line in self._events.lines() if (event := parse_event(line)) is not None]

    # -- final files -----------------------------------------------------------------------------------------------

    @property
    def summary(self) -> Fields:
        """Content of ``summary.json``; empty before the end of the run."""
        return read_fields(self.folder / "summary.json")

    def histograms(self) -> dict[str, CoarseHistogram]:
        """Return the histograms of all ticks: ``tick``, its stages, and ``lateness`` in real time."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            content = msgspec.json.decode(read_file(self.folder / TIMING, MAX_JSON_BYTES), type=Timing).histograms
            return {name: _histogram(h) for name, h in content.items() if _is_valid(h)}
        return {}

    def memory(self, max_bytes: int = _MAX_MEMORY_BYTES) -> Memory | str:
        """Restore the memory from the newest valid checkpoint, or return the reason for its absence."""
        from onrig.runtime.replay.checkpoint.blocks import CheckpointError
        from onrig.runtime.replay.checkpoint.manifest import identity_of
        from onrig.runtime.replay.checkpoint.restore import restore
        from onrig.runtime.replay.experiences import Memory

        if capacity_of(self.config) * layout_of(self.config).row_bytes > max_bytes:
            return "it is too large to restore"
        if not (self.folder / "buffer").is_dir():
            return "it has no checkpoint"
        try:
            memory = Memory(self.config)
            checkpoint = restore(self.folder / "buffer", memory, identity_of(memory, self.config.seed))
        except (CheckpointError, OSError) as error:
            return f"the checkpoint cannot be read: {error}"
        return memory if checkpoint is not None and memory.storage.stored else "it has no checkpoint"


class RunFiles(NamedTuple):
    """Content of a run folder, read in one pass; excludes the memory and the policies."""

    folder: Path
    config: RunConfig
    summary: Fields
    meta: Fields
    train: Columns
    evaluation: Columns
    events: Sequence[Event]
    timing: Mapping[str, CoarseHistogram]
    unusable: Mapping[str, str] = MappingProxyType({})
    """Reasons why existing files could not be read, keyed by file name."""

    def section(self, key: str) -> Fields:
        """Return a section of the summary; empty if it is missing."""
        section = self.summary.get(key)
        return section if isinstance(section, dict) else {}

    def events_of_kind(self, *kinds: str) -> list[Event]:
        """Return the events of the given kinds."""
        return [e for e in self.events if e.kind in kinds]


def read_run(folder: Path, config: RunConfig) -> RunFiles:
    """Read a run folder; the run may still be in progress."""
    view = RunView(folder, config)
    episodes = read_episodes(folder)
    return RunFiles(
        folder,
        config,
        view.summary,
        read_fields(folder / "meta.json"),
        episode_columns(episodes, "train"),
        episode_columns(episodes, "eval"),
        [event for line in _lines(folder / "events.jsonl") if (event := parse_event(line)) is not None],
        view.histograms(),
        dict(_unreadable_files(folder)),
    )


def _unreadable_files(folder: Path) -> Iterator[tuple[str, str]]:
    for name in ("summary.json", "meta.json", TIMING, "episodes.csv", "events.jsonl"):
        path = folder / name
        try:
            if name == "episodes.csv":
                read_rows(path)
            elif name == "events.jsonl":
                lines = read_file(path, MAX_TABLE_BYTES).split(b"\n")[:-1]  # the last one may be incomplete
                if not all(map(parse_event, lines)):
                    yield name, "some lines are not events"
            else:
                msgspec.json.decode(read_file(path, MAX_JSON_BYTES), type=dict[str, object])
        except FileNotFoundError:
            continue
        except OSError as error:
            yield name, error.strerror or str(error)
        except (ValueError, RecursionError) as error:
            yield name, str(error).removeprefix(f"{path}:")


def read_episodes(folder: Path) -> list[EpisodeRow]:
    """Read ``episodes.csv``, omitting a truncated last line."""
    return [row for line in _lines(folder / "episodes.csv") if (row := parse_row(line)) is not None]


def episode_columns(episodes: Sequence[EpisodeRow], kind: str) -> Columns:
    """Return the episodes of one kind that had any steps, as columns."""
    rows = [
        [float(v) if isinstance(v, int | float) else np.nan for v in e] for e in episodes if e.kind == kind and e.steps
    ]
    values = np.array(rows, np.float64).reshape(-1, len(COLUMNS))
    return {name: values[:, i] for i, name in enumerate(COLUMNS)}


def to_number(value: object, default: float = 0.0) -> float:
    """Convert a value read from a file to a number; return ``default`` if it is not one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def count_by_episode(events: Sequence[Event], name: str, amount: str | None = None) -> dict[str, Counter[int]]:
    """Add up ``tick`` events by the word in their field ``name`` (``rule`` or ``cause``), then by episode. An event
    counts as often as the field called ``amount`` states or, if ``amount`` is None, as often as it occurred; events
    with the word ``none`` do not count."""
    counters: dict[str, Counter[int]] = {}
    for event in events:
        word = event.fields.get(name)
        n = event.n_occurrences if amount is None else int(to_number(event.fields.get(amount)))
        if event.kind == "tick" and isinstance(word, str) and word != "none" and n:
            counters.setdefault(word, Counter())[int(to_number(event.fields.get("episode")))] += n
    return counters


def _lines(path: Path) -> Iterator[bytes]:
    with contextlib.suppress(OSError), open_file(path, MAX_TABLE_BYTES) as file:
        yield from file


def _is_valid(counts: Counts) -> bool:
    return 0 <= counts.first <= N_COARSE_BINS - len(counts.counts) and sum(counts.counts) > 0


def _histogram(counts: Counts) -> CoarseHistogram:
    bins = np.zeros(N_COARSE_BINS, np.int64)
    last_bin = counts.first + len(counts.counts)
    bins[counts.first : last_bin] = counts.counts
    return CoarseHistogram(bins, math.ceil(2.0 ** (last_bin / BINS_PER_OCTAVE)))
