"""Process that serves a run to Foxglove: ``python -m onrig.tools.foxglove.process RUN_FOLDER ADDRESS``.

It only reads data that the loop writes anyway, and the run continues if this process dies.
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
from onrig.tools.web.guard import listen
from onrig.tools.web.view import FOXGLOVE, serve

FIRST_PORT: Final = 8765
"""Foxglove's default port."""
_POLL_S: Final = 0.1

logging.getLogger("foxglove").setLevel(logging.CRITICAL)  # websockets logs every disconnection as an error


class FoxgloveServer:
    """Foxglove server of one run, as a context manager; clients can neither publish nor call services."""

    def __init__(self, folder: Path, address_text: str) -> None:
        """Listen at the address. Raises ConfigError, ValueError (malformed address) or OSError (address in use)."""
        config = load_resolved(folder / "config.yaml")
        listener = listen(address_text, "ws", FIRST_PORT)
        self.url = listener.url
        self._feed = Feed(folder, config)
        self._context = context = foxglove.Context()  # channels and server hold only weak references to the context
        self._channels = {
            channel.topic: foxglove.Channel(
                channel.topic,
                schema=foxglove.Schema(name=channel.message, encoding="protobuf", data=channel.descriptors),
                message_encoding="protobuf",
                context=context,
            )
            for channel in self._feed.channels
        }
        # Any page in a browser can open a WebSocket to loopback, so a random address makes the server hard to find.
        host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
        self._server = foxglove.start_server(
            name=f"Onrig: {folder.resolve().name}", host=host, port=0, capabilities=[], context=context
        )
        self._gate = Gate(listener, (host, self._server.port))
        self._thread = threading.Thread(target=self._gate.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)

    def __enter__(self) -> FoxgloveServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._gate.shutdown()
        self._gate.server_close()
        self._server.stop()
        self._thread.join()
        self._feed.close()

    def work(self, stop_fd: int) -> None:
        """Serve until the descriptor ``stop_fd`` becomes readable."""
        while not select.select((stop_fd,), (), (), _POLL_S)[0]:
            self.forward(time.monotonic())

    @property
    def has_viewers(self) -> bool:
        """Whether any channel has a subscriber."""
        return any(channel.has_sinks() for channel in self._channels.values())

    def forward(self, now_s: float) -> None:
        """Forward the messages since the last call if any channel has a subscriber."""
        if self.has_viewers:
            for topic, t_ns, data in self._feed.poll(now_s):
                self._channels[topic].log(data, log_time=t_ns)


def serve_viewers(folder: Path, address_text: str, on_ready: Callable[[str], object]) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit code; ``on_ready`` receives the URL."""
    return serve(FOXGLOVE, folder, lambda: FoxgloveServer(folder, address_text), on_ready)


def main(arguments: list[str]) -> int:
    """Run as a child of ``onrig run``."""
    die_with_parent()
    address = "" if arguments[1] == "-" else arguments[1]
    return serve_viewers(Path(arguments[0]), address, lambda url: report(FOXGLOVE.name, "ready", url))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
