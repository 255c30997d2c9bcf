from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.record import Flag
from onrig.runtime.replay.scoring import ScoredRingReader, ring_reader, terms_of
from onrig.runtime.rewards import Distance, RewardTerm, TermFailed
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.shm.ring import RingReader, RingWriter, ring_bytes
from onrig.runtime.shm.segment import Segment
from tests.runtime.samples import PENDULUM, Records, episode
from tests.runtime.third_party import Term

LAYOUT = record_layout(PENDULUM)


def scored(term: RewardTerm) -> RunConfig:
    reward = msgspec.structs.replace(PENDULUM.task.reward, terms={"mine": term})
    return msgspec.structs.replace(PENDULUM, task=msgspec.structs.replace(PENDULUM.task, reward=reward))


FAR = scored(Distance("velocity", 1.0))


class Ring:
    """Both ends of a ring whose loop has not ended."""

    def __init__(self, folder: Path, config: RunConfig = FAR) -> None:
        segment = Segment.create(folder / "ring", ring_bytes(LAYOUT, 64), LAYOUT.schema)
        self.has_loop_ended = False
        self._writer = RingWriter(segment, LAYOUT)
        self.reader = ring_reader(
            config, Segment.attach(folder / "ring", LAYOUT.schema), LAYOUT, lambda: self.has_loop_ended
        )

    def push(self, rows: Records) -> None:
        for row in rows:
            self._writer.push(LAYOUT.values(LAYOUT.step(row)))

    def take(self, limit: int = 4096) -> Records:
        found = self.reader.peek(limit)
        self.reader.take(len(found))
        return found


def rows(n: int, first: int = 0) -> Records:
    """An episode of n transitions, each after a velocity of its tick."""
    found = episode(n)
    found["observation"][:, 1] = found["tick"]
    return found[first:]


def test_a_record_waits_for_the_one_that_its_reward_needs(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    assert isinstance(ring.reader, ScoredRingReader)
    whole = rows(3)
    ring.push(whole[:2])
    assert ring.take()["tick"].tolist() == [0]
    assert len(ring.take()) == 0
    ring.push(whole[2:])
    taken = ring.take()
    assert taken["tick"].tolist() == [1, 2, 3], "the last of an episode needs none"
    assert taken["reward"].tolist() == [whole["reward"][1] - 2.0, whole["reward"][2] - 3.0, whole["reward"][3]]


def test_what_is_read_again_has_the_same_bits_and_a_crc_of_its_own(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    ring.push(rows(5))
    first = np.concatenate([ring.take(2), ring.take(1)])
    assert ring.reader.retained().tobytes() == first.tobytes()
    assert all(LAYOUT.has_valid_crc(memoryview(row.tobytes())) for row in first)
    assert first["reward"][2] == rows(5)["reward"][2] - 3.0


def test_the_last_record_of_a_loop_that_has_ended_is_read_without_its_terms(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    ring.push(rows(3)[:2])
    ring.has_loop_ended = True
    assert ring.take()["tick"].tolist() == [0, 1]


def test_lost_and_invalid_transitions_are_left_as_they_are(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    whole = rows(5)
    whole["flags"][1] |= Flag.INVALID
    gone = np.concatenate([whole[:3], whole[4:]])
    ring.push(gone)
    change = ring.take()["reward"] - gone["reward"]
    assert change.tolist() == [-1.0, 0.0, 0.0, -5.0, 0.0], "records 1 (invalid) and 2 (its successor lost)"


def test_a_step_is_completed_as_its_record_is() -> None:
    terms = terms_of(FAR, LAYOUT)
    assert terms is not None
    whole = rows(2)
    step, following = LAYOUT.step(whole[0]), LAYOUT.step(whole[1])
    terms.complete(step, following)
    assert step.reward == terms.score(whole)["reward"][0] == whole["reward"][0] - 1.0


@pytest.mark.parametrize(
    ("how", "said"), [("raises", "'mine' raises KeyError"), ("infinite", "the reward terms give inf")]
)
def test_a_term_that_fails_is_told(tmp_path: Path, how: str, said: str) -> None:
    ring = Ring(tmp_path, scored(Term(how)))
    ring.push(rows(2))
    with pytest.raises(TermFailed, match=said):
        ring.reader.peek()


def test_without_terms_the_ring_is_read_as_it_is(tmp_path: Path) -> None:
    ring = Ring(tmp_path, PENDULUM)
    assert type(ring.reader) is RingReader
    ring.push(rows(3)[:2])
    assert len(ring.take()) == 2
