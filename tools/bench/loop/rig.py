"""The measured rig, a plain ``onrig run``, and a viewer of its live page.

Step records are read from the rig's shared memory as they are written. The viewer receives the page's stream as a
browser would, and discards it.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import read_fields
from onrig.runtime.run_config import record_layout
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.running import Running, find_running
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.ring import RingHistory
from onrig.runtime.shm.segment import Segment, SegmentError
from onrig.tools.bench.processes import CPUS, restrict_to_cpus

_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02
_READ_INTERVAL_S: Final = 0.05
"""Interval between reads, which is 100 records at 2 kHz; the ring holds eight thousand."""


class RigFailed(RuntimeError):
    """Raised if the rig did not start or ended during the measurement; the message gives the reason."""


class RunEnded(RigFailed):
    """Raised if the rig ended during the measurement."""


class MeasuredRig:
    """Run under measurement, as a context manager that ends the run."""

    def __init__(self, config: str, settings: Sequence[str], flags: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder / "run"
        self._output = folder / "run.out"
        command = [sys.executable, "-m", "onrig.tools.cli", "run", config, "--run-dir", str(self.folder), *flags]
        for setting in settings:
            command += ["--set", setting]
        with self._output.open("wb") as output_file, restrict_to_cpus(CPUS):
            self._run = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output_file, stderr=output_file, start_new_session=True
            )
        self._segments: list[Segment] = []
        self._ring: RingHistory | None = None
        self._board: Board | None = None
        self.is_realtime = False
        self.shm = Path()

    def __enter__(self) -> MeasuredRig:
        return self

    def __exit__(self, *error: object) -> None:
        if self._run.poll() is None:
            self._run.send_signal(signal.SIGINT)
            try:
                self._run.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._run.kill()
                self._run.wait()
        for view in (self._ring, self._board):
            if view is not None:
                view.close()
        for segment in self._segments:
            segment.close()

    def wait_for_first_tick(self) -> None:
        """Wait for the first tick. Raises RigFailed."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        running: Running | None = None
        while running is None:
            self._wait_alive("start", deadline_s)
            running = find_running(self.folder)
        self.shm = running.shm
        try:
            config = load_resolved(self.folder / "config.yaml")
            layout = record_layout(config)
            self._ring = RingHistory(self._attach("ring", layout.schema), layout)
            self._board = Board(self._attach("board", BOARD_SCHEMA))
        except (OSError, SegmentError) as error:
            raise RigFailed(str(error)) from None
        while self._board[Word.TICK] == 0:
            self._wait_alive("complete a tick", deadline_s)
        self.is_realtime = bool(self._board[Word.REALTIME])

    def _attach(self, name: str, schema: str) -> Segment:
        segment = Segment.attach(self.shm / name, schema)
        self._segments.append(segment)
        return segment

    def _wait_alive(self, goal: str, deadline_s: float) -> None:
        if self._run.poll() is not None or time.monotonic() > deadline_s:
            raise RigFailed(f"the rig did not {goal}: {self._last_output()}")
        time.sleep(_POLL_S)

    @property
    def output(self) -> str:
        """Output of the run so far."""
        return self._output.read_text(errors="replace")

    def _exit_reason(self) -> str:
        """Return why the run ended, according to its summary; empty if unknown."""
        return str(read_fields(self.folder / "summary.json").get("exit_reason") or "")

    def _last_output(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1] if lines else "no output"

    def follow(self, seconds: float, sink: Callable[[NDArray[np.void]], None]) -> int:
        """Pass all records of the next ``seconds`` to ``sink``, and return the number of lost records.

        Earlier records are skipped. Raises RunEnded if the run ends.
        """
        ring = self._ring
        assert ring is not None
        next_seq, n_lost = ring.n_written, 0
        deadline_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < deadline_s:
            time.sleep(min(_READ_INTERVAL_S, deadline_s - now_s))
            if self._run.poll() is not None:
                raise RunEnded(f"the run ended during the measurement: {self._exit_reason() or self._last_output()}")
            records = ring.records_since(next_seq)
            if len(records):
                newest_seq = int(records["seq"][-1])
                n_lost += newest_seq + 1 - next_seq - len(records)
                next_seq = newest_seq + 1
                sink(records)
        return n_lost


_URL: Final = re.compile(r"http://\S+")
_STREAM: Final = "/api/stream"
_TIMEOUT_S: Final = 5.0


def find_page_url(text: str) -> str | None:
    """Find the page's address in a run's output."""
    url_match = _URL.search(text)
    return url_match[0] if url_match else None


class Viewer:
    """Viewer of the page at ``url``, as a context manager; ``n_received_bytes`` counts the bytes received."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.n_received_bytes = 0
        self._connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=_TIMEOUT_S)
        self._path = f"{_STREAM}?{parts.query}" if parts.query else _STREAM
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Viewer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(2 * _TIMEOUT_S)

    def _receive(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(self._connection):
            self._connection.request("GET", self._path)
            response = self._connection.getresponse()
            while not self._stop.is_set() and (data := response.read1(65536)):
                self.n_received_bytes += len(data)
