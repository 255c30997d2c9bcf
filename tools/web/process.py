"""The page's process: ``python -m onrig.tools.web.process RUN_FOLDER ADDRESS``.

ADDRESS is the value of ``--web``, or ``-``. The process reads the run's data with low priority and off the loop's CPU.
The loop never waits for it, and the run continues if it dies.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from onrig.runtime.control.realtime import die_with_parent
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.report import report
from onrig.runtime.run_state.running import RemoteControl, SegmentError, SegmentMissing, stop_by_signal
from onrig.tools.web.connections import Hub
from onrig.tools.web.coverage import Surfaces
from onrig.tools.web.guard import listen
from onrig.tools.web.producer import MOTION_S, Producer
from onrig.tools.web.server import PageServer, Site, load_assets
from onrig.tools.web.view import PAGE, serve

_IDLE_S: Final = 0.5
_CLOSE_TIMEOUT_S: Final = 1.0
_FAILURE_PAUSE_S: Final = 5.0


class Page:
    """Server of one run's page, with the thread that supplies the page's messages, as a context manager."""

    def __init__(self, folder: Path, address_text: str, *, starting: bool = False) -> None:
        """Listen at the address; ``starting`` means that the run is about to begin.

        Raises ConfigError, ValueError (malformed address) or OSError (address in use).
        """
        config = load_resolved(folder / "config.yaml")
        listener = listen(address_text)
        self.url = listener.url
        self._hub = Hub()
        self._producer = producer = Producer(config, folder, starting=starting)
        self._stop = threading.Event()
        self._server = PageServer(
            listener.listening_socket,
            Site(
                guard=listener.guard,
                assets=load_assets(),
                hub=self._hub,
                snapshot=lambda: list(producer.snapshot()),
                surface=Surfaces(config, folder).of,
                stop=self._stop_run,
            ),
        )
        self._threads = [
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True),
            threading.Thread(target=self._feed, daemon=True),
        ]

    def __enter__(self) -> Page:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._threads[1].join()
        self._hub.publish(lambda: list(self._producer.final_messages()))
        self._hub.end()
        limit = time.monotonic() + _CLOSE_TIMEOUT_S
        while self._hub.occupied.is_set() and time.monotonic() < limit:
            time.sleep(0.02)
        self._server.shutdown()
        self._server.server_close()
        self._threads[0].join()
        self._producer.close()

    def work(self, stop_fd: int) -> None:
        """Serve until the descriptor ``stop_fd`` becomes readable."""
        os.read(stop_fd, 1)

    def _feed(self) -> None:
        while not self._stop.is_set():
            if self._hub.occupied.is_set():
                try:
                    self._hub.publish(lambda: self._producer.updates(time.monotonic()))
                except Exception:  # the STOP button must keep working whatever happens
                    traceback.print_exc()
                    self._stop.wait(_FAILURE_PAUSE_S)
                self._stop.wait(MOTION_S)
            else:
                self._hub.occupied.wait(_IDLE_S)

    def _stop_run(self, level: int) -> bool:
        running = self._producer.running or self._producer.find()
        if running is None:
            return False
        try:
            with RemoteControl(running) as remote:
                self._producer.note_stop(time.monotonic_ns())
                remote.stop(level, from_view=True)
        except SegmentMissing:
            return False
        except SegmentError:  # for example, from a different version
            stop_by_signal(running, level)
        return True


def serve_page(folder: Path, address_text: str, on_ready: Callable[[str], object], *, starting: bool = False) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit code; ``on_ready`` receives the URL.

    ``starting`` means that the run is about to begin: files of an earlier run in the folder do not count as its end.
    """
    return serve(PAGE, folder, lambda: Page(folder, address_text, starting=starting), on_ready)


def main(arguments: list[str]) -> int:
    """Run as a child of ``onrig run``."""
    die_with_parent()
    address = "" if arguments[1] == "-" else arguments[1]
    return serve_page(Path(arguments[0]), address, lambda url: report(PAGE.name, "ready", url), starting=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
