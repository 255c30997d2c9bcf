"""Finds out what is new of a run and puts it into messages for the page: shared memory while it lives, its folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.run_config import RunConfig, Scaled
from onrig.runtime.run_state.actuators import SAFE, UNTOUCHED, Actuators
from onrig.runtime.run_state.running import Running, SegmentError, running_rigs
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.runtime.view.reader import Figures, ViewReader
from onrig.runtime.view.tail import Tail
from onrig.tools.web.about import about
from onrig.tools.web.coverage import pack_sample
from onrig.tools.web.curve import Curve
from onrig.tools.web.hub import Message
from onrig.tools.web.motion import Motion
from onrig.tools.web.stored import stored_sample
from onrig.tools.web.story import Story
from onrig.tools.web.timing import kept_histograms, plain_figures

MOTION_S: Final = 0.05
_STATUS_S: Final = 0.25
_FIGURES_S: Final = 1.0
_FILES_S: Final = 0.5
_LOOK_S: Final = 1.0
_CLIP_PAUSE_S: Final = 1.0
_AT_ONCE: Final = 2000
"""Records per look at most: four seconds at 500 Hz."""
_LOOKS_AT_END: Final = 100
_RECENT: Final = 8192
_FAST: Final = 3.0
"""Device time that runs faster than so many times real time is shown an episode at a time."""


class Producer:
    """The state of one run as the page sees it; ``turn`` is to be called some twenty times a second."""

    def __init__(self, config: RunConfig, folder: Path, *, awaited: bool = False) -> None:
        """``awaited``: the run is about to begin, whatever an earlier one has left in its folder."""
        self._awaited = awaited
        self._config, self._folder = config, folder.resolve()
        self._about = about(config, self._folder)
        self._open_files()
        self._motion = Motion(config)
        pace = config.device.pace
        self._in_clips = config.lockstep or (isinstance(pace, Scaled) and pace.scaled > _FAST)
        self.running: Running | None = None
        """The run while it lives."""
        self._reader: ViewReader | None = None
        self._ended = False
        self._asked_ns = 0
        self._seen = 0
        self._due = dict.fromkeys(("status", "figures", "files", "look", "clip"), -1e9)
        self._latest: dict[str, Message] = {}
        self._sample_version = 0
        self._amplitude: float | None = None

    def _open_files(self) -> None:
        self._curve, self._story = Curve(), Story()
        self._episodes = Tail(self._folder / "episodes.csv")
        self._events = Tail(self._folder / "events.jsonl")

    # -- for the hub -----------------------------------------------------------------------------------------------

    def story_so_far(self) -> Iterator[Message]:
        """Everything a page that opens now needs."""
        yield Message("about", self._about)
        yield self._status()
        yield Message("episodes", {"whole": True, "merged": self._curve.merged, "rows": self._curve.rows})
        yield Message("story", {"items": self._story.items, "policies": self._story.policies})
        yield from (self._latest[kind] for kind in ("figures", "memory", "clip") if kind in self._latest)
        if self._reader is not None and not self._in_clips:
            recent = self._motion.recent(self._reader.records(0, _RECENT)[1])
            if recent is not None:
                yield Message("motion", recent)
        if self._ended:
            yield self._farewell()

    def turn(self, now_s: float) -> Iterator[Message]:
        """What has come since the last call (``now_s``: host monotonic)."""
        if self._is_due("look", now_s, _LOOK_S):
            yield from self._look()
        if self._is_due("files", now_s, _FILES_S):
            yield from self._files()
        reader = self._reader
        if reader is None:
            return
        yield from self._moving(reader, now_s)
        if self._is_due("status", now_s, _STATUS_S):
            yield self._status()
        if self._is_due("figures", now_s, _FIGURES_S):
            reader.keep_sampling()
            figures = reader.figures()
            if figures is not None:
                yield self._note(Message("figures", plain_figures(figures)))
            yield from self._memory(reader, figures)

    def _is_due(self, what: str, now_s: float, every_s: float) -> bool:
        if now_s - self._due[what] < every_s:
            return False
        self._due[what] = now_s
        return True

    def _note(self, message: Message) -> Message:
        self._latest[message.kind] = message
        return message

    # -- the run ---------------------------------------------------------------------------------------------------

    def _look(self) -> Iterator[Message]:
        """Find the run in shared memory, or notice that it has left it."""
        if self._reader is not None:
            if self.find() != self.running:  # over, or its supervisor was killed
                yield from self._leave()
            return
        found = self.find()
        if found is None:
            if not self._ended and not self._awaited and (self._folder / "summary.json").exists():
                yield from self._leave()
            return
        with contextlib.suppress(SegmentError):
            self._reader = ViewReader(found.shm, self._config)
            if self._ended:  # it was resumed, and may have cut what came after its checkpoint
                self._open_files()
                self._latest.clear()
            self.running, self._ended, self._awaited = found, False, False
            yield self._status()

    def find(self) -> Running | None:
        """The run in shared memory; None before it has begun and once it is over."""
        return next((r for r in running_rigs() if r.folder == self._folder), None)

    def _leave(self) -> Iterator[Message]:
        self.close()
        self._ended = True
        for _ in range(_LOOKS_AT_END):
            news = list(self._files())
            if not news:
                break
            yield from news
        yield from self._last_memory()
        yield self._status()
        yield self._farewell()

    def _last_memory(self) -> Iterator[Message]:
        """What a run that is over kept, if nobody has seen it before."""
        if "memory" in self._latest:
            return
        found = stored_sample(self._config, self._folder)
        if found is not None:
            packed = pack_sample(found.sample, found.inserted)
            yield self._note(Message("memory", {**packed, "stored": found.stored, "capacity": found.capacity}))

    def close(self) -> None:
        """Let go of the run's memory."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self.running = None

    def farewell(self) -> Iterator[Message]:
        """The last words, once the run is over."""
        if not self._ended:
            yield from self._leave()

    def _status(self) -> Message:
        reader = self._reader
        if reader is None:
            return Message("status", {"phase": "ended" if self._ended else "starting"})
        state = reader.word(Word.STATE)
        stopping = reader.word(Word.STOP) > 0 or reader.word(Word.STOP_OUTSIDE) > 0
        return Message(
            "status",
            {
                "phase": "running",
                "state": State(state).name.lower() if state in set(State) else "unknown",
                "episode": reader.word(Word.EPISODE),
                "tick": reader.word(Word.TICK),
                "missed": reader.word(Word.MISSED),
                "policy": reader.word(Word.POLICY),
                "realtime": bool(reader.word(Word.REALTIME)),
                "amplitude": self._amplitude,
                "stopping": stopping,
                "actuators": self._actuators(reader.actuators, stopping=stopping),
            },
        )

    def asked(self, now_ns: int) -> None:
        """A stop was asked for: what frames say from now on (host monotonic) tells whether the actuators are safe."""
        self._asked_ns = self._asked_ns or now_ns

    def _actuators(self, actuators: Actuators, *, stopping: bool) -> str | None:
        """What is known of them while the run stops; None before."""
        if not stopping:
            self._asked_ns = 0
            return None
        now_ns = time.monotonic_ns()
        self.asked(now_ns)  # by somebody else: what was received before this look proves nothing
        if actuators.shown_safe(self._asked_ns):
            return SAFE
        return UNTOUCHED if actuators.untouched else actuators.unconfirmed(now_ns, time.time())

    def _farewell(self) -> Message:
        summary: dict[str, object] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):
            summary = msgspec.json.decode((self._folder / "summary.json").read_bytes(), type=dict[str, object])
        return Message(
            "ended",
            {"reason": summary.get("exit_reason"), "summary": summary, "histograms": kept_histograms(self._folder)},
        )

    # -- what changes ----------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[Message]:
        lines = self._episodes.lines()
        if lines:
            fresh = self._curve.take(lines)
            rows = self._curve.rows if fresh is None else fresh
            yield Message("episodes", {"whole": fresh is None, "merged": self._curve.merged, "rows": rows})
        items, policies = self._story.take(self._events.lines())
        if items or policies:
            yield Message("story", {"items": items, "policies": policies})

    def _moving(self, reader: ViewReader, now_s: float) -> Iterator[Message]:
        if self._in_clips:
            if now_s < self._due["clip"]:
                return
            _, records = reader.records(0, _RECENT)
            clip = self._motion.clip(records)
            self._due["clip"] = now_s + _CLIP_PAUSE_S
            if clip is not None:
                times = clip["t"]
                self._due["clip"] += float(times[-1]) if isinstance(times, list) else 0.0
                self._read_amplitude(records)
                yield self._note(Message("clip", clip))
            return
        first = self._seen == 0
        self._seen, records = reader.records(self._seen, 1 if first else _AT_ONCE)
        samples = self._motion.live(records)
        if samples is not None and not first:
            self._read_amplitude(records)
            yield Message("motion", samples)

    def _read_amplitude(self, records: NDArray[np.void]) -> None:
        exploring = records[records["kind"] == 0]
        if len(exploring):
            self._amplitude = float(f"{float(exploring[-50:]['amplitude'].max()):.4g}")

    def _memory(self, reader: ViewReader, figures: Figures | None) -> Iterator[Message]:
        version = reader.sample_version
        if figures is None or version == self._sample_version:
            return
        sample = reader.sample()
        if sample is None:
            return
        self._sample_version = version
        # The sample may be newer than the figures: more must not be shown than is said to be there.
        newest = int(sample["number"].max(initial=0))
        stored = min(max(figures.stored, len(sample), figures.stored + newest - figures.inserted), figures.capacity)
        packed = pack_sample(sample, max(figures.inserted, newest))
        yield self._note(Message("memory", {**packed, "stored": stored, "capacity": figures.capacity}))
