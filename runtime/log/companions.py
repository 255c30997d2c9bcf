"""Content of a log other than the records: the loop's state and the run's events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from onrig.runtime.files import LineTail
from onrig.runtime.log import messages, wire
from onrig.runtime.log.messages import LoggedEvent, read_event
from onrig.runtime.run_config import RunConfig

_MAX_READ_BYTES: Final = 1 << 16
_MAX_EVENT_AGE_S: Final = 5.0
"""Maximum age of an event, which limits the errors caused by changes of the host's clock."""


class StateAndEventReader:
    """Reader that returns the loop's states and the run's events once each, when they are new."""

    def __init__(self, config: RunConfig, folder: Path, load_state: Callable[[], bytes | None]) -> None:
        self._lockstep = config.lockstep
        self._lines = LineTail(folder / "events.jsonl", from_end=True, read_bytes=_MAX_READ_BYTES)
        self._load_state, self._last_state = load_state, b""
        self.unix_minus_mono_s: Final = time.time() - time.monotonic()

    def new_states(self) -> Iterator[bytes]:
        """Yield the loop's encoded state if it is new; it belongs before the records that follow it."""
        encoded_state = self._load_state()
        if encoded_state is None or encoded_state == self._last_state:
            return
        self._last_state = encoded_state
        state = msgspec.msgpack.decode(encoded_state, type=dict[str, object])
        tick = state.get("tick", 0)
        yield wire.encode(messages.LOOP_STATE, (tick if isinstance(tick, int) else 0, msgspec.json.encode(state)))

    def new_events(self, t_ns: int) -> Iterator[tuple[int, LoggedEvent]]:
        """Yield new events with their times: ``t_ns`` in lockstep, otherwise the host's monotonic time."""
        now_s = time.monotonic()
        for line in self._lines.lines():
            event = read_event(line)
            if event is None:
                continue
            if not self._lockstep:
                t_s = event.t_unix_s - self.unix_minus_mono_s
                t_ns = round(min(max(t_s, now_s - _MAX_EVENT_AGE_S), now_s) * 1e9)
            yield t_ns, event
