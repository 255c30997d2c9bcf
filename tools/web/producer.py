"""Changes of a run, as messages for its page."""

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
from onrig.tools.run_facts import LAST, PERCENTILES, RunFacts, of_figures, of_summary, times_of
from onrig.tools.web.about import about
from onrig.tools.web.connections import Message
from onrig.tools.web.coverage import pack_sample, stored_memory
from onrig.tools.web.history import Curve, Motion, Story, stored_clip

MOTION_S: Final = 0.05
_STATUS_S: Final = 0.25
_FIGURES_S: Final = 1.0
_FILES_S: Final = 0.5
_LOOK_S: Final = 1.0
_CLIP_PAUSE_S: Final = 1.0
_AT_ONCE: Final = 2000
"""Records per look at most: four seconds at 500 Hz."""
_LOOKS_AT_END: Final = 100
_ABSENT_S: Final = 60.0
"""Without a sign of the run, it is taken to be over: longer than one that resumes waits for its predecessor's end."""
_RECENT: Final = 8192
_FAST: Final = 3.0
"""Device time that runs faster than so many times real time is shown an episode at a time."""


class Producer:
    """One run as its page sees it; ``turn`` is called some twenty times a second."""

    def __init__(self, config: RunConfig, folder: Path, *, awaited: bool = False) -> None:
        """``awaited``: the run is about to begin, whatever an earlier one has left in its folder."""
        self._awaited = awaited
        self._view = RunView(folder, config)
        self._about = about(config, self._view.folder)
        self._curve, self._story = Curve(), Story()
        self._scores: deque[float] = deque(maxlen=LAST)
        self._motion = Motion(config)
        pace = config.device.pace
        self._in_clips = config.lockstep or (isinstance(pace, Scaled) and pace.scaled > _FAST)
        self._ended = False
        self._sessions = 0
        self._retell = False
        self._looked_s: float | None = None
        self._asked_ns = 0
        self._seen = 0
        self._due = dict.fromkeys(("status", "figures", "files", "look", "clip"), -1e9)
        self._latest: dict[str, Message] = {}
        self._sample_version = 0
        self._amplitude: float | None = None

    @property
    def running(self) -> Running | None:
        """The run while it lives."""
        return self._view.running

    def find(self) -> Running | None:
        """The run in shared memory; None before it has begun and once it is over."""
        return self._view.find_running()

    def close(self) -> None:
        """Let go of the run's memory."""
        self._view.detach()

    # -- for the hub -----------------------------------------------------------------------------------------------

    def story_so_far(self) -> Iterator[Message]:
        """Everything that a page needs which opens now."""
        found = self.find()
        if found is not None and found != self.running:  # nobody was watching when it was resumed
            self._follow(found)
        yield from self._story_now()

    def _story_now(self) -> Iterator[Message]:
        yield Message("about", self._about)
        yield self._status()
        yield Message("episodes", {"whole": True, "merged": self._curve.merged, "rows": self._curve.rows})
        yield Message("story", {"items": self._story.items, "policies": self._story.policies})
        yield from (self._latest[kind] for kind in ("figures", "memory", "clip") if kind in self._latest)
        if self._view.live is not None and not self._in_clips:
            recent = self._motion.recent(self._view.live.records(0, _RECENT)[1])
            if recent is not None:
                yield Message("motion", recent)
        if self._ended:
            yield self._farewell()

    def turn(self, now_s: float) -> Iterator[Message]:
        """What has come since the last call (``now_s``: host monotonic)."""
        if self._is_due("look", now_s, _LOOK_S):
            yield from self._look(now_s)
        if self._is_due("files", now_s, _FILES_S):
            yield from self._files()
        if self._retell:
            self._retell = False
            yield from self._story_now()
        live = self._view.live
        if live is None:
            return
        yield from self._moving(live, now_s)
        if self._is_due("status", now_s, _STATUS_S):
            yield self._status()
        if self._is_due("figures", now_s, _FIGURES_S):
            live.keep_sampling()
            figures = live.figures()
            if figures is not None:
                view = self._view
                withdrawn = bool(view.word(Word.WITHDRAWN))
                live_facts = of_figures(view.config, figures, view.word(Word.POLICY), withdrawn=withdrawn)
                facts = self._evaluated(live_facts)
                yield self._note(Message("figures", {**plain_figures(figures), "words": facts.words()}))
            yield from self._memory(live, figures)

    def farewell(self) -> Iterator[Message]:
        """The last words, once the run is over; none where only the page ends."""
        if not self._ended and self.find() is None:
            yield from self._leave()

    def _is_due(self, what: str, now_s: float, every_s: float) -> bool:
        if now_s - self._due[what] < every_s:
            return False
        self._due[what] = now_s
        return True

    def _note(self, message: Message) -> Message:
        self._latest[message.kind] = message
        return message

    # -- the run ---------------------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> Iterator[Message]:
        """Find the run in shared memory, or notice that it has left it."""
        found = self.find()
        self._looked_s = now_s if self._looked_s is None else self._looked_s
        if found is not None and found != self.running:
            self._follow(found)
            yield self._status()
        elif found is None and not self._ended:
            absent = not self._awaited and now_s - self._looked_s >= _ABSENT_S  # killed before it wrote a summary
            if self._view.live is not None or absent or self._has_summary():
                yield from self._leave()

    def _has_summary(self) -> bool:
        return not self._awaited and (self._view.folder / "summary.json").exists()

    def _follow(self, found: Running) -> None:
        """Attach to the run's present session, whose ring counts from 0; it may have cut files to a checkpoint."""
        self.close()
        with contextlib.suppress(SegmentError):
            self._view.attach(found)
            if self._sessions or self._ended:
                self._view.rewind()
                self._curve, self._story = Curve(), Story()
                self._scores.clear()
                self._latest.clear()
                with contextlib.suppress(ConfigError):
                    self._about = about(load_resolved(self._view.folder / "config.yaml"), self._view.folder)
                self._retell = True  # to pages that saw the session before
            self._sessions += 1
            self._motion = Motion(self._view.config)
            self._seen = self._sample_version = self._asked_ns = 0
            self._amplitude = None
            self._ended = self._awaited = False

    def _leave(self) -> Iterator[Message]:
        self.close()
        self._ended = True
        for _ in range(_LOOKS_AT_END):
            news = list(self._files())
            if not news:
                break
            yield from news
        if "memory" not in self._latest:
            memory = stored_memory(self._view)
            if memory is not None:
                yield self._note(Message("memory", memory))
        clip = stored_clip(self._view)
        if clip is not None:
            yield self._note(Message("clip", clip))
        yield self._status()
        yield self._farewell()

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

    def asked(self, now_ns: int) -> None:
        """Note a stop: what frames say from now on (host monotonic) tells whether the actuators are safe."""
        self._asked_ns = self._asked_ns or now_ns

    def _actuators(self, actuators: Actuators, *, stopping: bool) -> str | None:
        """What is known of them while the run stops; None before."""
        if not stopping:
            self._asked_ns = 0
            return None
        now_ns = time.monotonic_ns()
        self.asked(now_ns)  # by somebody else: what was received before this look proves nothing
        if actuators.is_confirmed_safe(self._asked_ns):
            return SAFE_TEXT
        return UNUSED_TEXT if actuators.is_unused else actuators.unconfirmed_message(now_ns, time.time())

    def _farewell(self) -> Message:
        summary, histograms = self._view.summary, self._view.histograms()
        shown = {name: _binned(histograms[name]) for name in ("tick", "lateness") if name in histograms}
        words = self._evaluated(of_summary(self._view.config, summary)).words()
        return Message("ended", {"words": words, "summary": summary, "histograms": shown})

    def _evaluated(self, facts: RunFacts) -> RunFacts:
        return facts._replace(evaluated=sum(self._scores) / len(self._scores)) if self._scores else facts

    # -- what changes ----------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[Message]:
        episodes = self._view.episodes()
        if episodes:
            self._scores += [e.score for e in episodes if e.kind == "eval" and math.isfinite(e.score)]
            fresh = self._curve.take(episodes)
            rows = self._curve.rows if fresh is None else fresh
            yield Message("episodes", {"whole": fresh is None, "merged": self._curve.merged, "rows": rows})
        items, policies = self._story.take(self._view.events())
        if items or policies:
            yield Message("story", {"items": items, "policies": policies})

    def _moving(self, live: ViewReader, now_s: float) -> Iterator[Message]:
        if self._in_clips:
            if now_s < self._due["clip"]:
                return
            _, records = live.records(0, _RECENT)
            clip = self._motion.clip(records)
            self._due["clip"] = now_s + _CLIP_PAUSE_S
            if clip is not None:
                times = clip["t"]
                self._due["clip"] += float(times[-1]) if isinstance(times, list) else 0.0
                self._read_amplitude(records)
                yield self._note(Message("clip", clip))
            return
        first = self._seen == 0
        self._seen, records = live.records(self._seen, 1 if first else _AT_ONCE)
        samples = self._motion.live(records)
        if samples is not None and not first:
            self._read_amplitude(records)
            yield Message("motion", samples)

    def _read_amplitude(self, records: NDArray[np.void]) -> None:
        exploring = records[records["kind"] == 0]
        if len(exploring):
            self._amplitude = float(f"{float(exploring[-50:]['amplitude'].max()):.4g}")

    def _memory(self, live: ViewReader, figures: Figures | None) -> Iterator[Message]:
        version = live.sample_version
        if figures is None or version == self._sample_version:
            return
        sample = live.sample()
        if sample is None:
            return
        self._sample_version = version
        # The sample may be newer than the figures: more must not be shown than is said to be there.
        newest = int(sample["number"].max(initial=0))
        stored = min(max(figures.stored, len(sample), figures.stored + newest - figures.inserted), figures.capacity)
        packed = pack_sample(sample, max(figures.inserted, newest))
        yield self._note(Message("memory", {**packed, "stored": stored, "capacity": figures.capacity}))


def plain_figures(figures: Figures) -> dict[str, object]:
    """Figures as plain values, histograms (``tick_us``, ``lateness_us``) trimmed; None for what is no number."""
    plain = {k: v for k, v in figures._asdict().items() if not isinstance(v, CoarseHistogram)}
    if not np.isfinite(figures.updates_per_s):
        plain["updates_per_s"] = None
    return {**plain, "tick_us": _with_percentiles(figures.tick), "lateness_us": _with_percentiles(figures.lateness)}


def _binned(histogram: CoarseHistogram) -> dict[str, object]:
    """Counts from the first to the last bin that holds any."""
    filled = np.flatnonzero(histogram.counts)
    first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (0, -1)
    return {"first": first, "counts": histogram.counts[first : last + 1].tolist()}


def _with_percentiles(histogram: CoarseHistogram) -> dict[str, object]:
    return {**_binned(histogram), **dict.fromkeys(PERCENTILES), **times_of(histogram)}
