"""A rig that listens on tcp in its own thread, for tests of access control."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from onrig.runtime.link.endpoint import TcpEndpoint
from onrig.runtime.link.keys import RigKeys
from onrig.runtime.link.messages import Accepted, RequestMessage
from onrig.runtime.link.server import LinkServer, Reply, TcpAccess, Ticket

PATIENCE_S = 60.0


class AcceptingRig:
    """Accepts every request, and records the keys of its senders."""

    def __init__(self, folder: Path, keys: RigKeys | None, host: str = "127.0.0.1") -> None:
        access = TcpAccess(TcpEndpoint(host, 0), keys)
        self.server = LinkServer(f"ipc://{folder}/s", access)
        self.local, self.endpoint, *_ = self.server.endpoints
        self.client_keys: list[str] = []
        self.refused_keys: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while not self._stop.is_set():
            self.server.wait(20)
            self.server.serve(self._handle)
            self.refused_keys += self.server.take_refused_keys()

    def _handle(self, ticket: Ticket, request: RequestMessage, payloads: Sequence[bytes]) -> Reply:
        self.client_keys.append(ticket.key)
        return Reply(Accepted())

    def __enter__(self) -> AcceptingRig:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self.server.close()
