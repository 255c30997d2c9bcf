from __future__ import annotations

import math

import msgspec
import pytest
from msgspec import UNSET

from onrig.runtime.reward_terms import Terminal
from onrig.runtime.rewards import RewardTerm
from onrig.runtime.scoring import compile_cut_off_reward, early_end, measure_of, normalized
from onrig.runtime.starts import middle_start
from onrig.runtime.task import Task, compile_reward
from onrig.runtime.terminations import Outside
from tests.runtime.samples import PENDULUM

RIG, TASK = PENDULUM.rig, PENDULUM.task
GAMMA, STEPS = 0.95, 200
TERMINATING = msgspec.structs.replace(TASK, terminate={"velocity": (-15.0, 15.0)})


def test_normalized_performance_is_0_for_random_and_1_for_the_reference() -> None:
    assert normalized(TASK, -163.51, 1) == 0.0
    assert normalized(TASK, 4 * -43.1, 4) == 1.0
    assert normalized(TASK, 0.5 * (-163.51 - 43.1), 1) == pytest.approx(0.5)
    score = normalized(TASK, 0.0, 0)
    assert score is not None
    assert math.isnan(score)


def test_falling_early_is_never_better_than_continuing_like_the_random_controller() -> None:
    survival_score = normalized(TERMINATING, 10 * -43.1 + 190 * -163.51, 200)
    cut_off_reward = compile_cut_off_reward(TERMINATING, RIG)((0.0, 15.1))
    assert cut_off_reward == -163.51
    assert (
        normalized(TERMINATING, 10 * -43.1, 10, cut_off_steps=190, cut_off_reward=cut_off_reward)
        == pytest.approx(survival_score)
        == pytest.approx(0.05)
    )


def task_with_terminations(*terms: float, **ends: Outside) -> Task:
    """The pendulum with terms that reward every end, and named ends."""
    terminal_terms: dict[str, RewardTerm] = {f"end{i}": Terminal(reward) for i, reward in enumerate(terms)}
    reward = msgspec.structs.replace(TASK.reward, terms=terminal_terms or UNSET)
    return msgspec.structs.replace(TASK, reward=reward, terminations=ends)


def test_a_step_not_lived_counts_as_the_reward_of_the_end_if_that_is_less_than_random() -> None:
    ends = {
        "fallen": Outside("velocity", -15.0, 15.0, reward=-500.0),
        "arrived": Outside("angle", -3.0, 3.0, reward=50.0),
        "lost": Outside("velocity", -30.0, 30.0),
    }
    cut_off_reward = compile_cut_off_reward(task_with_terminations(**ends), RIG)
    assert cut_off_reward((0.0, 16.0)) == -500.0
    assert cut_off_reward((3.1, 0.0)) == -163.51, "an end that pays more than random actions is not a penalty"
    assert cut_off_reward((3.1, 16.0)) == -450.0
    assert compile_cut_off_reward(task_with_terminations(lost=ends["lost"]), RIG)((0.0, 31.0)) == -163.51
    combined_reward = compile_cut_off_reward(task_with_terminations(-100.0, -150.0, **ends), RIG)
    assert combined_reward((0.0, 16.0)) == -750.0
    assert combined_reward((3.1, 0.0)) == -200.0
    assert cut_off_reward((0.0, 15.0)) == -500.0, "if rounding hides which end occurred, the worst one counts"


def test_an_early_end_is_weighted_by_the_reward_of_the_best_end() -> None:
    ends = {
        "fallen": Outside("velocity", -15.0, 15.0, reward=-500.0),
        "arrived": Outside("angle", -3.0, 3.0, reward=50.0),
    }
    assert early_end(task_with_terminations(-10.0, **ends), RIG, STEPS, GAMMA).ending_reward == 40.0
    assert early_end(task_with_terminations(fallen=ends["fallen"]), RIG, STEPS, GAMMA).ending_reward == -500.0
    bounded_task = msgspec.structs.replace(
        task_with_terminations(fallen=ends["fallen"]), terminate={"angle": (-3.0, 3.0)}
    )
    assert early_end(bounded_task, RIG, STEPS, GAMMA).ending_reward == 0.0


def test_without_references_an_episode_is_measured_by_its_return() -> None:
    raw = msgspec.structs.replace(TASK, normalization=None)
    assert normalized(raw, -12.0, 4) is None
    assert (measure_of(raw).column, measure_of(TASK).column) == ("return", "normalized")


def test_under_costs_alone_an_early_end_pays() -> None:
    end = early_end(TERMINATING, RIG, STEPS, GAMMA)
    weight = (1 - GAMMA**STEPS) / (1 - GAMMA)
    assert end.ending_reward == 0.0
    assert end.typical_return == pytest.approx(-163.51 * weight)
    worst_reward = compile_reward(TERMINATING, RIG)(
        (0.0, 15.0), (3.0,)
    )  # upside down, as fast as the task allows, at full voltage
    assert end.worst_return == pytest.approx(worst_reward * weight)
    assert end.is_profitable


@pytest.mark.parametrize(
    ("alive", "terminal", "is_profitable"),
    [(UNSET, -4000.0, False), (UNSET, -3000.0, True), (200.0, UNSET, True), (200.0, -3000.0, True)],
)
def test_an_end_pays_unless_its_reward_is_below_that_of_continuing(
    alive: float | msgspec.UnsetType, terminal: float | msgspec.UnsetType, is_profitable: bool
) -> None:
    reward = msgspec.structs.replace(TASK.reward, alive=alive, terminal=terminal)
    assert (
        early_end(msgspec.structs.replace(TERMINATING, reward=reward), RIG, STEPS, GAMMA).is_profitable is is_profitable
    )


def test_without_references_continuing_is_valued_like_the_start() -> None:
    raw = msgspec.structs.replace(TERMINATING, normalization=None)
    reward = compile_reward(raw, RIG)([middle_start(raw.start)["angle"], middle_start(raw.start)["velocity"]], (0.0,))
    end = early_end(raw, RIG, STEPS, GAMMA)
    assert end.typical_return == pytest.approx(reward * (1 - GAMMA**STEPS) / (1 - GAMMA))


def test_the_alive_reward_counts_for_continuing() -> None:
    reward = msgspec.structs.replace(TASK.reward, alive=200.0)
    raw = msgspec.structs.replace(TERMINATING, normalization=None, reward=reward)
    assert not early_end(raw, RIG, STEPS, GAMMA).is_profitable
