from __future__ import annotations

import numpy as np
import pytest

from onrig.learner.notes import Notes


def test_a_rewritten_slot_starts_over_in_every_column_of_its_trial() -> None:
    notes = Notes(2, 6)
    ratio, is_far = notes.add_column("ratio", 1.0), notes.add_column("far", False, np.bool_)
    wide_column = notes.add_column("wide", 0.5, shape=(3,))
    notes.on_write(0, np.array([0, 1, 2]))
    ratio[:], is_far[:], wide_column[:] = 3.0, True, 3.0
    notes.on_write(0, np.array([1, 3, 1]))
    assert ratio.tolist() == [[3, 1, 3, 1, 3, 3], [3] * 6]
    assert is_far[0].tolist() == [True, False, True, False, True, True]
    assert wide_column.sum(axis=2).tolist() == [[9, 1.5, 9, 1.5, 9, 9], [9] * 6]
    assert notes.stored.tolist() == [4, 0]
    notes.clear()
    assert ratio.tolist() == [[1] * 6] * 2
    assert notes.stored.tolist() == [0, 0]


def test_restored_notes_have_the_same_columns_and_mismatched_ones_change_nothing() -> None:
    notes, other = Notes(1, 4), Notes(1, 4)
    columns = [n.add_column("ratio", 1.0) for n in (notes, other)]
    notes.on_write(0, np.array([0, 1]))
    columns[0][0, :2] = 0.25, 7.0
    other.restore(notes.state())
    assert columns[1].tolist() == columns[0].tolist()
    assert other.stored.tolist() == [2]
    with pytest.raises(ValueError, match="column ratio of shape"):
        other.restore({"stored": np.array([9]), "ratio": np.zeros((1, 5))})
    with pytest.raises(KeyError):
        other.restore({"stored": np.array([9])})
    assert other.stored.tolist() == [2]
