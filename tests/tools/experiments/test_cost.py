"""Costs of trials, estimated from a few updates."""

from __future__ import annotations

import msgspec
import pytest

from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.step_run import Evaluation, StepRun
from onrig.runtime.memory.settings import Selection
from onrig.tools.experiments.cost import Cost, count_updates, estimate_costs
from onrig.tools.experiments.jobs import Unit
from onrig.tools.experiments.runner import Tally
from onrig.tools.experiments.store import WorldCell

PPO = LearnerSettings(algorithm="ppo")


def _cell(run: StepRun) -> WorldCell:
    return WorldCell("id", {"world": "pendulum"}, run)


def _batches(**options: object) -> WorldCell:
    section = {"hidden": [4], "steps": 64, "batch": 4, **options}
    learner = LearnerSettings(algorithm="ppo", ppo=type(PPO.algorithm_config)(**section))  # type: ignore[arg-type]
    return _cell(StepRun("plant:pendulum", 700, Evaluation(every=100), horizon=10, learner=learner))


REPLAY_RUN = StepRun(
    "plant:pendulum",
    1000,
    horizon=20,
    random_steps=100,
    updates_per_step=0.5,
    update_every=200,
    selection=Selection("FIFO[Uniform]", capacity=500),
)


def test_updates_follow_complete_groups_of_steps_or_batches() -> None:
    assert count_updates(_cell(REPLAY_RUN)) == 400
    assert [count_updates(_cell(REPLAY_RUN), steps) for steps in (50, 299, 300, 500)] == [0, 0, 100, 200]
    assert count_updates(_batches()) == 10
    assert count_updates(_batches(), 127) == 1


def test_the_cost_of_a_trial_is_its_steps_updates_and_evaluations() -> None:
    assert Cost(0.5, 2.0, 10.0, 1).trial_s(_cell(REPLAY_RUN)) == 500.0 + 800.0 + 10.0


def test_a_few_updates_are_timed_whatever_their_number_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.tools.experiments.cost.PROBE_S", 0.0)
    cost = estimate_costs([_cell(REPLAY_RUN)], 2)["id"]
    assert cost.updates == 1
    assert cost.acting_s > 0.0
    assert cost.evaluation_s > 0.0


def test_a_trial_of_one_batch_is_timed_too() -> None:
    run = StepRun("plant:pendulum", 16, Evaluation(every=16), horizon=20, random_steps=0)
    assert estimate_costs([_cell(run)], 1)["id"].updates >= 1


def test_updates_are_timed_even_if_most_experiences_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.tools.experiments.cost.PROBE_S", 0.0)
    updates_timed: list[int] = []
    monkeypatch.setattr(
        "onrig.learner.trials.learning.Replay.learn", lambda self, updates: updates_timed.append(updates)
    )
    selection = Selection("FIFO[Uniform]", capacity=500, write_probability=0.01)
    estimate_costs([_cell(msgspec.structs.replace(REPLAY_RUN, selection=selection))], 2)
    assert updates_timed == [1, 1, 1]


def test_a_full_memory_with_just_enough_room_has_room_for_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.tools.experiments.cost.PROBE_S", 0.0)
    run = msgspec.structs.replace(REPLAY_RUN, selection=Selection("FULL[Uniform]", capacity=REPLAY_RUN.steps))
    assert estimate_costs([_cell(run)], 1)["id"].updates >= 1


def test_progress_counts_gradient_steps() -> None:
    assert [_cell(REPLAY_RUN).updates_until(points) for points in (0, 1)] == [0, 400]
    batches = _batches(epochs=3, depth=2, draw="uniform")
    assert [batches.updates_until(points) for points in (1, 7)] == [3 * 2 * 16, 10 * 3 * 2 * 16]


def test_remaining_time_is_estimated_by_updates_and_not_by_evaluations() -> None:
    run = msgspec.structs.replace(REPLAY_RUN, update_every=2, random_steps=500, evaluation=Evaluation(every=250))
    unit = Unit(_cell(run), (0,))
    clock = iter([0.0, 10.0, 20.0])
    tally = Tally([unit], 0, lambda: next(clock))
    tally.advance(unit, 2)
    assert tally.line() == "0 of 1 trials, 0.20 evaluations/s"
    tally.advance(unit, 3)
    assert tally.line() == "0 of 1 trials, 0.15 evaluations/s, 20 s left"


@pytest.mark.parametrize("actors", [1, 4])
def test_part_of_a_batch_represents_all_of_it(actors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_counts: list[int] = []
    monkeypatch.setattr("onrig.learner.trials.engine.Trials.train", lambda self, n: sample_counts.append(n))
    estimate_costs([_batches(actors=actors, depth=3, draw="uniform")], 1)
    assert sample_counts == [4, 4, 4 - actors, actors]
