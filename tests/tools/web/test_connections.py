from __future__ import annotations

from onrig.tools.web import connections as module
from onrig.tools.web.connections import MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS, Hub, Message, Slots, Stage, frame


def test_the_oldest_connection_without_a_complete_request_is_dropped_first_then_one_that_does_not_read() -> None:
    slots: Slots[int] = Slots()
    for n in range(MAX_CONNECTIONS_PER_ADDRESS):
        slot, evicted = slots.acquire("here", n)
        assert slot is not None
        assert evicted is None
        slot.stage = Stage.STREAMING if n < 3 else Stage.ANSWERING if n < 8 else Stage.RECEIVING
    closed_connections = []
    for n in range(MAX_CONNECTIONS_PER_ADDRESS, 2 * MAX_CONNECTIONS_PER_ADDRESS):
        slot, evicted = slots.acquire("here", n)
        assert slot is not None
        assert evicted is not None
        slot.stage = Stage.STREAMING
        closed_connections.append(evicted.connection)
        if len(closed_connections) == MAX_CONNECTIONS_PER_ADDRESS - 3:
            break
    assert closed_connections == [*range(8, MAX_CONNECTIONS_PER_ADDRESS), *range(3, 8)]
    assert slots.acquire("here", 99) == (None, None), "all the others watch"


def test_an_address_at_its_limit_takes_nothing_from_others() -> None:
    slots: Slots[int] = Slots()
    for n in range(MAX_CONNECTIONS):
        slots.acquire(f"10.0.0.{n % 2}", n)
    slot, evicted = slots.acquire("10.0.0.9", 100)
    assert slot is not None
    assert evicted is not None
    assert evicted.connection == 0
    _, evicted = slots.acquire("10.0.0.1", 101)
    assert evicted is not None
    assert evicted.host == "10.0.0.1"


def test_a_released_place_is_free() -> None:
    slots: Slots[str] = Slots()
    slot, _ = slots.acquire("here", "a")
    assert slots.find("a") is slot is not None
    slots.release(slot)
    slots.release(slot)
    assert slots.find("a") is None


def test_a_new_client_receives_the_history_and_then_new_events() -> None:
    hub = Hub()
    watcher = hub.join(lambda: [Message("about", {"a": 1})])
    assert watcher is not None
    hub.publish(lambda: [Message("status", 2)])
    assert [watcher.next(0), watcher.next(0), watcher.next(0)] == [
        b'event: about\ndata: {"a":1}\n\n',
        b"event: status\ndata: 2\n\n",
        None,
    ]


def test_the_number_of_places_is_limited_and_a_released_one_is_free_again() -> None:
    hub = Hub(limit=2)
    first_watcher, second_watcher = hub.join(list), hub.join(list)
    assert first_watcher is not None
    assert second_watcher is not None
    assert hub.join(list) is None
    hub.leave(first_watcher)
    assert hub.join(list) is not None


def test_it_knows_whether_it_has_viewers() -> None:
    hub = Hub()
    watcher = hub.join(list)
    assert watcher is not None
    assert hub.occupied.is_set()
    hub.leave(watcher)
    assert not hub.occupied.is_set()


def test_a_client_that_cannot_keep_up_is_dropped_and_the_others_continue() -> None:
    hub = Hub()
    slow_watcher, quick_watcher = hub.join(list), hub.join(list)
    assert slow_watcher is not None
    assert quick_watcher is not None
    for i in range(1000):
        hub.publish(lambda i=i: [Message("n", i)])  # type: ignore[misc]
        assert quick_watcher.next(0) == frame(Message("n", i))
    received: list[bytes | None] = []
    while received[-1:] not in ([b""], [None]):
        received.append(slow_watcher.next(0))
    assert received[-1] == b""
    assert len(received) < 1000


def test_at_the_end_all_clients_are_notified_even_late_ones() -> None:
    hub = Hub()
    early_watcher = hub.join(list)
    hub.end()
    late_watcher = hub.join(list)
    assert early_watcher is not None
    assert late_watcher is not None
    assert (early_watcher.next(0), late_watcher.next(0)) == (b"", b"")


def test_text_from_a_log_cannot_forge_an_event() -> None:
    assert frame(Message("events", "a\n\nevent: ended\ndata: {}")).count(b"\n") == 3


def test_if_there_are_too_many_one_that_does_not_read_is_dropped() -> None:
    hub = Hub(2)
    reading_watcher, stalled_watcher = hub.join(list), hub.join(list)
    assert reading_watcher is not None
    assert stalled_watcher is not None
    assert hub.join(list) is None
    for n in range(module._STALLED_MESSAGES):
        hub.publish(lambda n=n: [Message("status", n)])  # type: ignore[misc]
        reading_watcher.next(0.0)
    assert hub.join(list) is not None
    assert hub.join(list) is None, "the other one reads"
    for _ in range(module._STALLED_MESSAGES):
        assert stalled_watcher.next(0.0) != b""
    assert stalled_watcher.next(0.0) == b""
