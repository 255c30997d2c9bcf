"""The rig's end of the link: receives requests, hands them to the replay process, sends the answers.

Never blocks: a peer that does not take its answers loses them and asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import zmq

from runtime.link.messages import MAX_PAYLOAD_BYTES, Refused, ReplyMessage, RequestMessage, decode_request, encode

_ID_BYTES: Final = 8
_REQUESTS_PER_TURN: Final = 64


class Answer(NamedTuple):
    """A reply and its payload frames."""

    message: ReplyMessage
    payloads: tuple[bytes, ...] = ()


class Ticket(NamedTuple):
    """Whom an answer belongs to."""

    peer: bytes
    request_id: bytes


class LinkServer:
    """A ROUTER socket on one endpoint."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.SNDHWM, 64)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
        self._socket.bind(endpoint)
        self.malformed = 0

    def wait(self, timeout_ms: int) -> bool:
        """Wait for a request; True when there is one."""
        return bool(self._socket.poll(timeout_ms))

    def serve(self, handle: Callable[[Ticket, RequestMessage, Sequence[bytes]], Answer | None]) -> None:
        """Handle what has arrived, a bounded number of requests at a time."""
        for _ in range(_REQUESTS_PER_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) < 3 or len(frames[1]) != _ID_BYTES:
                self.malformed += 1
                continue
            ticket = Ticket(frames[0], frames[1])
            try:
                request = decode_request(frames[2])
            except msgspec.DecodeError as error:
                self.malformed += 1
                self.send(ticket, Answer(Refused(f"malformed request: {error}")))
                continue
            answer = handle(ticket, request, frames[3:])
            if answer is not None:
                self.send(ticket, answer)

    def send(self, ticket: Ticket, answer: Answer) -> None:
        """Send an answer; dropped when the peer is gone or does not keep up."""
        frames = [ticket.peer, ticket.request_id, encode(answer.message), *answer.payloads]
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:
            return

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()
