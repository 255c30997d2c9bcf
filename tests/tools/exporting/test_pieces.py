"""Episodes of a log as transitions without gaps: the same ones that are offered to the memory."""

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
    index_arrays = st.lists(st.integers(0, len(rows) - 1), max_size=3).map(lambda indices: np.array(indices, np.int64))
    rows["flags"][draw(index_arrays)] |= np.uint16(Flag.INVALID)
    lost_indices = draw(index_arrays)
    return np.delete(rows, lost_indices)[: draw(st.integers(1, len(rows)))]


@given(logs(), st.lists(st.integers(0, 40), max_size=5))
def test_transitions_equal_those_of_the_memory_however_the_log_is_read(log: Records, boundaries: list[int]) -> None:
    found_pieces = list(pieces(np.split(log, sorted(boundaries))))
    transitions = TransitionBuilder(PENDULUM.rig).add(log)
    train = [piece for piece in found_pieces if piece.kind is Kind.TRAIN]
    normal = Normalisation.from_signals(PENDULUM.rig.signals)
    no_rows = np.zeros((0, 2), np.float32)
    observations = np.concatenate([no_rows, *(p.records["observation"][:-1] for p in train)])
    next_observations = np.concatenate([no_rows, *(p.records["observation"][1:] for p in train)])
    assert np.array_equal(normal.normalise(observations).astype(np.float32), transitions.observation)
    assert np.array_equal(normal.normalise(next_observations).astype(np.float32), transitions.next_observation)
    terminated = np.concatenate([np.zeros(0, bool), *(p.terminated for p in train)])
    assert np.array_equal(terminated, transitions.flags & 1 != 0)
    assert all(p.steps == len(p.terminated) == len(p.truncated) for p in found_pieces)
    assert all(p.terminated[-1] != p.truncated[-1] for p in found_pieces)


def test_the_end_of_a_piece_has_a_cause() -> None:
    complete_episode = episode(5, end=Flag.TERMINATED)
    episode_with_gap = np.delete(episode(6, tick=10, frame=11, episode=2), 3)
    reset = episode(2, tick=20, frame=21, episode=2, kind=Kind.RESET)
    open_episode = records(4, tick=30, frame=31, episode=3)
    found_pieces = list(pieces([np.concatenate([complete_episode, episode_with_gap, reset, open_episode])]))
    assert [(p.episode, p.part, p.steps, p.end) for p in found_pieces] == [
        (1, 0, 5, "terminated"),
        (2, 0, 2, "gap"),
        (2, 1, 2, "truncated"),
        (3, 0, 3, "unfinished"),
    ]
