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
from tests.runtime.third_party import DefectiveTerm

LAYOUT = record_layout(PENDULUM)


def with_reward_term(term: RewardTerm) -> RunConfig:
    reward = msgspec.structs.replace(PENDULUM.task.reward, terms={"mine": term})
    return msgspec.structs.replace(PENDULUM, task=msgspec.structs.replace(PENDULUM.task, reward=reward))


DISTANCE_REWARD = with_reward_term(Distance("velocity", 1.0))


class Ring:
    """Both ends of a ring whose loop has not ended."""

    def __init__(self, folder: Path, config: RunConfig = DISTANCE_REWARD) -> None:
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
        records = self.reader.peek(limit)
        self.reader.take(len(records))
        return records


def rows(n: int, start: int = 0) -> Records:
    """An episode of n transitions, each after a velocity of its tick."""
    records = episode(n)
    records["observation"][:, 1] = records["tick"]
    return records[start:]


def test_a_record_waits_for_the_one_that_its_reward_needs(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    assert isinstance(ring.reader, ScoredRingReader)
    all_rows = rows(3)
    ring.push(all_rows[:2])
    assert ring.take()["tick"].tolist() == [0]
    assert len(ring.take()) == 0
    ring.push(all_rows[2:])
    taken_rows = ring.take()
    assert taken_rows["tick"].tolist() == [1, 2, 3], "the last of an episode needs none"
    assert taken_rows["reward"].tolist() == [
        all_rows["reward"][1] - 2.0,
        all_rows["reward"][2] - 3.0,
        all_rows["reward"][3],
    ]


def test_a_record_read_again_has_the_same_bits_and_its_own_crc(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    ring.push(rows(5))
    first_reading = np.concatenate([ring.take(2), ring.take(1)])
    assert ring.reader.retained().tobytes() == first_reading.tobytes()
    assert all(LAYOUT.has_valid_crc(memoryview(row.tobytes())) for row in first_reading)
    assert first_reading["reward"][2] == rows(5)["reward"][2] - 3.0


def test_the_last_record_of_an_ended_loop_is_read_without_its_terms(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    ring.push(rows(3)[:2])
    ring.has_loop_ended = True
    assert ring.take()["tick"].tolist() == [0, 1]


def test_lost_and_invalid_transitions_are_left_unchanged(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    all_rows = rows(5)
    all_rows["flags"][1] |= Flag.INVALID
    remaining = np.concatenate([all_rows[:3], all_rows[4:]])
    ring.push(remaining)
    reward_change = ring.take()["reward"] - remaining["reward"]
    assert reward_change.tolist() == [-1.0, 0.0, 0.0, -5.0, 0.0], "records 1 (invalid) and 2 (its successor lost)"


def test_a_step_is_completed_like_its_record() -> None:
    terms = terms_of(DISTANCE_REWARD, LAYOUT)
    assert terms is not None
    all_rows = rows(2)
    step, next_step = LAYOUT.step(all_rows[0]), LAYOUT.step(all_rows[1])
    terms.complete(step, next_step)
    assert step.reward == terms.score(all_rows)["reward"][0] == all_rows["reward"][0] - 1.0


@pytest.mark.parametrize(
    ("defect", "message"), [("raises", "'mine' raises KeyError"), ("infinite", "the reward terms give inf")]
)
def test_a_failing_term_is_reported(tmp_path: Path, defect: str, message: str) -> None:
    ring = Ring(tmp_path, with_reward_term(DefectiveTerm(defect)))
    ring.push(rows(2))
    with pytest.raises(TermFailed, match=message):
        ring.reader.peek()


def test_without_terms_the_ring_is_read_unchanged(tmp_path: Path) -> None:
    ring = Ring(tmp_path, PENDULUM)
    assert type(ring.reader) is RingReader
    ring.push(rows(3)[:2])
    assert len(ring.take()) == 2
