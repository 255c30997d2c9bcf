"""The process that serves a run to Foxglove: ``python -m onrig.tools.foxglove.process RUN_FOLDER ADDRESS``.

Like the page's, it only looks on: the loop writes what it reads anyway, and the run goes on without it.
"""

from __future__ import annotations

import logging
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import foxglove

from onrig.runtime.control.realtime import die_with_parent
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.report import report
from onrig.tools.foxglove.feed import Feed
from onrig.tools.foxglove.gate import Gate
from onrig.tools.web.bystander import FOXGLOVE, serve
from onrig.tools.web.guard import open_door

FIRST_PORT: Final = 8765
"""Foxglove's default."""
_TURN_S: Final = 0.1

logging.getLogger("foxglove").setLevel(logging.CRITICAL)  # it logs every viewer that goes as an error


class Sink:
    """Foxglove server of one run, for viewers only: it offers neither publishing nor services; a context manager."""

    def __init__(self, folder: Path, address_text: str) -> None:
        """Raises ConfigError, ValueError (the address) or OSError (taken)."""
        config = load_resolved(folder / "config.yaml")
        door = open_door(address_text, "ws", FIRST_PORT)
        self.url = door.url
        self._feed = Feed(folder, config)
        self._context = context = foxglove.Context()  # its channels and its server refer to it weakly
        self._channels = {
            channel.topic: foxglove.Channel(
                channel.topic,
                schema=foxglove.Schema(name=channel.message, encoding="protobuf", data=channel.descriptors),
                message_encoding="protobuf",
                context=context,
            )
            for channel in self._feed.channels
        }
        # Any page in a browser may open a WebSocket here.  It would have to guess this address beside the port.
        host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
        self._server = foxglove.start_server(
            name=f"Onrig: {folder.resolve().name}", host=host, port=0, capabilities=[], context=context
        )
        self._gate = Gate(door, (host, self._server.port))
        self._thread = threading.Thread(target=self._gate.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)

    def __enter__(self) -> Sink:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._gate.shutdown()
        self._gate.server_close()
        self._server.stop()
        self._thread.join()
        self._feed.close()

    def work(self, asked: int) -> None:
        """Serve until the descriptor ``asked`` becomes readable."""
        while not select.select((asked,), (), (), _TURN_S)[0]:
            self.turn(time.monotonic())

    @property
    def watched(self) -> bool:
        """Whether anybody is subscribed to anything."""
        return any(channel.has_sinks() for channel in self._channels.values())

    def turn(self, now_s: float) -> None:
        """Pass on what has come since the last call, if anybody watches."""
        if self.watched:
            for topic, t_ns, data in self._feed.turn(now_s):
                self._channels[topic].log(data, log_time=t_ns)


def serve_viewers(folder: Path, address_text: str, tell: Callable[[str], object]) -> int:
    """Serve until SIGTERM or Ctrl-C; ``tell`` receives the URL.  Returns the exit code."""
    return serve(FOXGLOVE, folder, lambda: Sink(folder, address_text), tell)


def main(arguments: list[str]) -> int:
    """Run as a child of ``onrig run``."""
    die_with_parent()
    address = "" if arguments[1] == "-" else arguments[1]
    return serve_viewers(Path(arguments[0]), address, lambda url: report(FOXGLOVE.name, "ready", url))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
