"""The page's process: ``python -m onrig.tools.web.process RUN_FOLDER ADDRESS``; ADDRESS as behind ``--web``, or ``-``.

It looks on and never in the way: niced, off the loop's CPU, with nothing the loop could wait for.  The run goes on
without it.
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
from onrig.tools.web.bystander import PAGE, serve
from onrig.tools.web.connections import Hub
from onrig.tools.web.coverage import Surfaces
from onrig.tools.web.guard import open_door
from onrig.tools.web.producer import MOTION_S, Producer
from onrig.tools.web.server import PageServer, Site, load_assets

_IDLE_S: Final = 0.5
_FAREWELL_S: Final = 1.0
_AFTER_A_FAILURE_S: Final = 5.0


class Page:
    """The server of one run's page and the thread that feeds it; a context."""

    def __init__(self, folder: Path, address_text: str, *, awaited: bool = False) -> None:
        """``awaited``: the run is about to begin.  Raises ConfigError, ValueError (the address) or OSError (taken)."""
        config = load_resolved(folder / "config.yaml")
        door = open_door(address_text)
        self.url = door.url
        self._hub = Hub()
        self._producer = producer = Producer(config, folder, awaited=awaited)
        self._stop = threading.Event()
        self._server = PageServer(
            door.listening,
            Site(
                guard=door.guard,
                assets=load_assets(),
                hub=self._hub,
                story_so_far=lambda: list(producer.story_so_far()),
                surface=Surfaces(config, folder).of,
                stop=self._order_stop,
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
        self._hub.tell(lambda: list(self._producer.farewell()))
        self._hub.end()
        limit = time.monotonic() + _FAREWELL_S
        while self._hub.somebody.is_set() and time.monotonic() < limit:
            time.sleep(0.02)
        self._server.shutdown()
        self._server.server_close()
        self._threads[0].join()
        self._producer.close()

    def work(self, asked: int) -> None:
        """Serve until the descriptor ``asked`` becomes readable."""
        os.read(asked, 1)

    def _feed(self) -> None:
        while not self._stop.is_set():
            if self._hub.somebody.is_set():
                try:
                    self._hub.tell(lambda: self._producer.turn(time.monotonic()))
                except Exception:  # a page that stands still is worth a trace, not an end
                    traceback.print_exc()
                    self._stop.wait(_AFTER_A_FAILURE_S)
                self._stop.wait(MOTION_S)
            else:
                self._hub.somebody.wait(_IDLE_S)

    def _order_stop(self, level: int) -> bool:
        running = self._producer.running or self._producer.find()
        if running is None:
            return False
        try:
            with RemoteControl(running) as remote:
                self._producer.asked(time.monotonic_ns())
                remote.stop(level, from_view=True)
        except SegmentMissing:
            return False
        except SegmentError:  # of another version, say
            stop_by_signal(running, level)
        return True


def serve_page(folder: Path, address_text: str, tell: Callable[[str], object], *, awaited: bool = False) -> int:
    """Serve until SIGTERM or Ctrl-C; ``tell`` is given the URL.  Returns the exit code.

    ``awaited``: the run is about to begin, whatever an earlier one has left in its folder.
    """
    return serve(PAGE, folder, lambda: Page(folder, address_text, awaited=awaited), tell)


def main(arguments: list[str]) -> int:
    """Run as a child of ``onrig run``."""
    die_with_parent()
    address = "" if arguments[1] == "-" else arguments[1]
    return serve_page(Path(arguments[0]), address, lambda url: report(PAGE.name, "ready", url), awaited=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
