"""Messages between a rig and its learners (ZeroMQ: DEALER at the learner, ROUTER at the rig).

A message is multipart: request id (8 bytes), header (msgpack), payload frames.  The learner sends requests, the rig
answers with the same id; requests are idempotent and may be repeated.  A lost message therefore costs only a retry, and
a slow learner delays no one, because it sends fewer requests.  Nothing is pickled, and all sizes are limited.

The first request of a connection is Attach.  A learner identifies itself by a random *session*, and the memory it
mirrors by the token received from the rig.  After an outage it attaches again; if both are unchanged, it continues from
its last write and repeats the unanswered request.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

LINK_VERSION: Final = 7
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_REPLY_HEADER_BYTES: Final = 1024 * 1024
"""Limit on a reply's header, which may hold a rig's complete configuration."""
MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
"""Limit on a frame sent to the rig: the largest admissible policy plus some margin."""
MAX_ROWS: Final = 65_536
"""Maximum number of rows in one answer to a Pull."""
MAX_FEEDBACK_EXPERIENCES: Final = 262_144
"""Maximum number of experiences in one batch of feedback."""

MAX_RULINGS: Final = 16
"""Maximum number of probation results in one answer to a Pull."""
MAX_CLOSED_EPISODES: Final = 64
"""Maximum number of closed training episodes in one answer to a Pull; older ones are omitted."""
MAX_REASON: Final = 300
"""Maximum number of characters in a probation result's reason."""

VERSION: Final = "version"
"""Refusal code: the versions of the two ends differ."""
UNKNOWN: Final = "unknown"
"""Refusal code: the sender has not attached, or the rig has dropped it."""
LEASE: Final = "lease"
"""Refusal code: a different learner has the push role."""

RATE: Final = "rate"
"""Stage of a verdict: the offer came too soon after the previous one and was not checked; offer again later."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Token = Annotated[bytes, msgspec.Meta(max_length=16)]
Kind = Annotated[str, msgspec.Meta(max_length=16)]


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """First message of a learner on each connection.  ``version`` has the same position in every version."""

    version: int = LINK_VERSION
    session: Token = b""
    """Random token, constant for the learner's lifetime."""
    role: Literal["push", "watch"] = "watch"
    """Requested role; only the policies and feedback of a learner that pushes are used."""
    memory: Token = b""
    """Token of the memory it mirrors; empty at first."""


class Ancestor(msgspec.Struct, frozen=True):
    """Earlier memory from whose checkpoint a memory was restored."""

    memory: bytes
    """Token of the earlier memory."""
    writes: int
    """Number of writes restored from it, counted from its first write."""


class Attached(msgspec.Struct, frozen=True, tag="attached"):
    """Answer to Attach: the data needed to mirror the buffer and to export acceptable policies."""

    run_id: str
    config: bytes
    """The rig's resolved configuration (YAML, UTF-8), which is authoritative."""
    capacity: int
    cyclic: bool
    inserted: int
    closed: int
    """Last training episode whose transitions are all in the buffer."""
    next_policy_id: int
    """Id of the next policy that the rig admits."""
    lockstep: bool
    version: int = LINK_VERSION
    memory: bytes = b""
    """Token of the memory to which write numbers refer."""
    restored: int = 0
    """Number of writes restored from the previous memory's checkpoint."""
    lineage: tuple[Ancestor, ...] = ()
    """Memories from which writes were restored, most recent last."""
    done: int = -1
    """Lockstep: last training episode that was fully concluded; a learner resumes after it."""
    pushes: bool = False
    """Whether the push role is granted."""
    why: str = ""
    """Reason for a refusal of the push role."""
    behaviour: bool = False
    """Whether rows contain the behaviour of a stochastic policy (``onrig.runtime.memory.layout``)."""
    run: str = ""
    """Unique identity of the run, kept on resumption; ``run_id`` is not unique."""


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Request for the writes after the first ``since``; the rig waits up to ``wait_ms`` for one.

    A training episode closed after ``closed`` also ends the wait.
    """

    since: int
    closed: int
    wait_ms: int = 0
    max_rows: int = 16_384
    heard: int = 0
    """Number of the last probation result received.  Results are sent along with rows; they do not end a wait."""


class Ruling(msgspec.Struct, frozen=True):
    """Result of an admitted policy's probation."""

    number: Count
    """Number of the result, counted from 1 for each memory token."""
    policy_id: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
    verdict: Literal["passed", "rolled_back", "failed"]
    """Outcome of the probation: passed; failed with a rollback to the predecessor; failed without a predecessor."""
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""


class ClosedEpisode(msgspec.Struct, frozen=True):
    """A training episode whose transitions are all in the buffer."""

    episode: Count
    episode_return: float
    """Undiscounted return in the task's raw units."""


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    """Writes in order; the only payload is ``Storage.rows`` as little-endian uint32."""

    upto: int
    """Number of the last write once these rows have been applied."""
    inserted: int
    """Number of the rig's last write."""
    closed: int
    ending: bool = False
    """Whether the run is over and no more rows follow."""
    rulings: Annotated[tuple[Ruling, ...], msgspec.Meta(max_length=MAX_RULINGS)] = ()
    """Probation results newer than the one named in the Pull, in order."""
    settled: int = -1
    """Lockstep: training episode of the rig's newest checkpoint, to which it may roll back."""
    episodes: Annotated[tuple[ClosedEpisode, ...], msgspec.Meta(max_length=MAX_CLOSED_EPISODES)] = ()
    """Episodes closed after the one named in the Pull, in order; some may be missing after a restart."""


class Confirm(msgspec.Struct, frozen=True, tag="confirm"):
    """Lockstep: the learner's hash of its mirror at the end of an episode."""

    episode: int
    digest: Annotated[bytes, msgspec.Meta(max_length=64)]


class Feedback(msgspec.Struct, frozen=True, tag="feedback"):
    """Feedback on n replayed experiences, in order.

    Payloads, little-endian: slots int64 (n,), generations uint32 (n,), values float32 (kinds, n).
    """

    batch: int
    kinds: Annotated[tuple[Kind, ...], msgspec.Meta(min_length=1, max_length=4)] = ("td",)
    """Kinds from ``onrig.runtime.memory.keepers.keeper.FEEDBACK``."""


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """Offer of a policy; the only payload is the ONNX file, by which the rig recognises a repeated offer."""

    updates: int


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """Result of an offered policy's admission."""

    policy_id: int
    """Id assigned by the rig, independent of the metadata; 0: none."""
    accepted: bool
    stage: str = ""
    """Stage of a refusal: an admission step, ``probation`` for a policy rolled back before, or RATE."""
    reason: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Notification that the learner has concluded a training episode (0: its start); the lockstep barrier may open."""

    episode: int
    updates: Count
    updates_per_s: float
    kept: bool = True
    """Whether the learner could resume after this episode, because its state, if due, is on disk."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Detachment of the learner; another learner may take the push role."""


class Accepted(msgspec.Struct, frozen=True, tag="ok"):
    """Acknowledgement without data."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Refusal of a request, with the reason."""

    reason: str
    code: str = ""
    """Machine-readable reason: VERSION, UNKNOWN, LEASE or empty."""


RequestMessage = Attach | Pull | Confirm | Feedback | Offer | Done | Leave
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
