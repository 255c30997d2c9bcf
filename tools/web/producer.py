"""Messages to a run's page about the changes in the run."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.histogram import CoarseHistogram
from onrig.runtime.run_config import RunConfig, Scaled
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.actuators import SAFE_TEXT, UNUSED_TEXT, Actuators
from onrig.runtime.run_state.running import Running, SegmentError
from onrig.runtime.shm.board import Word
from onrig.runtime.view.reader import Figures, ViewReader
from onrig.runtime.view.run_view import RunView
from onrig.tools.run_facts import (
    N_AVERAGED_EPISODES,
    PERCENTILES,
    RunFacts,
    facts_from_counters,
    facts_from_summary,
    histogram_times,
)
from onrig.tools.web.about import about
from onrig.tools.web.connections import Message
from onrig.tools.web.coverage import pack_sample, stored_memory
from onrig.tools.web.history import EpisodeHistory, EventHistory, Motion, stored_clip

MOTION_S: Final = 0.05
_STATUS_S: Final = 0.25
_FIGURES_S: Final = 1.0
_FILES_S: Final = 0.5
_POLL_S: Final = 1.0
_CLIP_PAUSE_S: Final = 1.0
_MAX_RECORDS: Final = 2000
"""Maximum number of records per call: four seconds at 500 Hz."""
_FINAL_POLLS: Final = 100
_ABSENCE_S: Final = 60.0
"""Time without the run's shared memory after which the run counts as ended. A run that is being resumed waits less than
this for its predecessor to end."""
_RECENT_RECORDS: Final = 8192
_MAX_LIVE_PACE: Final = 3.0
"""Pace of device time above which the page shows motion as clips of complete episodes."""


class Producer:
    """Source of a run's messages; ``updates`` is called about twenty times a second."""

    def __init__(self, config: RunConfig, folder: Path, *, starting: bool = False) -> None:
        """Describe the run; if it is ``starting``, an earlier run's files in the folder do not count as its end."""
        self._starting = starting
        self._view = RunView(folder, config)
        self._about = about(config, self._view.folder)
        self._episodes, self._events = EpisodeHistory(), EventHistory()
        self._scores: deque[float] = deque(maxlen=N_AVERAGED_EPISODES)
        self._motion = Motion(config)
        pace = config.device.pace
        self._shows_clips = config.lockstep or (isinstance(pace, Scaled) and pace.scaled > _MAX_LIVE_PACE)
        self._ended = False
        self._sessions = 0
        self._resend = False
        self._first_poll_s: float | None = None
        self._stop_requested_ns = 0
        self._next_record = 0
        self._due = dict.fromkeys(("run", "status", "figures", "files", "clip"), -1e9)
        self._latest: dict[str, Message] = {}
        self._sample_version = 0
        self._amplitude: float | None = None

    @property
    def running(self) -> Running | None:
        """The attached run, or None if it has not begun or has ended."""
        return self._view.running

    def find(self) -> Running | None:
        """Find the run in shared memory, or return None if it has not begun or has ended."""
        return self._view.find_running()

    def close(self) -> None:
        """Release the run's shared memory."""
        self._view.detach()

    def snapshot(self) -> Iterator[Message]:
        """Yield the complete state for a page that opens now."""
        run = self.find()
        if run is not None and run != self.running:  # the run was resumed while no page was open
            self._attach(run)
        yield from self._snapshot()

    def _snapshot(self) -> Iterator[Message]:
        yield Message("about", self._about)
        yield self._status()
        yield Message("episodes", {"complete": True, "merged": self._episodes.merged, "rows": self._episodes.rows})
        yield Message("events", {"items": self._events.items, "policies": self._events.policies})
        yield from (self._latest[kind] for kind in ("figures", "memory", "clip") if kind in self._latest)
        if self._view.live is not None and not self._shows_clips:
            recent = self._motion.recent(self._view.live.records(0, _RECENT_RECORDS)[1])
            if recent is not None:
                yield Message("motion", recent)
        if self._ended:
            yield self._ended_message()

    def updates(self, now_s: float) -> Iterator[Message]:
        """Yield the changes since the last call; ``now_s`` is the host's monotonic time."""
        if self._is_due("run", now_s, _POLL_S):
            yield from self._poll_run(now_s)
        if self._is_due("files", now_s, _FILES_S):
            yield from self._read_files()
        if self._resend:
            self._resend = False
            yield from self._snapshot()
        live = self._view.live
        if live is None:
            return
        yield from self._read_motion(live, now_s)
        if self._is_due("status", now_s, _STATUS_S):
            yield self._status()
        if self._is_due("figures", now_s, _FIGURES_S):
            live.keep_sampling()
            figures = live.figures()
            if figures is not None:
                view = self._view
                withdrawn = bool(view.word(Word.PROMISE_WITHDRAWN))
                live_facts = facts_from_counters(view.config, figures, view.word(Word.POLICY), withdrawn=withdrawn)
                facts = self._evaluated(live_facts)
                yield self._remember(Message("figures", {**figures_message(figures), "words": facts.words()}))
            yield from self._read_memory(live, figures)

    def final_messages(self) -> Iterator[Message]:
        """Yield the messages about the end of the run, or none if only the page ends."""
        if not self._ended and self.find() is None:
            yield from self._end()

    def _is_due(self, task: str, now_s: float, interval_s: float) -> bool:
        if now_s - self._due[task] < interval_s:
            return False
        self._due[task] = now_s
        return True

    def _remember(self, message: Message) -> Message:
        self._latest[message.kind] = message
        return message

    def _poll_run(self, now_s: float) -> Iterator[Message]:
        """Attach to a run that has begun, and detach from one that has ended."""
        run = self.find()
        self._first_poll_s = now_s if self._first_poll_s is None else self._first_poll_s
        if run is not None and run != self.running:
            self._attach(run)
            yield self._status()
        elif run is None and not self._ended:
            is_absent = (
                not self._starting and now_s - self._first_poll_s >= _ABSENCE_S
            )  # killed before it wrote a summary
            if self._view.live is not None or is_absent or self._has_summary():
                yield from self._end()

    def _has_summary(self) -> bool:
        return not self._starting and (self._view.folder / "summary.json").exists()

    def _attach(self, run: Running) -> None:
        """Attach to the run's current session.

        The session's ring counts from 0, and its files may have been truncated to a checkpoint.
        """
        self.close()
        with contextlib.suppress(SegmentError):
            self._view.attach(run)
            if self._sessions or self._ended:
                self._view.rewind()
                self._episodes, self._events = EpisodeHistory(), EventHistory()
                self._scores.clear()
                self._latest.clear()
                with contextlib.suppress(ConfigError):
                    self._about = about(load_resolved(self._view.folder / "config.yaml"), self._view.folder)
                self._resend = True  # for pages that show the previous session
            self._sessions += 1
            self._motion = Motion(self._view.config)
            self._next_record = self._sample_version = self._stop_requested_ns = 0
            self._amplitude = None
            self._ended = self._starting = False

    def _end(self) -> Iterator[Message]:
        self.close()
        self._ended = True
        for _ in range(_FINAL_POLLS):
            messages = list(self._read_files())
            if not messages:
                break
            yield from messages
        if "memory" not in self._latest:
            memory = stored_memory(self._view)
            if memory is not None:
                yield self._remember(Message("memory", memory))
        clip = stored_clip(self._view)
        if clip is not None:
            yield self._remember(Message("clip", clip))
        yield self._status()
        yield self._ended_message()

    def _status(self) -> Message:
        view, live = self._view, self._view.live
        if live is None:
            return Message("status", {"phase": "ended" if self._ended else "starting"})
        stopping = view.word(Word.STOP) > 0 or view.word(Word.STOP_OUTSIDE) > 0
        state = view.state
        return Message(
            "status",
            {
                "phase": "running",
                "state": state.name.lower() if state is not None else "unknown",
                "episode": view.word(Word.EPISODE),
                "tick": view.word(Word.TICK),
                "missed": view.word(Word.MISSED),
                "policy": view.word(Word.POLICY),
                "realtime": bool(view.word(Word.REALTIME)),
                "amplitude": self._amplitude,
                "stopping": stopping,
                "actuators": self._actuators(live.actuators, stopping=stopping),
            },
        )

    def note_stop(self, now_ns: int) -> None:
        """Note the time of a stop (host monotonic): only later frames can confirm that the actuators are safe."""
        self._stop_requested_ns = self._stop_requested_ns or now_ns

    def _actuators(self, actuators: Actuators, *, stopping: bool) -> str | None:
        """Return the state of the actuators while the run is stopping, else None."""
        if not stopping:
            self._stop_requested_ns = 0
            return None
        now_ns = time.monotonic_ns()
        self.note_stop(now_ns)  # if the stop came from elsewhere, frames received earlier do not confirm it
        if actuators.is_confirmed_safe(self._stop_requested_ns):
            return SAFE_TEXT
        return UNUSED_TEXT if actuators.is_unused else actuators.unconfirmed_message(now_ns, time.time())

    def _ended_message(self) -> Message:
        summary, histograms = self._view.summary, self._view.histograms()
        trimmed_histograms = {
            name: _trim_histogram(histograms[name]) for name in ("tick", "lateness") if name in histograms
        }
        words = self._evaluated(facts_from_summary(self._view.config, summary)).words()
        return Message("ended", {"words": words, "summary": summary, "histograms": trimmed_histograms})

    def _evaluated(self, facts: RunFacts) -> RunFacts:
        return facts._replace(evaluated=sum(self._scores) / len(self._scores)) if self._scores else facts

    def _read_files(self) -> Iterator[Message]:
        episodes = self._view.episodes()
        if episodes:
            self._scores += [e.score for e in episodes if e.kind == "eval" and math.isfinite(e.score)]
            new_rows = self._episodes.add(episodes)
            rows = self._episodes.rows if new_rows is None else new_rows
            yield Message("episodes", {"complete": new_rows is None, "merged": self._episodes.merged, "rows": rows})
        items, policies = self._events.add(self._view.events())
        if items or policies:
            yield Message("events", {"items": items, "policies": policies})

    def _read_motion(self, live: ViewReader, now_s: float) -> Iterator[Message]:
        if self._shows_clips:
            if now_s < self._due["clip"]:
                return
            _, records = live.records(0, _RECENT_RECORDS)
            clip = self._motion.clip(records)
            self._due["clip"] = now_s + _CLIP_PAUSE_S
            if clip is not None:
                times = clip["t"]
                self._due["clip"] += float(times[-1]) if isinstance(times, list) else 0.0
                self._read_amplitude(records)
                yield self._remember(Message("clip", clip))
            return
        first = self._next_record == 0
        self._next_record, records = live.records(self._next_record, 1 if first else _MAX_RECORDS)
        samples = self._motion.live(records)
        if samples is not None and not first:
            self._read_amplitude(records)
            yield Message("motion", samples)

    def _read_amplitude(self, records: NDArray[np.void]) -> None:
        training_records = records[records["kind"] == 0]
        if len(training_records):
            self._amplitude = float(f"{float(training_records[-50:]['amplitude'].max()):.4g}")

    def _read_memory(self, live: ViewReader, figures: Figures | None) -> Iterator[Message]:
        version = live.sample_version
        if figures is None or version == self._sample_version:
            return
        sample = live.sample()
        if sample is None:
            return
        self._sample_version = version
        # The sample may be newer than the figures; "shown" must not exceed "stored".
        newest_number = int(sample["number"].max(initial=0))
        n_stored = min(
            max(figures.stored, len(sample), figures.stored + newest_number - figures.inserted), figures.capacity
        )
        packed_sample = pack_sample(sample, max(figures.inserted, newest_number))
        yield self._remember(Message("memory", {**packed_sample, "stored": n_stored, "capacity": figures.capacity}))


def figures_message(figures: Figures) -> dict[str, object]:
    """Return figures as plain values, with trimmed histograms (``tick_us``, ``lateness_us``).

    ``updates_per_s`` is None if it is not finite.
    """
    values = {k: v for k, v in figures._asdict().items() if not isinstance(v, CoarseHistogram)}
    if not np.isfinite(figures.updates_per_s):
        values["updates_per_s"] = None
    return {**values, "tick_us": _histogram_data(figures.tick), "lateness_us": _histogram_data(figures.lateness)}


def _trim_histogram(histogram: CoarseHistogram) -> dict[str, object]:
    """Return the counts from the first to the last non-empty bin."""
    nonzero = np.flatnonzero(histogram.counts)
    first, last = (int(nonzero[0]), int(nonzero[-1])) if len(nonzero) else (0, -1)
    return {"first": first, "counts": histogram.counts[first : last + 1].tolist()}


def _histogram_data(histogram: CoarseHistogram) -> dict[str, object]:
    return {**_trim_histogram(histogram), **dict.fromkeys(PERCENTILES), **histogram_times(histogram)}
