"""A learner's end of the link: one request at a time, repeated until it is answered."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Final

import zmq

from runtime.link.messages import Refused, ReplyMessage, RequestMessage, decode_reply, encode

RETRY_MS: Final = 2000


class LinkClosed(Exception):
    """The rig did not answer in time, or the caller wants to stop."""


class RequestRejected(Exception):
    """The rig refused a request, with its reason."""


class LinkClient:
    """A DEALER socket that asks and waits.

    A lost request or answer is asked again after RETRY_MS (every request may be repeated); a rig that comes back
    after an outage finds the question waiting.
    """

    def __init__(self, endpoint: str, stop_requested: Callable[[], bool]) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self._ids = itertools.count(1)
        self._stop_requested = stop_requested
        self.retries = 0

    def ask(
        self, request: RequestMessage, *payloads: bytes, timeout_s: float = 60.0
    ) -> tuple[ReplyMessage, list[bytes]]:
        """Send a request and return (answer, payloads).

        Raises LinkClosed after ``timeout_s`` without an answer or when asked to stop, RequestRejected when refused.
        """
        request_id = next(self._ids).to_bytes(8, "little")
        limit = time.monotonic() + timeout_s
        frames = [request_id, encode(request), *payloads]
        self._socket.send_multipart(frames)
        asked = time.monotonic()
        while True:
            if self._stop_requested():
                raise LinkClosed("asked to stop")
            if self._socket.poll(100):
                answer = self._socket.recv_multipart()
                if answer[0] != request_id:
                    continue  # late answer to a request given up or repeated
                message = decode_reply(answer[1])
                if isinstance(message, Refused):
                    raise RequestRejected(message.reason)
                return message, answer[2:]
            now = time.monotonic()
            if now > limit:
                raise LinkClosed(f"the rig did not answer within {timeout_s:g} s")
            if now - asked > RETRY_MS / 1000:
                self.retries += 1
                asked = now
                self._socket.send_multipart(frames)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()
