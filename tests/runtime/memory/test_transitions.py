from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.inputs import PolicyInput, policy_signals
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.transitions import TransitionBuilder, Transitions
from onrig.runtime.record import Flag as RecordFlag
from onrig.runtime.record import Kind, RecordLayout, Rule
from tests.runtime.samples import LAYOUT, MAGMAN, PENDULUM, Records, episode, records

RIG = PENDULUM.rig


def columns_of(parts: list[Transitions]) -> list[list[object]]:
    """All transitions of some batches, column by column."""
    return [np.concatenate(column).tolist() for column in zip(*parts, strict=True)]


def build(*batches: Records) -> tuple[Transitions, int]:
    builder = TransitionBuilder(RIG)
    parts = [builder.add(batch) for batch in batches]
    return Transitions(*(np.concatenate(column) for column in zip(*parts, strict=True))), builder.gaps


def ticks(transitions: Transitions) -> list[int]:
    """Records of these transitions: the samples give each record its own reward."""
    return [round(-1 - r) for r in transitions.reward.tolist()]


def test_an_episode_of_n_transitions_has_n_plus_one_records() -> None:
    transitions, gaps = build(episode(4))
    assert (ticks(transitions), gaps) == ([0, 1, 2, 3], 0)


def test_a_transition_is_a_record_and_the_next_observation_in_normalised_units() -> None:
    rows = records(2)
    rows["observation"] = [[np.pi, -15.0], [-np.pi / 2, 45.0]]
    rows["applied"][0], rows["reward"][0], rows["exploration"][0], rows["policy_id"][0] = -1.5, -12.5, 0.75, 9
    transitions, _ = build(rows)
    assert transitions.observation.tolist() == [[1.0, -0.5]]
    assert transitions.next_observation.tolist() == [[-0.5, 1.5]], "not clipped"
    assert transitions.action.tolist() == [[-0.5]]
    assert (transitions.reward.tolist(), transitions.exploration.tolist(), transitions.policy_id.tolist()) == (
        [-12.5],
        [0.75],
        [9],
    )
    numbers = ["uint32"] * 2
    assert [c.dtype.name for c in transitions] == ["float32"] * 4 + numbers + ["float32"] + numbers + ["float32"]
    assert transitions.behaviour.shape == (1, 0)


def test_an_asymmetric_range_is_mapped_onto_minus_one_to_one() -> None:
    rows = np.zeros(2, RecordLayout(2, 2, 4).dtype)
    rows["tick"], rows["frame"] = [0, 1], [1, 2]
    rows["observation"] = [[-0.035, 0.4], [0.105, -0.4]]
    rows["applied"] = [[0.0, 0.6, 0.3, 0.15], [0.0] * 4]
    transitions = TransitionBuilder(MAGMAN.rig).add(rows)
    np.testing.assert_allclose(transitions.action, [[-1.0, 1.0, 0.0, -0.5]], atol=1e-6)
    np.testing.assert_allclose(transitions.observation, [[-1.0, 1.0]], atol=1e-6)
    np.testing.assert_allclose(transitions.next_observation, [[1.0, -1.0]], atol=1e-6)


def test_an_added_previous_command_is_normalised_by_its_actuators_range() -> None:
    rows = np.zeros(2, RecordLayout(2, 3, 1).dtype)
    rows["tick"], rows["frame"] = [0, 1], [1, 2]
    rows["observation"][:, 2] = [-1.5, 3.0]
    transitions = TransitionBuilder(msgspec.structs.replace(RIG, previous_command=True)).add(rows)
    assert [transitions.observation[0, 2], transitions.next_observation[0, 2]] == [-0.5, 1.0]


# -- no transition across a gap ----------------------------------------------------------------------------------------


def test_records_dropped_by_the_full_ring_leave_no_transition_across_them() -> None:
    rows = episode(9)
    transitions, gaps = build(rows[[0, 1, 2, 6, 7, 8, 9]])
    assert (ticks(transitions), gaps) == ([0, 1, 6, 7, 8], 1)


def test_a_lost_frame_leaves_no_transition_across_it() -> None:
    rows = episode(5)
    rows["frame"][3:] += 1
    transitions, gaps = build(rows)
    assert (ticks(transitions), gaps) == ([0, 1, 3, 4], 1)


def test_an_incompletely_observed_transition_is_left_out() -> None:
    rows = episode(5)
    rows["flags"][2] |= RecordFlag.INVALID
    transitions, gaps = build(rows)
    assert (ticks(transitions), gaps) == ([0, 1, 3, 4], 1)


def test_a_late_command_is_not_a_gap() -> None:
    rows = episode(3)
    rows["flags"] |= int(RecordFlag.LATE)
    transitions, gaps = build(rows)
    assert (ticks(transitions), gaps) == ([0, 1, 2], 0)


def test_no_transition_leads_from_one_episode_into_the_next() -> None:
    transitions, gaps = build(episode(2), episode(2, tick=3, frame=4, episode=2))
    assert (ticks(transitions), gaps) == ([0, 1, 3, 4], 0)


def test_nothing_starts_from_the_last_record_of_an_episode_even_if_its_number_is_reused() -> None:
    transitions, gaps = build(episode(2), episode(2, tick=3, frame=4))
    assert (ticks(transitions), gaps) == ([0, 1, 3, 4], 0)


def test_an_episode_whose_end_was_dropped_does_not_run_into_the_next() -> None:
    transitions, _ = build(episode(2)[:-1], episode(2, tick=3, frame=4, episode=2))
    assert ticks(transitions) == [0, 3, 4]


def test_evaluation_episodes_are_neither_stored_nor_joined_to_the_training_before_them() -> None:
    evaluation = episode(3, tick=3, frame=4, kind=Kind.EVAL)
    transitions, gaps = build(episode(2), evaluation, episode(2, tick=7, frame=8, episode=2))
    assert (ticks(transitions), gaps) == ([0, 1, 7, 8], 0)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(
    ("column", "value", "left"),
    [
        ("observation", np.nan, [0, 3]),
        ("observation", np.inf, [0, 3]),
        ("applied", -np.inf, [0, 1, 3]),
        ("reward", np.nan, [0, 1, 3]),
        ("reward", 1e300, [0, 1, 3]),
        ("exploration", np.inf, [0, 1, 3]),
    ],
)
def test_non_finite_transitions_are_dropped_and_counted(column: str, value: float, left: list[int]) -> None:
    rows = episode(4)
    rows[column][2] = value
    transitions, gaps = build(rows)
    assert (ticks(transitions), gaps) == (left, 4 - len(left))
    assert all(np.isfinite(part).all() for part in transitions)


def test_a_non_finite_policy_action_does_not_matter_once_the_shield_has_replaced_it() -> None:
    rows = episode(2)
    rows["policy"][0] = rows["explored"][0] = np.nan
    assert ticks(build(rows)[0]) == [0, 1]


# -- attributes of a transition ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "flag"), [(RecordFlag.TERMINATED, Flag.TERMINATED), (RecordFlag.TRUNCATED, Flag.TRUNCATED)]
)
def test_only_the_last_transition_is_terminated_or_truncated_and_never_both(end: RecordFlag, flag: Flag) -> None:
    transitions, _ = build(episode(3, end=end))
    assert transitions.flags.tolist() == [0, 0, flag]


def test_a_transition_holds_its_episode_and_its_number_within_it() -> None:
    transitions, _ = build(episode(3, tick=50), episode(2, tick=54, frame=5, episode=2))
    assert transitions.episode.tolist() == [1, 1, 1, 2, 2]
    assert transitions.step.tolist() == [0, 1, 2, 0, 1]


def test_lost_records_are_counted_but_not_an_evaluation_in_between() -> None:
    evaluation = episode(3, tick=4, frame=5, kind=Kind.EVAL)
    next_episode = episode(4, tick=8, frame=9, episode=2)[[0, 2, 3, 4]]
    transitions, _ = build(episode(3)[:2], evaluation[2:], next_episode[:1], next_episode[1:])
    assert (transitions.episode.tolist(), transitions.step.tolist()) == ([1, 2, 2], [0, 2, 3])


def test_in_an_episode_joined_late_the_first_record_seen_counts_as_its_first() -> None:
    transitions, _ = build(episode(5)[3:])
    assert transitions.step.tolist() == [0, 1]


def test_a_successor_counts_from_the_first_record_of_the_episode_whatever_was_lost() -> None:
    records = episode(9, tick=50)
    first, second = TransitionBuilder(RIG), TransitionBuilder(RIG)
    first.add(records[:4])
    second.episode_start = first.episode_start
    assert second.add(records[6:]).step.tolist() == [6, 7, 8]


def test_an_intervention_of_the_shield_is_noted() -> None:
    rows = episode(4)
    rows["rule"][1], rows["rule"][2] = Rule.RATE, Rule.FALLBACK
    expected_flags = Flag.INTERVENED | Flag.DEVIATES
    assert build(rows)[0].flags.tolist() == [0, expected_flags, expected_flags, Flag.TRUNCATED]


def test_an_action_other_than_the_chosen_one_deviates() -> None:
    rows = episode(5)
    rows["applied"] = 1.5
    rows["explored"][:, 0] = [1.5, 1.45, 1.0, np.nan, 1.5, 0.0]
    assert (build(rows)[0].flags & Flag.DEVIATES).tolist() == [0, 0, Flag.DEVIATES, Flag.DEVIATES, 0]


def test_an_action_drawn_with_less_noise_deviates() -> None:
    rows = episode(3)
    rows["flags"][1] |= RecordFlag.RESTRAINED
    rows["applied"] = rows["explored"]
    assert (build(rows)[0].flags & Flag.DEVIATES).tolist() == [0, Flag.DEVIATES, 0]


def test_an_action_clipped_to_its_range_is_the_chosen_one() -> None:
    rows = episode(1)
    rows["applied"], rows["explored"] = -3.0, -7.0
    assert not (build(rows)[0].flags & Flag.DEVIATES).any()


def test_the_behaviour_of_a_stochastic_policy_is_mean_deviation_and_draw() -> None:
    rows = np.zeros(2, RecordLayout(2, 2, 1, behaviour=True).dtype)
    rows["tick"], rows["frame"] = [0, 1], [1, 2]
    rows["mean"][0], rows["std"][0], rows["drawn"][0] = 0.25, 0.5, -1.75
    assert build(rows)[0].behaviour.tolist() == [[0.25, 0.5, -1.75]]


# -- batches -----------------------------------------------------------------------------------------------------------


@st.composite
def recordings(draw: st.DrawFn) -> Records:
    """Records of several episodes of either kind, some dropped, some frames lost, some flagged."""
    parts, tick, frame = [], 0, 1
    for number in range(1, draw(st.integers(1, 4)) + 1):
        kind = draw(st.sampled_from([Kind.TRAIN, Kind.TRAIN, Kind.EVAL]))
        end = draw(st.sampled_from([RecordFlag.TRUNCATED, RecordFlag.TERMINATED]))
        part = episode(draw(st.integers(0, 5)), end=end, tick=tick, frame=frame, episode=number, kind=kind)
        for row in part:
            row["frame"] += draw(st.sampled_from([0, 0, 0, 1]))
            row["flags"] |= draw(st.sampled_from([0, 0, RecordFlag.INVALID, RecordFlag.LATE]))
            row["reward"] = draw(st.sampled_from([row["reward"]] * 4 + [np.nan]))
        tick, frame = tick + len(part), frame + len(part) + draw(st.integers(0, 1))
        parts.append(part)
    rows = np.concatenate(parts)
    is_kept = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=len(rows), max_size=len(rows)))
    left: Records = rows[np.array(is_kept, bool)]
    return left


def observed_ticks(rows: Records) -> list[int]:
    """Ticks whose transition is observed completely, according to the definition."""
    ticks = []
    for a, b in itertools.pairwise(rows):
        is_same_episode = a["episode"] == b["episode"] and a["kind"] == b["kind"] == Kind.TRAIN
        is_next = b["tick"] == a["tick"] + 1 and b["frame"] == a["frame"] + 1
        starts = not a["flags"] & (RecordFlag.NO_ACTION | RecordFlag.INVALID)
        if is_same_episode and is_next and starts and np.isfinite(a["reward"]):
            ticks.append(int(a["tick"]))
    return ticks


@settings(max_examples=60)
@given(recordings())
def test_exactly_the_completely_observed_pairs_become_transitions(rows: Records) -> None:
    assert ticks(build(rows)[0]) == observed_ticks(rows)


@settings(max_examples=60)
@given(recordings(), st.lists(st.integers(0, 30), max_size=8))
def test_the_batching_of_records_does_not_matter(rows: Records, cuts: list[int]) -> None:
    expected, gaps = build(rows)
    edges = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    batches = [rows[a:b] for a, b in itertools.pairwise(edges)]
    actual, actual_gaps = build(*batches)
    assert columns_of([actual]) == columns_of([expected])
    assert actual_gaps == gaps


def test_no_transition_follows_from_nothing_or_a_single_record() -> None:
    builder = TransitionBuilder(RIG)
    assert len(builder.add(np.zeros(0, LAYOUT.dtype)).reward) == 0
    assert len(builder.add(records(1)).reward) == 0
    assert len(builder.add(np.zeros(0, LAYOUT.dtype)).reward) == 0
    assert ticks(builder.add(records(2)[1:])) == [0], "the previous record is still pending"


def test_the_pending_record_does_not_keep_a_batch_alive() -> None:
    rows = records(3)
    builder = TransitionBuilder(RIG)
    builder.add(rows)
    rows["observation"] = 99.0
    transitions = builder.add(records(4)[3:])
    assert transitions.observation[0].tolist() == pytest.approx([3.0 / np.pi, 2.0 / 30.0])


@given(st.integers(0, 12), st.integers(0, 4095))
def test_selecting_keeps_the_selected_ones_in_order(n: int, mask: int) -> None:
    transitions, _ = build(records(n + 1))
    selected = np.array([bool(mask >> i & 1) for i in range(n)], bool)
    assert ticks(transitions.select(selected)) == [i for i in range(n) if selected[i]]


def test_the_memory_holds_the_inputs_of_the_policy() -> None:
    bare_records = records(3)
    rows = np.zeros(3, RecordLayout(2, 2, 1, n_inputs=3).dtype)
    for name in bare_records.dtype.names or ():
        rows[name] = bare_records[name]
    rows["input"] = np.arange(9).reshape(3, 3) / 4.0
    inputs = (PolicyInput("angle", "cos"), PolicyInput("angle", "sin"), PolicyInput("velocity", lag=1))
    transitions = TransitionBuilder(RIG, policy_signals(inputs, RIG)).add(rows)
    normalised_inputs = rows["input"] / [1.0, 1.0, 30.0]
    assert transitions.observation.tolist() == np.float32(normalised_inputs[:2]).tolist()
    assert transitions.next_observation.tolist() == np.float32(normalised_inputs[1:]).tolist()
    assert transitions.action.tolist() == TransitionBuilder(RIG).add(bare_records).action.tolist()
