"""Processes under test: found by descriptor, module or environment mark; waited for, measured, ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

TWIN, CONTROL, REPLAY, LEARNER = (
    "onrig.sim.twin.main",
    "onrig.runtime.control.main",
    "onrig.sim.replay",
    "onrig.learner.main",
)
ROLES: Final = {TWIN: "device", CONTROL: "control", REPLAY: "replay", LEARNER: "learner"}
PATIENCE_S: Final = 90.0
"""Default time limit, generous because the machine may be busy."""
_POLL_S: Final = 0.005
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

T = TypeVar("T")


class WaitTimeout(Exception):
    """Raised if a condition was not met in time, or can no longer be met."""


class ResourceUse(NamedTuple):
    """Resources of a process."""

    private_mb: float
    """Resident memory that is neither shared nor file-backed, so that a filling ring does not look like a leak."""
    descriptors: int


class Process:
    """A process by pidfd: safe against reuse of its id, and its end can be polled."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.pidfd_open(pid)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended (it may not have been reaped yet)."""
        return bool(select.select((self.fd,), (), (), 0)[0])

    def sleep_count(self) -> int:
        """Number of times its main thread has gone to sleep."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal; harmless once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signum)

    def wait(self, limit_s: float = PATIENCE_S) -> None:
        """Wait for its end; raises WaitTimeout after ``limit_s``."""
        if not select.select((self.fd,), (), (), limit_s)[0]:
            raise WaitTimeout(f"process {self.pid} did not end within {limit_s:g} s")

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def until(
    condition: Callable[[], T | Literal[False] | None],
    description: str,
    *processes: Process,
    limit_s: float = PATIENCE_S,
    every_s: float = _POLL_S,
) -> T:
    """Poll until ``condition`` returns something other than None or False, and return it.

    Raises WaitTimeout after ``limit_s``, or if one of ``processes`` ends first.
    """
    limit = time.monotonic() + limit_s
    while True:
        ended = [p.pid for p in processes if p.has_ended]
        found = condition()
        if found is not None and found is not False:
            return found
        if ended:
            raise WaitTimeout(f"process {ended[0]} ended before {description}")
        if time.monotonic() > limit:
            raise WaitTimeout(f"waited {limit_s:g} s for {description}")
        select.select([p.fd for p in processes], (), (), every_s)


@contextlib.contextmanager
def process_of(module: str, *arguments: str | Path) -> Iterator[Process]:
    """Run a single process of a rig, killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as popen:
        process = Process(popen.pid)
        try:
            yield process
        finally:
            process.kill()
            process.close()


def use_of(pid: int) -> ResourceUse | None:
    """Return memory and open descriptors of a process; None if it has ended."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return ResourceUse((resident - shared) * _PAGE_BYTES / 2**20, len(os.listdir(f"/proc/{pid}/fd")))
    except (OSError, IndexError, ValueError):
        return None


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def children(pid: int) -> dict[str, int]:
    """Return process ids of a process's children by Python module."""
    found: dict[str, int] = {}
    try:
        pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found
    for child in map(int, pids):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        # Between fork and exec a child still has its parent's command line.
        if len(words) > 2 and words[1] == b"-m" and words[2] != b"onrig.tools.cli":
            found[words[2].decode(errors="replace")] = child
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    return _state(pid) not in ("", "Z", "X")


def marked(mark: str) -> list[int]:
    """Return live processes with ``mark`` (NAME=value) in their initial environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def power_cut(pids: Callable[[], Iterable[int]]) -> None:
    """Simulate a power cut: stop all processes, including any that start in the meantime, then kill them."""
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        while missed := [pid for pid in pids() if send(pid, signum)]:
            if signum is signal.SIGSTOP and all(_has_stopped(pid) for pid in missed):
                break


def send(pid: int, signum: int) -> bool:
    """Send a signal; returns whether the process existed."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def _has_stopped(pid: int) -> bool:
    """Whether a process that was sent SIGSTOP has stopped or will run no more user code.

    In state D it is in the kernel, and stops before it returns to user space.  It may stay there: the parent of a vfork
    waits in D until the child calls exec, and the child may have been stopped before that.
    """
    return _state(pid) in ("", "D", "T", "Z", "X")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
