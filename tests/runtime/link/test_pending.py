from __future__ import annotations

from onrig.runtime.link import pending as module
from onrig.runtime.link.pending import (
    FRAME_OVERHEAD_BYTES,
    HANDSHAKE_TIMEOUT_S,
    INCOMPLETE_MESSAGE_TIMEOUT_S,
    MAX_BYTES_IN_FLIGHT,
    MAX_FRAMES_IN_FLIGHT,
    MAX_REPLY_BYTES,
    MAX_TOTAL_REPLY_BYTES,
    PendingConnection,
    end_reason,
    may_read,
)

MIB = 1 << 20


def test_a_peer_without_a_request_is_disconnected_and_one_with_a_request_may_be_silent() -> None:
    connection = PendingConnection("a", 0.0)
    assert end_reason(connection, HANDSHAKE_TIMEOUT_S, 0.0, 0) is None
    assert end_reason(connection, HANDSHAKE_TIMEOUT_S + 0.1, 0.0, 0) == "no request"
    connection.add_received([8, 30], 0, 5.0)
    assert end_reason(connection, 1e6, 1e6, 0) is None


def test_time_in_the_queue_does_not_count_against_the_learner() -> None:
    connection = PendingConnection("a", 0.0, greeting_received=True)
    assert end_reason(connection, 10 * HANDSHAKE_TIMEOUT_S, 0.0, 0) is None
    connection.seated_s = 10 * HANDSHAKE_TIMEOUT_S
    assert end_reason(connection, 11 * HANDSHAKE_TIMEOUT_S, 0.0, 0) is None
    assert end_reason(connection, 11 * HANDSHAKE_TIMEOUT_S + 0.1, 0.0, 0) == "no request"


def test_messages_taken_by_the_rig_free_their_room_even_after_heartbeats() -> None:
    overhead_bytes = 33
    connection = PendingConnection("a", 0.0)
    for n in range(10_000):
        connection.add_forwarded([38 + overhead_bytes, 8 + overhead_bytes, 20_000 + overhead_bytes], float(n))
        connection.add_received([8, 20_000], overhead_bytes, float(n))
        assert connection.bytes_in_flight == 0
    connection.add_forwarded([40, 41, 53], 1.0)
    assert connection.bytes_in_flight == 40 + 41 + 53 + 3 * FRAME_OVERHEAD_BYTES


def test_an_endless_message_first_exhausts_its_senders_room_and_then_ends_its_connection() -> None:
    connection = PendingConnection("a", 0.0, has_sent_request=True)
    connection.add_forwarded([4 * MIB] * 3, 10.0)
    assert not may_read(connection, connection.bytes_in_flight)
    assert end_reason(connection, 99.0, 10.0 + INCOMPLETE_MESSAGE_TIMEOUT_S, connection.bytes_in_flight) is None, (
        "a rig that does not poll is no reason to disconnect"
    )
    assert (
        end_reason(connection, 99.0, 10.1 + INCOMPLETE_MESSAGE_TIMEOUT_S, connection.bytes_in_flight)
        == "an incomplete message"
    )
    connection.add_received([4 * MIB] * 3, 0, 99.0)
    assert may_read(connection, connection.bytes_in_flight)


def test_the_total_of_all_peers_is_bounded_too() -> None:
    connection = PendingConnection("a", 0.0)
    assert may_read(connection, module.MAX_TOTAL_BYTES_IN_FLIGHT - 1)
    assert not may_read(connection, module.MAX_TOTAL_BYTES_IN_FLIGHT)
    assert connection.bytes_in_flight < MAX_BYTES_IN_FLIGHT


def test_endless_frames_end_the_connection() -> None:
    connection = PendingConnection("a", 0.0, has_sent_request=True)
    connection.add_forwarded([0] * MAX_FRAMES_IN_FLIGHT, 0.0)
    assert end_reason(connection, 0.0, 0.0, 0) is None
    connection.add_forwarded([0], 0.0)
    assert end_reason(connection, 0.0, 0.0, 0) == "too many frames without a complete message"


def test_answers_that_are_not_read_do_not_pile_up() -> None:
    connection, size = PendingConnection("a", 0.0), 8 * MIB
    assert connection.may_reply(size, 0)
    assert not connection.may_reply(size, size)
    assert connection.may_reply(MAX_REPLY_BYTES - size, size)
    connection.sent_reply_bytes += size
    assert connection.unsent_reply_bytes == MAX_REPLY_BYTES - size
    connection.sent_reply_bytes += 2 * size  # heartbeats and the like: no credit for later
    assert connection.unsent_reply_bytes == 0
    assert connection.may_reply(size, 0)
    assert not connection.may_reply(size, size)
    assert not PendingConnection("b", 0.0).may_reply(size, MAX_TOTAL_REPLY_BYTES - size + 1)
