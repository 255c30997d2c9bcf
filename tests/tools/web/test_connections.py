from __future__ import annotations

from onrig.tools.web.connections import CONNECTIONS, PER_ADDRESS, Places, Stage


def test_the_oldest_without_a_whole_request_gives_way_then_one_that_does_not_read() -> None:
    places: Places[int] = Places()
    for n in range(PER_ADDRESS):
        place, left = places.take("here", n)
        assert place is not None
        assert left is None
        place.stage = Stage.STREAMING if n < 3 else Stage.ANSWERING if n < 8 else Stage.ARRIVING
    gone = []
    for n in range(PER_ADDRESS, 2 * PER_ADDRESS):
        place, left = places.take("here", n)
        assert place is not None
        assert left is not None
        place.stage = Stage.STREAMING
        gone.append(left.who)
        if len(gone) == PER_ADDRESS - 3:
            break
    assert gone == [*range(8, PER_ADDRESS), *range(3, 8)]
    assert places.take("here", 99) == (None, None), "all the others watch"


def test_an_address_that_has_its_share_takes_nothing_from_others() -> None:
    places: Places[int] = Places()
    for n in range(CONNECTIONS):
        places.take(f"10.0.0.{n % 2}", n)
    place, left = places.take("10.0.0.9", 100)
    assert place is not None
    assert left is not None
    assert left.who == 0
    _, left = places.take("10.0.0.1", 101)
    assert left is not None
    assert left.host == "10.0.0.1"


def test_a_place_given_back_is_free() -> None:
    places: Places[str] = Places()
    place, _ = places.take("here", "a")
    assert places.of("a") is place is not None
    places.give(place)
    places.give(place)
    assert places.of("a") is None
