from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.replay.memory.strategy import SAMPLINGS
from onrig.tools.reports.style import spread, strategy_look


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_keep_their_order_and_distance_within_the_panel(wanted: list[float]) -> None:
    gap = 0.08
    places = spread(sorted(wanted), gap)
    assert len(places) == len(wanted)
    assert min(places) >= -1e-9
    assert max(places) <= 1 + 1e-9
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(places))


def test_labels_with_room_stay_where_they_belong_and_a_pair_moves_apart_evenly() -> None:
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread([1.0, 1.0], 0.1) == pytest.approx([0.9, 1.0])


def test_every_strategy_looks_different() -> None:
    retentions = ("FIFO", "FULL", "Resv", "TDE", "Expl")
    looks = {strategy_look(r, s)[:3] for r in retentions for s in SAMPLINGS}
    assert len(looks) == len(retentions) * len(SAMPLINGS)
