"""What a rig and its learners say to each other (ZeroMQ: DEALER at the learner, ROUTER at the rig).

A message is multipart: request id (8 bytes), header (msgpack), payload frames.  The learner asks, the rig answers
with the same id; every request may be repeated, since answering it twice changes nothing.  So a lost message costs a
retry and nothing else, and a slow learner slows nobody: it asks less often.  No pickle, every size capped.

The first request of a connection is Attach.  A learner names itself by a random *session*, and the memory it mirrors
by the token the rig gave it: after an outage it attaches again, and where both are still the same it goes on from its
last write, with the request that was not answered.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

LINK_VERSION: Final = 4
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_REPLY_HEADER_BYTES: Final = 1024 * 1024
"""It may hold a rig's whole configuration."""
MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
"""Of a frame that a rig reads: the largest policy that it would admit, and a little more."""
MAX_ROWS: Final = 65_536
"""Most rows in one answer to a Pull."""
MAX_ERRORS: Final = 262_144
"""Most TD errors in one batch."""

MAX_RULINGS: Final = 16
"""Most rulings on policies in one answer to a Pull."""
MAX_REASON: Final = 300
"""Characters of a ruling's reason."""

VERSION: Final = "version"
"""Code of a refusal: the two ends speak different versions."""
UNKNOWN: Final = "unknown"
"""Code of a refusal: whoever asks has not attached, or not since the rig forgot it."""
LEASE: Final = "lease"
"""Code of a refusal: another learner pushes."""

RATE: Final = "rate"
"""Stage of a verdict: this offer came too soon after the last one.  It was not judged; a newer one may come later."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Token = Annotated[bytes, msgspec.Meta(max_length=16)]


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """A learner introduces itself, or comes back.  Whatever else changes, ``version`` stays where it is."""

    version: int = LINK_VERSION
    session: Token = b""
    """Random, the same for the life of the learner."""
    role: Literal["push", "watch"] = "watch"
    """Whether it wants to be the one whose policies and TD errors count."""
    memory: Token = b""
    """The memory it mirrors; empty before the first time."""


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
    """Id that the rig gives to the next policy it admits."""
    lockstep: bool
    version: int = LINK_VERSION
    memory: bytes = b""
    """Names the memory: write numbers of one mean nothing in another."""
    restored: int = 0
    """But for the first so many writes, which it has from a checkpoint of the one before."""
    done: int = -1
    """Lockstep: last training episode from which everything has followed; a learner goes on from its state after it."""
    pushes: bool = False
    """Whether this learner may push."""
    why: str = ""
    """Why not, where it wanted to."""


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Ask for the writes after the first ``since``; wait up to ``wait_ms`` for news.

    News is a write, or a training episode closed after ``closed``.
    """

    since: int
    closed: int
    wait_ms: int = 0
    max_rows: int = 16_384
    heard: int = 0
    """Number of the last ruling that the learner has heard; they ride along with the rows and are no news by
    themselves."""


class Ruling(msgspec.Struct, frozen=True):
    """What became of an admitted policy once it acted."""

    number: Count
    """They count up from 1, as long as the memory has its name."""
    policy_id: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
    verdict: Literal["passed", "rolled_back", "failed"]
    """Its probation: passed; failed, and its predecessor acts again; failed, but there was no predecessor."""
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    """Writes in order; one payload: ``Storage.rows`` as little-endian uint32."""

    upto: int
    """The mirror stands here once it has applied them."""
    inserted: int
    """The rig stands here."""
    closed: int
    ending: bool = False
    """The run is over; nothing more will come."""
    rulings: Annotated[tuple[Ruling, ...], msgspec.Meta(max_length=MAX_RULINGS)] = ()
    """On policies, in order, after the one that the Pull names."""
    settled: int = -1
    """Lockstep: training episode after which the rig's newest checkpoint was written; it may come back to that."""


class Confirm(msgspec.Struct, frozen=True, tag="confirm"):
    """Lockstep: the learner's hash of its mirror at the end of an episode."""

    episode: int
    digest: Annotated[bytes, msgspec.Meta(max_length=64)]


class Errors(msgspec.Struct, frozen=True, tag="errors"):
    """|TD error| of replayed experiences, in order; payloads: slots int64, generations uint32, values float32."""

    batch: int


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """A policy; one payload: the ONNX bytes, by which the rig knows it again."""

    updates: int


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """What became of an offered policy."""

    policy_id: int
    """The id that the rig gave it, whatever its metadata say; 0: it has none."""
    accepted: bool
    stage: str = ""
    """Where it was refused: a step of admission, ``probation`` where it was rolled back before, or RATE."""
    reason: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All that follows from a training episode (0: from attaching) is done; in lockstep the barrier may open."""

    episode: int
    updates: Count
    updates_per_s: float
    kept: bool = True
    """Whether the learner can go on from here after a crash: its state is on its disk, where one was due."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """The learner goes: whoever waits for its turn may push now."""


class Accepted(msgspec.Struct, frozen=True, tag="ok"):
    """Nothing more to say."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request was not acted on, and why."""

    reason: str
    code: str = ""
    """What the learner can act on: VERSION, UNKNOWN or LEASE."""


RequestMessage = Attach | Pull | Confirm | Errors | Offer | Done | Leave
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
    if len(data) > MAX_REPLY_HEADER_BYTES:
        raise msgspec.DecodeError(f"header of {len(data)} bytes")
    try:
        reply: ReplyMessage = _REPLY_DECODER.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    return reply
