from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.learner.trials.ranked import RankedKeys


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), factors=st.lists(st.floats(0.0, 20.0), max_size=3))
def test_the_order_is_that_of_a_sorted_list_whatever_lies_in_its_overlays(seed: int, factors: list[float]) -> None:
    rng = np.random.default_rng(seed)
    order = RankedKeys([(factor, 0.5) for factor in factors])
    expected: dict[int, int] = {}
    for _ in range(25):
        ascending = sorted(expected)
        removed = np.flatnonzero(rng.random(len(ascending)) < rng.choice([0.02, 0.3]))
        for rank in removed.tolist():
            del expected[ascending[rank]]
        fresh = rng.choice(500, rng.integers(0, 40), replace=False)
        fresh = fresh[[key not in expected for key in fresh.tolist()]]
        rows = rng.integers(0, 2**32, len(fresh))
        order.exchange(removed, fresh.astype(np.uint64), rows.astype(np.uint32))
        expected |= dict(zip(fresh.tolist(), rows.tolist(), strict=True))
        ascending = sorted(expected)
        assert len(order) == len(ascending)
        found = order.at(np.arange(len(ascending)))
        assert found.keys.tolist() == ascending
        assert found.rows.tolist() == [expected[key] for key in ascending]
        assert order.ranks(np.array(ascending, np.uint64)).tolist() == list(range(len(ascending)))
        some = np.sort(rng.integers(0, len(ascending), 5)) if ascending else np.zeros(0, np.int64)
        assert order.at(some).keys.tolist() == [ascending[i] for i in some.tolist()]
