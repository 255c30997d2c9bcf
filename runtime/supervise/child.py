"""A child process of the supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from onrig.runtime.control.realtime import PARENT_VARIABLE
from onrig.runtime.run_state.report import HEARTBEAT, Report, parse_report

_READ_BYTES: Final = 65536
_MAX_READS: Final = 16
"""Maximum number of reads per call, so that a process that never stops writing cannot block the supervisor."""


class Child:
    """A Python module run as a process in its own session, so that Ctrl-C reaches only the supervisor."""

    def __init__(
        self, name: str, module: str, arguments: list[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        """``log`` receives the process's stderr; ``variables`` are added to its environment."""
        self.name = name
        self.started_s = time.monotonic()
        self.peak_rss_mb = 0.0
        environment = {
            **os.environ,
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",
            **(variables or {}),
        }
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        if self._process.stdout is None:
            raise AssertionError("a pipe was requested")
        self._fd = self._process.stdout.fileno()
        os.set_blocking(self._fd, False)
        self._partial_line = b""
        self.n_reports = 0
        """Number of reports received; each is a sign of progress."""
        self._pending_reports: deque[Report] = deque()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process reports something."""
        return self._fd

    def poll(self) -> int | None:
        """Return the exit code (negative: the number of the signal that killed the process), or None while it runs."""
        self._update_peak_rss()
        return self._process.poll()

    def reports(self) -> Iterator[Report]:
        """Yield the reports received since the last call; other lines, and heartbeats, are dropped."""
        self._read()
        while self._pending_reports:
            yield self._pending_reports.popleft()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # BlockingIOError: no more data for now
            for _ in range(_MAX_READS):
                if not (data := os.read(self._fd, _READ_BYTES)):
                    return
                *lines, remainder = (self._partial_line + data).split(b"\n")
                # Shorten a line that is longer than any report, such as a library's progress bar.
                self._partial_line = remainder[-_READ_BYTES:]
                new_reports = [report for report in map(parse_report, lines) if report is not None]
                self.n_reports += len(new_reports)
                self._pending_reports.extend(report for report in new_reports if report.kind != HEARTBEAT)

    @property
    def cpu_s(self) -> float:
        """CPU time used so far; 0 if unknown."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _update_peak_rss(self) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    self.peak_rss_mb = max(self.peak_rss_mb, int(line.split()[1]) / 1024)

    def kill(self) -> None:
        """Kill the process, even if it is stopped, and all others in its process group, such as a camera's program."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, grace_s: float, *, send_sigterm: bool = True) -> int:
        """Wait ``grace_s`` for the process to end (after SIGTERM, if ``send_sigterm``), then kill it; return the exit
        code."""
        self._update_peak_rss()
        if send_sigterm and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def close(self) -> None:
        """Close the pipe of an ended process."""
        if self._process.stdout is not None:
            self._process.stdout.close()
