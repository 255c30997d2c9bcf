from __future__ import annotations

import math

import msgspec
import pytest
from msgspec import UNSET

from onrig.runtime.scoring import early_end, measure_of, normalized
from onrig.runtime.task import compile_reward
from tests.runtime.samples import PENDULUM

RIG, TASK = PENDULUM.rig, PENDULUM.task
GAMMA, STEPS = 0.95, 200
FALLS = msgspec.structs.replace(TASK, terminate={"velocity": (-15.0, 15.0)})


def test_normalized_performance_is_0_for_random_and_1_for_the_reference() -> None:
    assert normalized(TASK, -163.51, 1) == 0.0
    assert normalized(TASK, 4 * -43.1, 4) == 1.0
    assert normalized(TASK, 0.5 * (-163.51 - 43.1), 1) == pytest.approx(0.5)
    nothing = normalized(TASK, 0.0, 0)
    assert nothing is not None
    assert math.isnan(nothing)


def test_falling_early_is_never_better_than_living_on_as_the_random_controller_does() -> None:
    lived = normalized(FALLS, 10 * -43.1 + 190 * -163.51, 200)
    assert normalized(FALLS, 10 * -43.1, 10, cut_off_steps=190) == pytest.approx(lived)
    assert normalized(FALLS, 10 * -43.1, 10, cut_off_steps=190) == pytest.approx(0.05)


def test_without_references_an_episode_is_measured_by_its_return() -> None:
    raw = msgspec.structs.replace(TASK, normalization=None)
    assert normalized(raw, -12.0, 4) is None
    assert (measure_of(raw).column, measure_of(TASK).column) == ("return", "normalized")


def test_under_costs_alone_an_early_end_pays() -> None:
    end = early_end(FALLS, RIG, STEPS, GAMMA)
    weight = (1 - GAMMA**STEPS) / (1 - GAMMA)
    assert end.ending == 0.0
    assert end.typical == pytest.approx(-163.51 * weight)
    worst = compile_reward(FALLS, RIG)((0.0, 15.0), (3.0,))  # upside down, as fast as the task lets it, at full voltage
    assert end.worst == pytest.approx(worst * weight)
    assert end.pays


@pytest.mark.parametrize(
    ("alive", "terminal", "pays"),
    [(UNSET, -4000.0, False), (UNSET, -3000.0, True), (200.0, UNSET, True), (200.0, -3000.0, True)],
)
def test_an_end_pays_unless_its_reward_is_below_that_of_living_on(
    alive: float | msgspec.UnsetType, terminal: float | msgspec.UnsetType, pays: bool
) -> None:
    reward = msgspec.structs.replace(TASK.reward, alive=alive, terminal=terminal)
    assert early_end(msgspec.structs.replace(FALLS, reward=reward), RIG, STEPS, GAMMA).pays is pays


def test_without_references_living_on_is_as_the_start_is() -> None:
    raw = msgspec.structs.replace(FALLS, normalization=None)
    reward = compile_reward(raw, RIG)([raw.start["angle"], raw.start["velocity"]], (0.0,))
    end = early_end(raw, RIG, STEPS, GAMMA)
    assert end.typical == pytest.approx(reward * (1 - GAMMA**STEPS) / (1 - GAMMA))


def test_being_alive_counts_for_living_on() -> None:
    reward = msgspec.structs.replace(TASK.reward, alive=200.0)
    raw = msgspec.structs.replace(FALLS, normalization=None, reward=reward)
    assert not early_end(raw, RIG, STEPS, GAMMA).pays
