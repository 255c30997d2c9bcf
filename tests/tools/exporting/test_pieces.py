"""Episodes of a log as transitions without a gap: the same that the memory is offered."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.record import Flag, Kind
from onrig.tools.exporting.pieces import Records, pieces
from tests.runtime.samples import PENDULUM, episode, records


@st.composite
def logs(draw: st.DrawFn) -> Records:
    """Episodes of all kinds, some of whose records are lost or invalid; the last one may be open."""
    parts, tick = [], 0
    for number in range(1, draw(st.integers(1, 4)) + 1):
        kind = draw(st.sampled_from(Kind))
        end = draw(st.sampled_from([Flag.TERMINATED, Flag.TRUNCATED]))
        part = episode(draw(st.integers(1, 12)), end=end, tick=tick, frame=tick + 1, episode=number, kind=kind)
        tick += len(part)
        parts.append(part)
    rows = np.concatenate(parts)
    some = st.lists(st.integers(0, len(rows) - 1), max_size=3).map(lambda at: np.array(at, np.int64))
    rows["flags"][draw(some)] |= np.uint16(Flag.INVALID)
    lost = draw(some)
    return np.delete(rows, lost)[: draw(st.integers(1, len(rows)))]


@given(logs(), st.lists(st.integers(0, 40), max_size=5))
def test_they_are_the_transitions_of_the_memory_however_the_log_is_read(log: Records, cuts: list[int]) -> None:
    found = list(pieces(np.split(log, sorted(cuts))))
    offered = TransitionBuilder(PENDULUM.rig).add(log)
    train = [piece for piece in found if piece.kind is Kind.TRAIN]
    normal = Normalisation.from_signals(PENDULUM.rig.signals)
    none = np.zeros((0, 2), np.float32)
    before = np.concatenate([none, *(p.records["observation"][:-1] for p in train)])
    after = np.concatenate([none, *(p.records["observation"][1:] for p in train)])
    assert np.array_equal(normal.normalise(before).astype(np.float32), offered.observation)
    assert np.array_equal(normal.normalise(after).astype(np.float32), offered.next_observation)
    terminated = np.concatenate([np.zeros(0, bool), *(p.terminated for p in train)])
    assert np.array_equal(terminated, offered.flags & 1 != 0)
    assert all(p.steps == len(p.terminated) == len(p.truncated) for p in found)
    assert all(p.terminated[-1] != p.truncated[-1] for p in found)


def test_the_end_of_a_piece_has_a_cause() -> None:
    whole = episode(5, end=Flag.TERMINATED)
    gap = np.delete(episode(6, tick=10, frame=11, episode=2), 3)
    reset = episode(2, tick=20, frame=21, episode=2, kind=Kind.RESET)
    open_ = records(4, tick=30, frame=31, episode=3)
    found = list(pieces([np.concatenate([whole, gap, reset, open_])]))
    assert [(p.episode, p.part, p.steps, p.end) for p in found] == [
        (1, 0, 5, "terminated"),
        (2, 0, 2, "gap"),
        (2, 1, 2, "truncated"),
        (3, 0, 3, "unfinished"),
    ]
