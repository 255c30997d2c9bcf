"""Status messages to systemd: ready, alive, status, ending (protocol of sd_notify(3), one datagram each).

A service of ``Type=notify`` passes the address of a socket to its process; without one nothing is sent.  The watchdog
is reset only while the control process polls for requests and, in states with ticks, makes ticks: a run that is paused,
between episodes or waiting for an operator is alive, a hung one is not. Nothing here can block or end a run.
"""

from __future__ import annotations

import contextlib
import enum
import socket
from collections.abc import MutableMapping
from typing import Final

from onrig.runtime.run_state.states import State

_STATUS_INTERVAL_S: Final = 5.0
"""Interval of status updates without a watchdog."""
_RECHECK_S: Final = 0.2
"""Delay before another check of a loop without progress, so that one late poll does not skip a reset."""
ENDING_S: Final = 120.0
"""Watchdog interval during an orderly end, in which every wait has its own limit."""


class Beat(enum.Enum):
    """Verdict on the watchdog."""

    NOT_YET = "not yet"
    ALIVE = "alive"
    STILL = "still"
    """Reset due, but no progress found."""


class WatchdogSchedule:
    """Schedule of watchdog resets; pure, from the time and the loop's heartbeats."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s: float | None = None
        self._polls = 0

    def beat(self, now_s: float, polls: int, *, hangs: bool) -> Beat:
        """Return the verdict; ``polls``: the board's POLLS, ``hangs``: state of the supervisor's own watchdog."""
        if self._next_s is not None and now_s < self._next_s:
            return Beat.NOT_YET
        if hangs or polls == self._polls:
            self._next_s = now_s + min(_RECHECK_S, self._every_s)
            return Beat.STILL
        self._polls, self._next_s = polls, now_s + self._every_s
        return Beat.ALIVE


def watchdog_s(environment: MutableMapping[str, str], pid: int) -> float | None:
    """Return systemd's watchdog interval (s); None if it does not watch process ``pid``."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    try:
        period_us = int(environment.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return period_us / 1e6 if period_us > 0 else None


def status_line(state: int, episode: int, missed: int, *, hangs: bool) -> str:
    """Return one line on a run for ``systemctl status``; ``state``: an ``onrig.runtime.run_state.states.State``."""
    if hangs:
        return f"HUNG: the control process makes no ticks (episode {episode}); only its device's lease guards it"
    known = {s.value: s.name.lower() for s in State}
    texts = {State.PAUSED: "paused, disarmed", State.FAULT: "fault latched, disarmed: `onrig resume` once it is clear"}
    named = {s.value: text for s, text in texts.items()}.get(state, known.get(state, str(state)))
    return f"{named}; episode {episode}, {missed} ticks missed"


class Notifier:
    """Connection of a run to systemd; silent without an address."""

    def __init__(self, address: str | None, period_s: float | None) -> None:
        """``address``: path of a datagram socket, or ``@NAME`` in the abstract namespace; ``period_s``: watchdog
        interval."""
        self._address = address
        self._watched = period_s is not None
        self._pulse = WatchdogSchedule(_STATUS_INTERVAL_S if period_s is None else period_s / 2)
        self._reported_status = ""
        self._ending_s = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        if self._socket is not None:
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str], pid: int) -> Notifier:
        """Read systemd's variables, and remove them from the environment of child processes."""
        period_s = watchdog_s(environment, pid)
        address = environment.get("NOTIFY_SOCKET", "")
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environment.pop(name, None)
        return cls(address if address[:1] in ("/", "@") else None, period_s)

    def ready(self, status: str) -> None:
        """Report that the loop has started."""
        self._send("READY=1", f"STATUS={status}", *(["WATCHDOG=1"] if self._watched else []))

    def update(self, now_s: float, polls: int, status: str, *, hangs: bool) -> None:
        """Reset the watchdog if it is due and the loop is alive, and update the status line."""
        if self._socket is None:
            return
        beat = self._pulse.beat(now_s, polls, hangs=hangs)
        if beat is Beat.NOT_YET or (beat is Beat.STILL and status == self._reported_status):
            return
        pet = ["WATCHDOG=1"] if beat is Beat.ALIVE and self._watched else []
        if self._send(f"STATUS={status}", *pet):
            self._reported_status = status

    def stopping(self, status: str) -> None:
        """Report that the run is ending."""
        renewed = [f"WATCHDOG_USEC={round(ENDING_S * 1e6)}", "WATCHDOG=1"] if self._watched else []
        self._send("STOPPING=1", f"STATUS={status}", *renewed)

    def still_ending(self, now_s: float) -> None:
        """Extend the timeout while the run ends; the wait for each process has its own limit."""
        if self._socket is not None and now_s >= self._ending_s:
            self._ending_s = now_s + _STATUS_INTERVAL_S
            self._send(f"EXTEND_TIMEOUT_USEC={round(ENDING_S * 1e6)}", *(["WATCHDOG=1"] if self._watched else []))

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> bool:
        """Send one message; return whether systemd accepted it."""
        if self._socket is None or self._address is None:
            return False
        location = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError):  # systemd is being restarted, or its queue is full: the run continues
            self._socket.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), location)
            return True
        return False
