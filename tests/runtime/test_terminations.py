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
from tests.runtime.third_party import DefectiveTermination, DefectiveTransform

RIG = PENDULUM.rig


def with_terminations(**terminations: Termination) -> RunConfig:
    task = msgspec.structs.replace(PENDULUM.task, terminations=terminations)
    return msgspec.structs.replace(PENDULUM, task=task)


def test_bounds_and_conditions_end_single_and_batched_episodes_alike() -> None:
    task = msgspec.structs.replace(
        with_terminations(fast=Outside("velocity", -5.0, 5.0), far=DefectiveTermination()).task,
        terminate={"angle": (-3.0, 3.0)},
    )
    observations = np.array([[0.0, 0.0], [0.0, 6.0], [2.5, 0.0], [-3.1, 0.0], [0.0, np.nan]])
    batched, scalar = batched_termination(task, RIG)(observations), compile_termination(task, RIG)
    assert batched.tolist() == [scalar(row) for row in observations.tolist()] == [False, True, True, True, True]
    assert task.may_terminate
    assert not PENDULUM.task.may_terminate


def test_a_terminal_reward_may_depend_on_a_condition() -> None:
    task = with_terminations(far=DefectiveTermination()).task
    task = msgspec.structs.replace(task, reward=msgspec.structs.replace(task.reward, terminal=-1.0))
    assert task_problems(task, RIG) == []


def complete_transition(config: RunConfig, clock_ns: list[int] | None = None) -> tuple[Tick, bool, bool]:
    """A tick at 0.1 rad whose frame ends a transition: the tick, whether it terminates, whether the episode is over."""
    tick = Tick(config, clock=None if clock_ns is None else lambda: clock_ns.pop(0))
    tick.begin(1, Kind.TRAIN, [])
    step = tick.observe(state(5))
    tick.shield(step)
    next_state = state(6, (100, 0))
    terminated = tick.complete(step, next_state, tick.observe(next_state).observation)
    return tick, terminated, tick.is_over(next_state, terminated)


def contradiction_detail(tick: Tick) -> str:
    contradiction = tick.contradiction
    assert isinstance(contradiction, Contradiction)
    assert contradiction.fault is FaultName.TICK_CODE_FAILED
    return contradiction.detail


@pytest.mark.parametrize(
    ("defect", "message"),
    [("raises", "raises KeyError: 'table'"), ("infinite", "expected true or false, got .*inf")],
)
def test_a_failing_condition_ends_the_episode_with_a_fault_that_cannot_be_rearmed(defect: str, message: str) -> None:
    tick, terminated, is_over = complete_transition(with_terminations(mine=DefectiveTermination(defect)))
    assert (terminated, is_over) == (False, True)
    assert contradiction_detail(tick).startswith("the termination 'mine' ")
    assert re.search(message, contradiction_detail(tick))
    assert FAULTS[FaultName.TICK_CODE_FAILED].rearm is Rearm.NEVER


def test_an_overrun_counts_only_in_real_time() -> None:
    tick, _, is_over = complete_transition(with_terminations(mine=DefectiveTermination()), [0, 2_000_001])
    assert is_over
    assert contradiction_detail(tick) == "the termination 'mine' took 2000 us; its budget is 2000 us"
    tick, _, is_over = complete_transition(with_terminations(mine=DefectiveTermination()), [0, 1_999_999])
    assert (tick.contradiction, is_over) == (None, False)
    tick, _, is_over = complete_transition(with_terminations(mine=DefectiveTermination()))
    assert (tick.contradiction, is_over) == (None, False)


def test_a_failing_input_ends_the_episode_at_once_and_hides_everything_else() -> None:
    inputs = (PolicyInput("angle", DefectiveTransform("infinite")),)
    config = msgspec.structs.replace(PENDULUM, task=msgspec.structs.replace(PENDULUM.task, inputs=inputs))
    tick = Tick(config)
    tick.begin(1, Kind.TRAIN, [])
    step = tick.observe(state(5))
    assert np.isnan(step.input).all()
    assert contradiction_detail(tick).startswith(
        "the input 'form_angle' raises ValueError: non-finite result inf for the observation"
    )
    assert tick.is_over(state(5), False)
