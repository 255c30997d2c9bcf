"""Which peers are served and which leave, in virtual time."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.link.pending import PendingConnection, Stage
from onrig.runtime.link.seats import (
    MAX_INSIDE,
    MAX_INSIDE_PER_ADDRESS,
    MAX_SEATS,
    MAX_SEATS_PER_ADDRESS,
    MAX_SILENT,
    MAX_SILENT_CONNECTIONS_PER_ADDRESS,
    MAX_WAITING,
    MIN_SEAT_TENURE_S,
    SEATS_PER_QUEUE_JUMP,
    next_assignment,
    surplus_connections,
)

POLL_S = 0.02
SEATS_IN_TURN = MAX_SEATS_PER_ADDRESS - MAX_SEATS_PER_ADDRESS // SEATS_PER_QUEUE_JUMP
"""Seats of an address given to the connection that has waited longest."""


class SeatSimulation:
    """The acceptor without sockets: its connections, and those that it ended."""

    def __init__(self) -> None:
        self.connections: list[PendingConnection] = []
        self.ended: list[PendingConnection] = []

    def arrive(self, address: str, now_s: float) -> PendingConnection:
        connection = PendingConnection(address, now_s, greeting_received=True)
        self.connections.append(connection)
        return connection

    def assign_seats(self, now_s: float) -> None:
        while (assignment := next_assignment(self.connections, now_s)) is not None:
            if assignment.previous is not None:
                self._end(assignment.previous)
            assignment.connection.seated_s, assignment.connection.jumped_queue = now_s, assignment.jumped_queue
        for connection in surplus_connections(self.connections):
            self._end(connection)

    def _end(self, connection: PendingConnection) -> None:
        self.connections.remove(connection)
        self.ended.append(connection)


def simulate_wait_s(hostile_addresses: list[str], seed: int, learner: str = "10.0.0.1") -> float:
    """Wait of a newcomer for its seat if those addresses always return when disconnected (inf: it is disconnected).

    The seed determines the order in which they arrive and are disconnected; the newcomer arrives at any later time.
    """
    rng = random.Random(seed)
    simulation, now_s, n_returned = SeatSimulation(), 0.0, 0
    for address in hostile_addresses:
        simulation.arrive(address, now_s + rng.uniform(0.0, 0.01))
    arrival_s = rng.uniform(0.02, 3 * MIN_SEAT_TENURE_S)
    newcomer: PendingConnection | None = None
    while now_s < 100.0:
        now_s += rng.uniform(0.0, POLL_S)
        if newcomer is None and now_s >= arrival_s:
            newcomer = simulation.arrive(learner, now_s)
        simulation.assign_seats(now_s)
        if newcomer is not None and newcomer.seated_s is not None:
            return newcomer.seated_s - newcomer.arrived_s
        if newcomer in simulation.ended:
            return math.inf
        returning = simulation.ended[n_returned:]
        rng.shuffle(returning)
        for connection in returning:
            simulation.arrive(connection.address, now_s)
        n_returned = len(simulation.ended)
    return math.inf


@pytest.mark.parametrize("count", [1, MAX_SEATS_PER_ADDRESS, 40, 80, MAX_SEATS_PER_ADDRESS + MAX_WAITING - 1])
@pytest.mark.parametrize("seed", range(8))
def test_a_newcomer_is_seated_in_time_whatever_its_own_address_does(count: int, seed: int) -> None:
    n_in_line = max(0, count + 1 - MAX_SEATS_PER_ADDRESS)
    assert simulate_wait_s(["10.0.0.1"] * count, seed) <= (MIN_SEAT_TENURE_S + POLL_S) * math.ceil(
        n_in_line / SEATS_IN_TURN
    )


def test_forty_returning_connections_delay_it_by_one_turn_of_the_seats() -> None:
    """The figure stated in docs/architecture.md."""
    waits = [simulate_wait_s(["10.0.0.1"] * 40, seed) for seed in range(20)]
    assert max(waits) <= MIN_SEAT_TENURE_S + POLL_S
    assert MIN_SEAT_TENURE_S == 2.0


@pytest.mark.parametrize("seed", range(4))
def test_other_addresses_delay_it_by_one_turn_however_many_there_are(seed: int) -> None:
    crowd = [f"10.0.1.{n % 50}" for n in range(190)]
    assert simulate_wait_s(crowd, seed) <= MIN_SEAT_TENURE_S + POLL_S


def test_a_crowd_that_does_not_return_delays_it_no_longer_however_long_its_queue() -> None:
    simulation, now_s = SeatSimulation(), 0.0
    for _ in range(700):
        simulation.arrive("10.0.0.1", now_s)
        now_s += 1e-3
        simulation.assign_seats(now_s)
    newcomer = simulation.arrive("10.0.0.1", now_s)
    while newcomer.seated_s is None:
        now_s += POLL_S
        simulation.assign_seats(now_s)
    assert newcomer.seated_s - newcomer.arrived_s <= MIN_SEAT_TENURE_S + POLL_S
    assert newcomer.jumped_queue


@given(st.data())
def test_decisions_respect_seats_turns_and_limits(data: st.DataObject) -> None:
    simulation = SeatSimulation()
    addresses = st.sampled_from("abcd")
    now_s = 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        now_s += data.draw(st.floats(0.0, MIN_SEAT_TENURE_S))
        for address in data.draw(st.lists(addresses, max_size=60)):
            simulation.arrive(address, now_s)
        seated_before = {
            connection: connection.seated_s for connection in simulation.connections if connection.seated_s is not None
        }
        simulation.assign_seats(now_s)
        seated = [connection for connection in simulation.connections if connection.stage is Stage.SEATED]
        assert len(seated) <= MAX_SEATS
        for address in "abcd":
            own_seats = [connection for connection in seated if connection.address == address]
            assert len(own_seats) <= MAX_SEATS_PER_ADDRESS
            assert (
                sum(connection.jumped_queue for connection in own_seats)
                <= MAX_SEATS_PER_ADDRESS // SEATS_PER_QUEUE_JUMP
            )
        assert sum(connection.stage is Stage.WAITING for connection in simulation.connections) <= MAX_WAITING
        for connection, seated_since_s in seated_before.items():
            assert connection in simulation.connections or now_s - seated_since_s >= MIN_SEAT_TENURE_S, (
                "a seat is kept for its time"
            )
        if len(seated) < MAX_SEATS:
            waiting_addresses = {
                connection.address for connection in simulation.connections if connection.stage is Stage.WAITING
            }
            assert all(
                sum(connection.address == a for connection in seated) == MAX_SEATS_PER_ADDRESS
                for a in waiting_addresses
            ), "no seat is idle"


def test_the_oldest_silent_peer_leaves_and_an_address_takes_no_place_from_another() -> None:
    silent = [PendingConnection("a", float(n)) for n in range(MAX_SILENT_CONNECTIONS_PER_ADDRESS)]
    assert surplus_connections(silent) == []
    silent.append(PendingConnection("a", 99.0))
    assert surplus_connections([PendingConnection("learner", -1.0), *silent]) == [silent[0]]
    crowd = [PendingConnection(f"host {n % 4}", float(n)) for n in range(MAX_SILENT)]
    assert surplus_connections([*crowd, PendingConnection("learner", 100.0)]) == [crowd[0]]


def test_among_admitted_peers_the_one_silent_longest_leaves() -> None:
    silent = [
        PendingConnection("a", float(n), has_sent_request=True, last_request_s=100.0 - n)
        for n in range(MAX_INSIDE_PER_ADDRESS + 1)
    ]
    outside = [PendingConnection("a", 0.0) for _ in range(MAX_SILENT_CONNECTIONS_PER_ADDRESS)]
    assert surplus_connections([*silent, *outside]) == [silent[-1]]
    assert surplus_connections([*silent[1:], *outside]) == []
    inside = [
        PendingConnection(f"host {n}", 0.0, has_sent_request=True, last_request_s=float(n))
        for n in range(MAX_INSIDE + 1)
    ]
    assert surplus_connections(inside) == [inside[0]]
