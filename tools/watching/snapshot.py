"""Snapshot of a run for ``onrig watch``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import CoarseHistogram
from onrig.runtime.record import Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.actuators import Actuators
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.runtime.view.run_view import RunView
from onrig.runtime.view.sentences import Event, event_text, with_count
from onrig.tools.run_facts import RunFacts, facts_from_counters

_MAX_RECORDS: Final = 400
"""Maximum number of new records that a snapshot reads."""
_RATE_WINDOW_S: Final = 3.0
_MAX_EVENTS: Final = 50
_MAX_EPISODES: Final = 20_000


class EventLine(NamedTuple):
    """One event as a line of text."""

    clock: str
    """HH:MM:SS, local time."""
    text: str
    level: str
    """``note``, ``good``, ``warn`` or ``bad``."""


class LastStep(NamedTuple):
    """Last step record, in SI units and in the rig's order."""

    observation: Sequence[float]
    commanded: Sequence[float]
    amplitude: float
    exploration: float
    rule: Rule


class Snapshot(NamedTuple):
    """Data shown on the screen."""

    config: RunConfig
    folder: Path
    state: State
    episode: int
    tick: int
    rate_hz: float | None
    """Ticks per second of wall-clock time, over the last few seconds."""
    policy: int
    last_step: LastStep | None
    train: Sequence[float]
    """Scores by episode (``onrig.runtime.scoring.measure_of``)."""
    evaluation: Sequence[float]
    facts: RunFacts | None
    """Facts about the run; None until the replay process has written its first figures."""
    durations: tuple[CoarseHistogram, CoarseHistogram] | None
    """Histograms of tick durations and lateness."""
    events: Sequence[EventLine]
    """Events, newest last."""
    actuators: str
    """State of the actuators in a few words."""


class Watcher:
    """Source of snapshots of a running rig."""

    def __init__(self, view: RunView) -> None:
        """Read from ``view``, which must be attached to the run."""
        self._view = view
        self._record_position = 0
        self._read_last_step: LastStep | None = None
        self._train: deque[float] = deque(maxlen=_MAX_EPISODES)
        self._evaluation: deque[float] = deque(maxlen=_MAX_EPISODES)
        self._events: deque[EventLine] = deque(maxlen=_MAX_EVENTS)
        self._ticks: deque[tuple[float, int]] = deque()

    def snapshot(self) -> Snapshot:
        """Read the new data and return a snapshot."""
        view, live = self._view, self._view.live
        if live is None:
            raise RuntimeError("the view must be attached")
        self._record_position, records = live.records(self._record_position, _MAX_RECORDS)
        if len(records):
            self._read_last_step = _read_last_step(records)
        for episode in view.episodes():
            (self._train if episode.kind == "train" else self._evaluation).append(episode.score)
        self._events += [line for e in view.events() if (line := event_line(e)) is not None]
        tick, policy, figures = view.word(Word.TICK), view.word(Word.POLICY), live.figures()
        actuators, withdrawn = _actuators(live.actuators), bool(view.word(Word.PROMISE_WITHDRAWN))
        return Snapshot(
            view.config,
            view.folder,
            view.state or State.DISCONNECTED,
            view.word(Word.EPISODE),
            tick,
            self._rate_hz(tick),
            policy,
            self._read_last_step,
            tuple(self._train),
            tuple(self._evaluation),
            None
            if figures is None
            else facts_from_counters(view.config, figures, policy, actuators, withdrawn=withdrawn),
            None if figures is None else (figures.tick, figures.lateness),
            tuple(self._events),
            actuators,
        )

    def _rate_hz(self, tick: int) -> float | None:
        now = time.monotonic()
        self._ticks.append((now, tick))
        while now - self._ticks[0][0] > _RATE_WINDOW_S:
            self._ticks.popleft()
        elapsed_s = now - self._ticks[0][0]
        return (tick - self._ticks[0][1]) / elapsed_s if elapsed_s > 0.5 else None


def event_line(event: Event) -> EventLine | None:
    """Return an event as a line of text, or None if it is unimportant."""
    text = event_text(event)
    if text is None:
        return None
    clock = time.strftime("%H:%M:%S", time.localtime(event.t_unix_s))
    return EventLine(clock, with_count(event, text.text), text.level)


def _actuators(actuators: Actuators) -> str:
    """Describe the actuators in a few words; they are *safe* if the device's newest frame shows it."""
    if actuators.safe_ns:
        return "confirmed safe"
    return "not used yet" if actuators.is_unused else "not confirmed safe"


def _read_last_step(records: NDArray[np.void]) -> LastStep:
    last_record = records[-1]
    shielded_records = records[records["rule"] != Rule.NONE]
    return LastStep(
        last_record["observation"].tolist(),
        last_record["commanded"].tolist(),
        float(last_record["amplitude"].max()),
        float(last_record["exploration"]),
        # Show the last rule that acted, because a rule that acts in a single tick would otherwise rarely be visible.
        Rule(int(shielded_records[-1]["rule"])) if len(shielded_records) else Rule.NONE,
    )
