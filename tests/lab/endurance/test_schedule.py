from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.run_state.faults import FaultName
from tests.lab.endurance.schedule import (
    LETHAL,
    MAX_REARMS,
    MAX_REPLAY_KILLS,
    MISSED,
    NATURES,
    RESTARTED,
    Fault,
    Kind,
    plan,
)

SEEDS = st.integers(0, 10_000)


def stretches(faults: tuple[Fault, ...]) -> list[list[Kind]]:
    """Return the kinds between two faults that end the run."""
    groups: list[list[Kind]] = [[]]
    for fault in faults:
        if NATURES[fault.kind].ends_run:
            groups.append([])
        else:
            groups[-1].append(fault.kind)
    return groups


@given(SEEDS)
@settings(max_examples=20)
def test_equal_arguments_give_equal_plans(seed: int) -> None:
    assert plan(600, 5, seed) == plan(600, 5, seed)


def test_another_seed_gives_another_plan() -> None:
    assert len({plan(600, 5, seed) for seed in range(20)}) == 20


@given(SEEDS, st.integers(len(Kind), 300))
@settings(max_examples=40)
def test_a_long_plan_contains_every_kind(seed: int, count: int) -> None:
    assert {f.kind for f in plan(5.0 * count, 5.0, seed)} == set(Kind)


@given(SEEDS, st.integers(1, len(Kind)))
@settings(max_examples=40)
def test_a_short_plan_repeats_no_kind(seed: int, count: int) -> None:
    kinds = [f.kind for f in plan(5.0 * count, 5.0, seed)]
    assert len(set(kinds)) == len(kinds) == count


@given(SEEDS, st.floats(0.5, 30), st.floats(1, 3000))
@settings(max_examples=60)
def test_faults_are_evenly_spaced_within_the_soak(seed: int, every_s: float, length_s: float) -> None:
    faults = plan(length_s, every_s, seed)
    assert all(b.at_s - a.at_s == pytest.approx(every_s) for a, b in itertools.pairwise(faults))
    assert all(every_s <= f.at_s <= length_s * (1 + 1e-6) for f in faults)
    assert (len(faults) + 1) * every_s > length_s


@given(SEEDS)
@settings(max_examples=60)
def test_limited_faults_remain_within_their_limits(seed: int) -> None:
    for kinds in stretches(plan(3000, 5, seed)):
        assert sum(NATURES[k].rearms for k in kinds) <= MAX_REARMS
        assert kinds.count(Kind.REPLAY_KILLED) <= MAX_REPLAY_KILLS


@given(SEEDS, st.integers(2 * len(Kind), 200))
@settings(max_examples=40)
def test_no_process_is_killed_in_the_last_two_fifths_of_a_long_soak(seed: int, count: int) -> None:
    faults = plan(5.0 * count, 5.0, seed)
    assert not any(f.kind in LETHAL for f in faults[count - 2 * count // 5 :])
    assert {f.kind for f in faults[: count - 2 * count // 5]} >= LETHAL


@given(SEEDS)
@settings(max_examples=20)
def test_duration_and_amount_are_within_the_kinds_limits(seed: int) -> None:
    for fault in plan(600, 5, seed):
        nature = NATURES[fault.kind]
        assert nature.duration_s[0] <= fault.duration_s <= nature.duration_s[1]
        assert nature.amount[0] <= fault.amount <= nature.amount[1]


def test_every_kind_has_a_nature_with_valid_fault_names() -> None:
    assert set(NATURES) == set(Kind)
    names = {name for nature in NATURES.values() for name in nature.names}
    assert names <= {f.value for f in FaultName} | {MISSED, RESTARTED}


@pytest.mark.parametrize(("length_s", "every_s"), [(60, 0), (60, -1), (-1, 5), (60, float("nan"))])
def test_invalid_arguments_of_a_plan_are_refused(length_s: float, every_s: float) -> None:
    with pytest.raises(ValueError, match="no plan"):
        plan(length_s, every_s, 0)
