"""Status messages to systemd: ready, alive, status, ending (protocol of sd_notify(3), one datagram each).

For a service of ``Type=notify``, systemd passes the address of a socket to the process; without an address, nothing is
sent.  The watchdog is reset only while the control process polls for requests and, in states with ticks, makes ticks: a
run that is paused, between episodes or waiting for an operator is alive, and a hung run is not.  Nothing here can block
or end a run.
"""

from __future__ import annotations

import contextlib
import enum
import socket
from collections.abc import MutableMapping
from typing import Final

from onrig.runtime.run_state.states import State

_STATUS_INTERVAL_S: Final = 5.0
"""Interval between status updates without a watchdog."""
_RECHECK_DELAY_S: Final = 0.2
"""Delay before a loop that has made no progress is checked again, so that one late poll does not cost a reset."""
ENDING_TIMEOUT_S: Final = 120.0
"""Watchdog interval while the run ends in order; every wait during that time is limited separately."""


class ResetDecision(enum.Enum):
    """Decision whether to reset systemd's watchdog."""

    NOT_DUE = "not due"
    RESET = "reset"
    NO_PROGRESS = "no progress"
    """Reset due, but the loop has made no progress."""


class WatchdogSchedule:
    """Schedule of watchdog resets, which depends only on the time and the loop's heartbeats."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s: float | None = None
        self._polls = 0

    def decide(self, now_s: float, polls: int, *, is_hung: bool) -> ResetDecision:
        """Decide whether to reset the watchdog now.

        ``polls``: the board's POLLS; ``is_hung``: state of the supervisor's own watchdog.
        """
        if self._next_s is not None and now_s < self._next_s:
            return ResetDecision.NOT_DUE
        if is_hung or polls == self._polls:
            self._next_s = now_s + min(_RECHECK_DELAY_S, self._interval_s)
            return ResetDecision.NO_PROGRESS
        self._polls, self._next_s = polls, now_s + self._interval_s
        return ResetDecision.RESET


def watchdog_interval_s(environment: MutableMapping[str, str], pid: int) -> float | None:
    """Return systemd's watchdog interval (s); None if it does not watch process ``pid``."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    try:
        period_us = int(environment.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return period_us / 1e6 if period_us > 0 else None


def status_line(state: int, episode: int, n_missed: int, *, is_hung: bool) -> str:
    """Return one line about a run for ``systemctl status``; ``state``: an ``onrig.runtime.run_state.states.State``."""
    if is_hung:
        return f"HUNG: the control process has stopped ticking (episode {episode}); only the device's lease guards it"
    state_names = {s.value: s.name.lower() for s in State}
    texts = {State.PAUSED: "paused, disarmed", State.FAULT: "fault latched, disarmed: `onrig resume` once it is clear"}
    state_text = {s.value: text for s, text in texts.items()}.get(state, state_names.get(state, str(state)))
    return f"{state_text}; episode {episode}, {n_missed} ticks missed"


class Notifier:
    """Connection of a run to systemd, which sends nothing without an address."""

    def __init__(self, address: str | None, period_s: float | None) -> None:
        """``address``: path of a datagram socket, or ``@NAME`` in the abstract namespace; ``period_s``: watchdog
        interval."""
        self._address = address
        self._has_watchdog = period_s is not None
        self._schedule = WatchdogSchedule(_STATUS_INTERVAL_S if period_s is None else period_s / 2)
        self._reported_status = ""
        self._next_extension_s = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        if self._socket is not None:
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str], pid: int) -> Notifier:
        """Create a notifier from systemd's variables, and remove them so that child processes do not inherit them."""
        period_s = watchdog_interval_s(environment, pid)
        address = environment.get("NOTIFY_SOCKET", "")
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environment.pop(name, None)
        return cls(address if address[:1] in ("/", "@") else None, period_s)

    def ready(self, status: str) -> None:
        """Report that the loop has started."""
        self._send("READY=1", f"STATUS={status}", *(["WATCHDOG=1"] if self._has_watchdog else []))

    def update(self, now_s: float, polls: int, status: str, *, is_hung: bool) -> None:
        """Reset the watchdog if it is due and the loop is alive, and update the status line."""
        if self._socket is None:
            return
        decision = self._schedule.decide(now_s, polls, is_hung=is_hung)
        if decision is ResetDecision.NOT_DUE or (
            decision is ResetDecision.NO_PROGRESS and status == self._reported_status
        ):
            return
        reset = ["WATCHDOG=1"] if decision is ResetDecision.RESET and self._has_watchdog else []
        if self._send(f"STATUS={status}", *reset):
            self._reported_status = status

    def stopping(self, status: str) -> None:
        """Report that the run is ending."""
        watchdog_fields = [f"WATCHDOG_USEC={round(ENDING_TIMEOUT_S * 1e6)}", "WATCHDOG=1"] if self._has_watchdog else []
        self._send("STOPPING=1", f"STATUS={status}", *watchdog_fields)

    def extend_timeout(self, now_s: float) -> None:
        """Extend systemd's timeout while the run ends; the wait for each process is limited separately."""
        if self._socket is not None and now_s >= self._next_extension_s:
            self._next_extension_s = now_s + _STATUS_INTERVAL_S
            self._send(
                f"EXTEND_TIMEOUT_USEC={round(ENDING_TIMEOUT_S * 1e6)}", *(["WATCHDOG=1"] if self._has_watchdog else [])
            )

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
