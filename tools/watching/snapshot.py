"""What is known of a run in this moment, collected from shared memory and from the files of its folder."""

from __future__ import annotations

import csv
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.record import Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.actuators import Actuators
from onrig.runtime.run_state.episodes import COLUMNS
from onrig.runtime.run_state.event_kinds import COUNT, times
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.runtime.view.reader import Figures, ViewReader
from onrig.runtime.view.tail import Tail

_RECENT: Final = 400
"""Records looked at in one go: what came since the last look, as far as it is worth a look."""
_RATE_OVER_S: Final = 3.0
_EVENTS: Final = 50
_EPISODES: Final = 20_000
_QUIET: Final = frozenset({"policy_admitted", "policy_warning", "policy_probation_passed"})
_TRANSITION: Final = "transition"


class Happened(NamedTuple):
    """One event, in a line."""

    clock: str
    """HH:MM:SS, local time."""
    text: str
    alarming: bool


class Now(NamedTuple):
    """The last step record, in SI units and the rig's order."""

    observation: Sequence[float]
    commanded: Sequence[float]
    applied: Sequence[float]
    amplitude: float
    exploration: float
    rule: Rule


class Snapshot(NamedTuple):
    """Everything the screen shows."""

    config: RunConfig
    folder: Path
    state: State
    episode: int
    tick: int
    rate_hz: float | None
    """Ticks per second of the wall clock, over the last seconds."""
    policy: int
    now: Now | None
    train: Sequence[float]
    """Normalised performance by episode."""
    evaluation: Sequence[float]
    figures: Figures | None
    events: Sequence[Happened]
    """The newest last."""
    actuators: str
    """What is known of the actuators at this moment, in three words."""


class Watcher:
    """Looks at one run again and again."""

    def __init__(self, view: ViewReader, folder: Path) -> None:
        self._view, self._folder = view, folder
        self._seen = 0
        self._now: Now | None = None
        self._episodes, self._events = Tail(folder / "episodes.csv"), Tail(folder / "events.jsonl")
        self._train: deque[float] = deque(maxlen=_EPISODES)
        self._evaluation: deque[float] = deque(maxlen=_EPISODES)
        self._happened: deque[Happened] = deque(maxlen=_EVENTS)
        self._ticks: deque[tuple[float, int]] = deque()

    def look(self) -> Snapshot:
        """Take what is new."""
        view = self._view
        self._seen, records = view.records(self._seen, _RECENT)
        if len(records):
            self._now = _now(records)
        for line in self._episodes.lines():
            self._take_episode(line)
        for line in self._events.lines():
            happened = read_event(line)
            if happened is not None:
                self._happened.append(happened)
        tick = view.word(Word.TICK)
        state = view.word(Word.STATE)
        return Snapshot(
            view.config,
            self._folder,
            State(state) if state in set(State) else State.DISCONNECTED,
            view.word(Word.EPISODE),
            tick,
            self._rate_hz(tick),
            view.word(Word.POLICY),
            self._now,
            tuple(self._train),
            tuple(self._evaluation),
            view.figures(),
            tuple(self._happened),
            _actuators(view.actuators),
        )

    def _take_episode(self, line: bytes) -> None:
        row = dict(zip(COLUMNS, next(csv.reader([line.decode("utf-8", "replace")]), []), strict=False))
        try:
            score = float(row["normalized"])
        except (KeyError, ValueError):
            return  # the heading, or a line that a full disk cut short
        (self._train if row["kind"] == "train" else self._evaluation).append(score)

    def _rate_hz(self, tick: int) -> float | None:
        now = time.monotonic()
        self._ticks.append((now, tick))
        while now - self._ticks[0][0] > _RATE_OVER_S:
            self._ticks.popleft()
        passed = now - self._ticks[0][0]
        return (tick - self._ticks[0][1]) / passed if passed > 0.5 else None


def _actuators(actuators: Actuators) -> str:
    """In a few words; *safe* is what the device's newest frame says."""
    if actuators.safe_ns:
        return "safe by its frame"
    return "not used yet" if actuators.untouched else "not shown safe"


def _now(records: NDArray[np.void]) -> Now:
    last = records[-1]
    acting = records[records["rule"] != Rule.NONE]
    return Now(
        last["observation"].tolist(),
        last["commanded"].tolist(),
        last["applied"].tolist(),
        float(last["amplitude"].max()),
        float(last["exploration"]),
        # A rule that acted in one tick of many would be gone before anybody saw it.
        Rule(int(acting[-1]["rule"])) if len(acting) else Rule.NONE,
    )


def read_event(line: bytes) -> Happened | None:
    """Read one line of ``events.jsonl``; None for what is not worth a line on a small screen, or is none."""
    try:
        event = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    kind = str(event.pop("kind", "?"))
    t = event.pop("t_unix_s", 0.0)
    count = times(event)
    event.pop(COUNT, None)
    if kind in _QUIET or (kind == _TRANSITION and event.get("fault") is None):
        return None
    alarming = kind in ("error", "fault", "warning", "policy_refused", "policy_rolled_back", "post_mortem_failed")
    clock = time.strftime("%H:%M:%S", time.localtime(t if isinstance(t, int | float) else 0.0))
    told = f"{kind}: {_in_words(kind, event)}" + (f" ({count} times)" if count > 1 else "")
    return Happened(clock, told, alarming or event.get("fault") not in (None, 0))


def _in_words(kind: str, event: Mapping[str, object]) -> str:
    if kind == "tick":
        missed = f"{event.get('missed')} missed ({event.get('cause')})" if event.get("missed") else ""
        rule = f"rule {event.get('rule')}" if event.get("rule") not in (None, "none", 0) else ""
        told = ", ".join(filter(None, (rule, missed))) or f"fault {event.get('fault')}"
        return f"{told}, episode {event.get('episode')}, tick {event.get('tick')}"
    if event.get("message"):
        return str(event["message"])
    return ", ".join(f"{k} {v}" for k, v in event.items() if v not in (None, ""))
