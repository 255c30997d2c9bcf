from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from onrig.runtime.control.contradictions import Contradiction
from onrig.runtime.control.tick import Tick
from onrig.runtime.inputs import PolicyInput
from onrig.runtime.record import Kind
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FAULTS, FaultName, Rearm
from onrig.runtime.task import batched_termination, compile_termination
from onrig.runtime.task_checks import task_problems
from onrig.runtime.terminations import Outside, Termination
from tests.runtime.samples import PENDULUM, state
from tests.runtime.third_party import Condition, Form

RIG = PENDULUM.rig


def ending(**terminations: Termination) -> RunConfig:
    task = msgspec.structs.replace(PENDULUM.task, terminations=terminations)
    return msgspec.structs.replace(PENDULUM, task=task)


def test_bounds_and_conditions_end_an_episode_alike_for_one_and_for_many() -> None:
    task = msgspec.structs.replace(
        ending(fast=Outside("velocity", -5.0, 5.0), far=Condition()).task, terminate={"angle": (-3.0, 3.0)}
    )
    observations = np.array([[0.0, 0.0], [0.0, 6.0], [2.5, 0.0], [-3.1, 0.0], [0.0, np.nan]])
    many, one = batched_termination(task, RIG)(observations), compile_termination(task, RIG)
    assert many.tolist() == [one(row) for row in observations.tolist()] == [False, True, True, True, True]
    assert task.may_terminate
    assert not PENDULUM.task.may_terminate


def test_a_terminal_reward_may_rely_on_a_condition() -> None:
    task = ending(far=Condition()).task
    task = msgspec.structs.replace(task, reward=msgspec.structs.replace(task.reward, terminal=-1.0))
    assert task_problems(task, RIG) == []


def completed(config: RunConfig, clock_ns: list[int] | None = None) -> tuple[Tick, bool, bool]:
    """A tick at 0.1 rad whose frame ends a transition: the tick, whether it terminates, whether the episode is over."""
    tick = Tick(config, clock=None if clock_ns is None else lambda: clock_ns.pop(0))
    tick.begin(1, Kind.TRAIN, [])
    step = tick.observe(state(5))
    tick.shield(step)
    after = state(6, (100, 0))
    terminated = tick.complete(step, after, tick.observe(after).observation)
    return tick, terminated, tick.is_over(after, terminated)


def failure(tick: Tick) -> str:
    found = tick.contradiction
    assert isinstance(found, Contradiction)
    assert found.fault is FaultName.TICK_CODE_FAILED
    return found.detail


@pytest.mark.parametrize(
    ("how", "said"),
    [("raises", "raises KeyError: 'table'"), ("infinite", "expected true or false, got .*inf")],
)
def test_a_condition_that_fails_ends_the_episode_with_a_fault_that_nothing_re_arms(how: str, said: str) -> None:
    tick, terminated, over = completed(ending(mine=Condition(how)))
    assert (terminated, over) == (False, True)
    assert failure(tick).startswith("the termination 'mine' ")
    assert re.search(said, failure(tick))
    assert FAULTS[FaultName.TICK_CODE_FAILED].rearm is Rearm.NEVER


def test_an_overrun_counts_in_real_time_alone() -> None:
    tick, _, over = completed(ending(mine=Condition()), [0, 2_000_001])
    assert over
    assert failure(tick) == "the termination 'mine' took 2000 us; its budget is 2000 us"
    tick, _, over = completed(ending(mine=Condition()), [0, 1_999_999])
    assert (tick.contradiction, over) == (None, False)
    tick, _, over = completed(ending(mine=Condition()))
    assert (tick.contradiction, over) == (None, False)


def test_an_input_that_fails_ends_the_episode_at_once_and_shows_nothing_else() -> None:
    inputs = (PolicyInput("angle", Form("infinite")),)
    config = msgspec.structs.replace(PENDULUM, task=msgspec.structs.replace(PENDULUM.task, inputs=inputs))
    tick = Tick(config)
    tick.begin(1, Kind.TRAIN, [])
    step = tick.observe(state(5))
    assert np.isnan(step.input).all()
    assert failure(tick).startswith(
        "the input 'form_angle' raises ValueError: non-finite result inf for the observation"
    )
    assert tick.is_over(state(5), False)
