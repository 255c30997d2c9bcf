from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.link.messages import (
    MAX_CLOSED_EPISODES,
    MAX_HEADER_BYTES,
    MAX_REASON,
    MAX_REPLY_HEADER_BYTES,
    MAX_RULINGS,
    Accepted,
    Attach,
    Attached,
    ClosedEpisode,
    Confirm,
    Done,
    Leave,
    Refused,
    ReplyMessage,
    RequestMessage,
    Rows,
    Ruling,
    decode_reply,
    decode_request,
    encode,
)
from tests.runtime.link.sound_messages import REPLIES, REQUESTS

DEEPLY_NESTED = b"\x82\xa4type\xa6attach\xa1x" + b"\x91" * 60_000 + b"\xc0"


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_requests_arrive_as_sent(request_: RequestMessage) -> None:
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda r: type(r).__name__)
def test_replies_arrive_as_sent(reply: ReplyMessage) -> None:
    assert decode_reply(encode(reply)) == reply


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc0",
        encode(Accepted()),
        b"\x81\xa4type\xa6attach" + b"\x00",
        b"\x81\xa4type\xa2\xff\xff",
        b"\x82\xa4type\xa7confirm\xa7episode\xa1x",
        b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os",
        DEEPLY_NESTED,
        b"\x00" * (MAX_HEADER_BYTES + 1),
    ],
    ids=[
        "nothing",
        "nil",
        "a reply",
        "more behind it",
        "no UTF-8",
        "wrong type",
        "pickle",
        "nested without end",
        "oversize",
    ],
)
def test_an_invalid_request_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_request(raw)


def test_a_request_of_the_maximum_size_is_decoded() -> None:
    padding = MAX_HEADER_BYTES - 19
    raw = b"\x82\xa4type\xa5leave\xa1x\xdb" + padding.to_bytes(4, "big") + b"x" * padding
    assert len(raw) == MAX_HEADER_BYTES
    assert decode_request(raw) == Leave()
    with pytest.raises(msgspec.DecodeError, match="header of"):
        decode_request(raw + b"\x00")


def test_a_reply_may_hold_a_complete_configuration_and_has_a_limit() -> None:
    reply = Attached("run", bytes(MAX_HEADER_BYTES), 100, True, 50, 3, 7, False)
    assert decode_reply(encode(reply)) == reply
    with pytest.raises(msgspec.DecodeError, match="header of"):
        decode_reply(encode(Refused("x" * MAX_REPLY_HEADER_BYTES)))


@pytest.mark.parametrize(
    "message",
    [Confirm(1, bytes(65)), Attach(session=bytes(17)), Attach(memory=bytes(17)), Done(1, -1, 0.0)],
    ids=["digest", "session", "memory", "updates"],
)
def test_overlong_messages_are_refused(message: RequestMessage) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_request(encode(message))


@pytest.mark.parametrize(
    "rows",
    [
        Rows(1, 1, 0, rulings=(Ruling(1, 1, "passed"),) * (MAX_RULINGS + 1)),
        Rows(1, 1, 0, rulings=(Ruling(1, 1, "failed", "x" * (MAX_REASON + 1)),)),
        Rows(1, 1, 0, rulings=(Ruling(-1, 1, "passed"),)),
        Rows(1, 1, 0, rulings=(Ruling(1, 1 << 32, "passed"),)),
        Rows(1, 1, 0, rulings=(Ruling(1, 1, "pardoned"),)),  # type: ignore[arg-type]
        Rows(1, 1, 0, episodes=(ClosedEpisode(1, 1.0),) * (MAX_CLOSED_EPISODES + 1)),
    ],
    ids=["too many", "too long", "number", "policy", "verdict", "episodes"],
)
def test_impossible_rulings_and_episodes_are_refused(rows: Rows) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_reply(encode(rows))


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_request(msgspec.msgpack.encode({"type": "attach", "role": "king"}))


def test_the_attach_of_another_version_can_still_be_decoded() -> None:
    raw = msgspec.msgpack.encode({"type": "attach", "version": 77, "something": ["new"]})
    assert decode_request(raw) == Attach(version=77)


@settings(max_examples=300)
@given(st.sampled_from([*REQUESTS, *REPLIES]), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255))))
def test_no_damage_makes_decoding_raise_anything_else(
    message: RequestMessage | ReplyMessage, changes: list[tuple[int, int]]
) -> None:
    raw = bytearray(encode(message))
    for position, value in changes:
        raw[position % len(raw)] = value
    for decode in (decode_request, decode_reply):
        try:
            decode(bytes(raw))
        except msgspec.DecodeError:
            continue


@given(st.binary(max_size=60))
def test_no_bytes_make_decoding_raise_anything_else(raw: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            decode(raw)
        except msgspec.DecodeError:
            continue
