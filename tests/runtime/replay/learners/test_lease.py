from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.replay.learners.lease import MAX_SILENCE_S, Lease

A, B = b"peer a", b"peer b"


def test_the_first_learner_holds_the_lease_and_the_next_is_informed_of_the_holder_and_the_time() -> None:
    lease = Lease(lambda peer: False)
    assert lease.holder == ""
    assert lease.request(b"a", "lab:1", A, 10.0) is None
    assert lease.request(b"b", "desk:2", B, 25.0) == "another learner pushes (lab:1, for 15 s, last message 15 s ago)"
    assert (lease.held_by(A), lease.held_by(B), lease.holder) == (True, False, "lab:1")


def test_silence_counts_from_the_last_heartbeat() -> None:
    lease = Lease(lambda peer: False)
    lease.request(b"a", "a", A, 0.0)
    lease.on_message(B, MAX_SILENCE_S)
    lease.on_message(A, 1.0)
    assert lease.request(b"b", "b", B, MAX_SILENCE_S + 0.5) is not None
    assert lease.request(b"b", "b", B, MAX_SILENCE_S + 1.5) is None


def test_only_the_holder_can_release_the_lease() -> None:
    lease = Lease(lambda peer: False)
    lease.request(b"a", "a", A, 0.0)
    lease.release(B)
    assert lease.held_by(A)
    lease.release(A)
    assert not lease.held_by(A)
    assert not lease.belongs_to(b"a", "a")


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "heard", "give up", "vanish"]), st.integers(0, 3), st.floats(0, 20)), max_size=40
)


@given(STEPS)
def test_at_most_one_learner_holds_the_lease_and_none_loses_it_while_alive(steps: list[tuple[str, int, float]]) -> None:
    closed_peers: set[bytes] = set()
    lease = Lease(closed_peers.__contains__)
    now_s, last_message_s = 0.0, [0.0] * 4
    for action, index, wait_s in steps:
        now_s += wait_s
        peer, holders = b"%d" % index, [n for n in range(4) if lease.held_by(b"%d" % n)]
        assert len(holders) <= 1
        if action == "vanish":
            closed_peers.add(peer)
        elif action == "heard":
            lease.on_message(peer, now_s)
            last_message_s[index] = now_s
        elif action == "give up":
            lease.release(peer)
        else:
            was_granted = lease.request(b"s%d" % index, "key", peer, now_s) is None
            last_message_s[index] = now_s
            closed_peers.discard(peer)
            for holder in holders:
                alive = b"%d" % holder not in closed_peers and now_s - last_message_s[holder] <= MAX_SILENCE_S
                assert not (was_granted and holder != index and alive)
