"""Where a successor starts, and which records it knows."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.runtime.record import Kind
from onrig.runtime.replay.intake import find_ring_position, records_from


@pytest.mark.parametrize(
    ("tail", "restored", "expected"),
    [
        (0, None, (0, 0)),
        (40, None, (40, 40)),
        (40, {"life": 7, "taken": 60}, (60, 0)),
        (70, {"life": 7, "taken": 60}, (70, 10)),
        (0, {"life": 6, "taken": 60}, (0, 0)),
        (5, {"taken": 60}, (5, 5)),
    ],
    ids=["a new run", "no checkpoint", "the usual", "the ring had to yield", "another life's", "an older version's"],
)
def test_a_successor_starts_after_the_checkpoint_of_its_own_lifetime(
    tail: int, restored: dict[str, int] | None, expected: tuple[int, int]
) -> None:
    assert find_ring_position(tail, 7, restored) == expected


def records(*parts: tuple[Kind, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    rows = [(n, episode, kind) for n, (kind, episode) in enumerate(parts)]
    return np.array(rows, [("seq", "<u8"), ("episode", "<u4"), ("kind", "u1")])


def test_known_records_are_left_out() -> None:
    queued = records(*[(Kind.TRAIN, 1)] * 4)
    assert [records_from(queued, seq)["seq"].tolist() for seq in (0, 2, 9)] == [[0, 1, 2, 3], [2, 3], []]
    assert len(records_from(queued[:0], 2)) == 0
