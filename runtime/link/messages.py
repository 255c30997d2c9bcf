"""What a rig and its learners say to each other (ZeroMQ: DEALER at the learner, ROUTER at the rig).

A message is multipart: request id (8 bytes), header (msgpack), payload frames.  The learner asks, the rig answers
with the same id; every request may be repeated, since answering it twice changes nothing.  So a lost message costs a
retry and nothing else, and a slow learner slows nobody: it asks less often.  No pickle, every size capped.
"""

from __future__ import annotations

from typing import Final

import msgspec

LINK_VERSION: Final = 1
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
MAX_ROWS: Final = 65_536
"""Most rows in one answer to a Pull."""


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """A learner introduces itself."""

    version: int = LINK_VERSION


class Attached(msgspec.Struct, frozen=True, tag="attached"):
    """What a learner must know to mirror the buffer and to have its policies accepted."""

    run_id: str
    config: bytes
    """The rig's resolved configuration (YAML, UTF-8); the rig's word counts."""
    capacity: int
    cyclic: bool
    inserted: int
    closed: int
    """Last training episode whose transitions are all in the buffer."""
    next_policy_id: int
    lockstep: bool


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Ask for the writes after the first ``since``; wait up to ``wait_ms`` for news.

    News is a write, or a training episode closed after ``closed``.
    """

    since: int
    closed: int
    wait_ms: int = 0
    max_rows: int = 16_384


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    """Writes in order; one payload: ``Storage.rows`` as little-endian uint32."""

    upto: int
    """The mirror stands here once it has applied them."""
    inserted: int
    """The rig stands here."""
    closed: int
    ending: bool = False
    """The run is over; nothing more will come."""


class Confirm(msgspec.Struct, frozen=True, tag="confirm"):
    """Lockstep: the learner's hash of its mirror at the end of an episode."""

    episode: int
    digest: bytes


class Errors(msgspec.Struct, frozen=True, tag="errors"):
    """|TD error| of replayed experiences, in order; payloads: slots int64, generations uint32, values float32."""

    batch: int


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """A policy; one payload: the ONNX bytes."""

    policy_id: int
    updates: int


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """What became of an offered policy."""

    policy_id: int
    accepted: bool
    stage: str = ""
    reason: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All that follows from a training episode (0: from attaching) is done; in lockstep the barrier may open."""

    episode: int
    updates: int
    updates_per_s: float


class Accepted(msgspec.Struct, frozen=True, tag="ok"):
    """Nothing more to say."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request was not acted on, and why."""

    reason: str


RequestMessage = Attach | Pull | Confirm | Errors | Offer | Done
ReplyMessage = Attached | Rows | Verdict | Accepted | Refused

_ENCODER = msgspec.msgpack.Encoder()
_REQUEST_DECODER = msgspec.msgpack.Decoder(RequestMessage)
_REPLY_DECODER = msgspec.msgpack.Decoder(ReplyMessage)


def encode(message: RequestMessage | ReplyMessage) -> bytes:
    """Serialise a header."""
    return _ENCODER.encode(message)


def decode_request(data: bytes) -> RequestMessage:
    """Parse a request's header; raises ``msgspec.DecodeError`` (ValidationError included) for anything else."""
    if len(data) > MAX_HEADER_BYTES:
        raise msgspec.DecodeError(f"header of {len(data)} bytes")
    try:
        request: RequestMessage = _REQUEST_DECODER.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets these two through
        raise msgspec.DecodeError(str(error)) from None
    return request


def decode_reply(data: bytes) -> ReplyMessage:
    """Parse a reply's header; raises ``msgspec.DecodeError`` (ValidationError included) for anything else."""
    try:
        reply: ReplyMessage = _REPLY_DECODER.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    return reply
