"""Round trips of the message values, and refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw.framing import MAX_BODY_BYTES
from onrig.hw.messages import (
    MAX_STATE_COUNTS,
    PROTOCOL_VERSION,
    Channel,
    CommandLayout,
    Hello,
    Request,
    Response,
    State,
    StateLayout,
    WireError,
    decode_channel,
    decode_hello,
    decode_request,
    decode_response,
    encode_channel,
    encode_hello,
    encode_request,
    encode_response,
)

i32 = st.integers(-(2**31), 2**31 - 1)
u32 = st.integers(0, 2**32 - 1)
HELLO = Hello(PROTOCOL_VERSION, 2, 1, "pendulum", 1, 77, 1000, 1_000_000, 255, 0.5)
CHANNEL = Channel(True, False, "voltage", "V", 1e-4, -30000, 30000, 0)


@settings(max_examples=40)
@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_states_and_commands_survive_the_wire(data: st.DataObject, n_sensors: int, n_actuators: int) -> None:
    def counts(n: int) -> tuple[int, ...]:
        return tuple(data.draw(st.lists(i32, min_size=n, max_size=n)))

    state = State(
        *(data.draw(u32), data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 2**16 - 1)), 3, 255),
        *(data.draw(u32), data.draw(u32), counts(n_sensors), counts(n_actuators), counts(n_actuators)),
    )
    layout = StateLayout(n_sensors, n_actuators)
    assert layout.decode(layout.encode(state)) == state
    commands = CommandLayout(n_actuators)
    assert commands.decode(commands.encode(state.frame, state.u_end)) == (state.frame, state.u_end)


def test_hello_channel_request_and_response_survive_the_wire() -> None:
    assert decode_hello(encode_hello(HELLO)) == HELLO
    assert decode_channel(encode_channel(CHANNEL)) == CHANNEL
    assert decode_request(encode_request(Request(65535, 3, b"\x00\x01"))) == Request(65535, 3, b"\x00\x01")
    assert decode_response(encode_response(Response(1, 3, 2, b""))) == Response(1, 3, 2, b"")


def test_the_largest_state_frame_fits_and_the_next_larger_one_does_not() -> None:
    assert StateLayout(MAX_STATE_COUNTS - 2, 1).size <= MAX_BODY_BYTES < StateLayout(MAX_STATE_COUNTS - 1, 1).size


def test_the_version_of_another_protocol_is_readable_whatever_follows() -> None:
    assert decode_hello(b"\x02\x09\x00 something else").protocol == 9


def test_messages_of_a_wrong_length_are_refused() -> None:
    for decode in (StateLayout(2, 1).decode, CommandLayout(1).decode, decode_request, decode_response, decode_channel):
        with pytest.raises(WireError, match="bytes"):
            decode(b"\x11\x00")
    with pytest.raises(WireError, match="hello of 41 bytes"):
        decode_hello(encode_hello(HELLO)[:-1])


@pytest.mark.parametrize(
    "channel", [CHANNEL._replace(name="seventeen letters"), CHANNEL._replace(unit="thirteen long")]
)
def test_a_name_or_unit_too_long_for_its_field_is_refused(channel: Channel) -> None:
    with pytest.raises(WireError, match="longer than"):
        encode_channel(channel)


def test_a_rig_name_too_long_for_its_field_is_refused() -> None:
    with pytest.raises(WireError, match="longer than 16"):
        encode_hello(HELLO._replace(rig="a rig of a long name"))
