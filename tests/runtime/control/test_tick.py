from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw.messages import Fault, State, Status
from onrig.hw.rig import Observation
from onrig.runtime.control.tick import Tick
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.explore.settings import BackOff, EpsilonGreedy, NearEnvelope, OrnsteinUhlenbeck, ParameterNoise
from onrig.runtime.inputs import PolicyInput
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Rule, Step
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.safety.limits import Limits
from onrig.runtime.safety.rules import Envelope
from onrig.runtime.task import compile_reward
from tests.runtime.samples import LAYOUT, MAGMAN, PENDULUM, state

T_US = PENDULUM.period_us
UNLIMITED = msgspec.structs.replace(PENDULUM, limits=Limits())
COUNTS = st.integers(-30_000, 30_000)
NAN = math.nan


class FakePolicy:
    """Session as seen by the tick, with given answers."""

    def __init__(self, answer: Callable[[npt.NDArray[np.float32]], Sequence[float]], m: int = 1) -> None:
        self.has_basic_ports = True
        self.native = False
        self._answer, self._m = answer, m

    def act(self, observation: Sequence[float]) -> tuple[float, ...]:
        action = np.zeros(self._m, np.float32)
        action[:] = self._answer(np.array(observation, np.float32))
        return tuple(action.tolist())


def policy(*action: float) -> PolicySession:
    return cast(PolicySession, FakePolicy(lambda observation: action, m=len(action)))


def begin_tick(
    config: RunConfig = PENDULUM, noise: list[tuple[float, ...]] | None = None, kind: Kind = Kind.TRAIN
) -> Tick:
    tick = Tick(config)
    tick.begin(1, kind, noise or [])
    return tick


def decide_step(tick: Tick, frame: State, session: PolicySession | None, policy_id: int = 4) -> Step:
    """Stages 2 to 5 of one tick."""
    step = tick.observe(frame)
    tick.evaluate_policy(step, session, policy_id)
    tick.explore(step)
    tick.shield(step)
    return step


def complete_step(after: State, frame: int = 5) -> Step:
    """The record of a frame once the next one has arrived."""
    tick = begin_tick()
    step = decide_step(tick, state(frame), policy(1.0))
    tick.complete(step, after, tick.observe(after).observation)
    return step


# -- the timing rule ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tau_us", "applied_v", "is_late"),
    [(0, -2.0, False), (T_US // 4, -1.25, True), (T_US // 2, -0.5, True), (T_US, 1.0, True)],
    ids=["at the sample", "a quarter late", "half a period late", "not at all"],
)
@pytest.mark.rules("H401")
def test_the_applied_action_is_the_mixture_of_the_commands_in_force(
    tau_us: int, applied_v: float, is_late: bool
) -> None:
    step = complete_step(state(6, u_start=(10_000,), u_end=(-20_000,), tau_us=tau_us))
    assert step.applied == pytest.approx((applied_v,))
    assert bool(step.flags & Flag.LATE) == is_late
    assert not step.flags & Flag.INVALID, "a late command is valid: the applied action is known"
    assert (step.u_start, step.u_end, step.tau_us) == ((10_000,), (-20_000,), tau_us)


@given(COUNTS, COUNTS, st.integers(0, 2 * T_US))
def test_the_applied_action_lies_between_the_two_commands(u_start: int, u_end: int, tau_us: int) -> None:
    step = complete_step(state(6, u_start=(u_start,), u_end=(u_end,), tau_us=tau_us))
    fraction = min(tau_us, T_US) / T_US
    assert step.applied[0] == pytest.approx(1e-4 * (fraction * u_start + (1 - fraction) * u_end), abs=1e-9)
    assert 1e-4 * min(u_start, u_end) - 1e-9 <= step.applied[0] <= 1e-4 * max(u_start, u_end) + 1e-9


def test_a_command_in_force_at_once_that_answers_an_older_frame_is_late() -> None:
    assert complete_step(state(6, tau_us=0, answers=4)).flags & Flag.LATE
    assert not complete_step(state(6, tau_us=0, answers=5)).flags & Flag.LATE


def test_a_missing_command_keeps_the_previous_one_and_a_valid_transition() -> None:
    step = complete_step(state(6, u_start=(7_000,), u_end=(7_000,), tau_us=T_US, answers=4))
    assert step.applied == pytest.approx((0.7,))
    assert step.flags & Flag.LATE
    assert not step.flags & Flag.INVALID


@pytest.mark.parametrize(
    "after",
    [
        state(7),
        state(60),
        state(6, status=0),
        state(6, status=Status.SAFE),
        state(6, status=Status.ARMED | Status.FAULT, fault=Fault.LEASE),
        state(6, status=Status.FAULT, fault=Fault.SENSOR),
    ],
    ids=["a frame was lost", "many were", "disarmed", "disarmed, safe output", "fault while armed", "fault"],
)
def test_an_incompletely_observed_step_is_marked_invalid_and_has_no_reward(after: State) -> None:
    step = complete_step(after)
    assert step.flags & Flag.INVALID
    assert step.reward == 0.0


def test_the_reward_uses_the_next_state_and_the_applied_action() -> None:
    tick = begin_tick()
    step = decide_step(tick, state(5, (4000, 9000)), policy(3.0))
    after = state(6, (100, -2000), u_start=(30_000,), u_end=(-10_000,), tau_us=T_US // 4)
    observation = tick.observe(after).observation
    assert tick.complete(step, after, observation) is False
    assert step.applied == pytest.approx((0.0,))
    assert step.reward == compile_reward(PENDULUM.task, PENDULUM.rig)(observation, step.applied)
    assert step.reward == pytest.approx(-(50 * abs(abs(observation[0]) - math.pi) + abs(observation[1])))


def test_a_state_outside_the_task_terminates_unless_incompletely_observed() -> None:
    task = msgspec.structs.replace(PENDULUM.task, terminate={"velocity": (-5.0, 5.0)})
    tick = begin_tick(msgspec.structs.replace(PENDULUM, task=task))
    step = decide_step(tick, state(5), policy(0.0))
    fast_state = state(6, (0, 5001))
    assert tick.complete(step, state(6, (0, 5000)), (0.0, 5.0)) is False
    assert tick.complete(step, fast_state, tick.observe(fast_state).observation) is True
    state_after_gap = state(7, (0, 5001))
    assert tick.complete(step, state_after_gap, tick.observe(state_after_gap).observation) is False


# -- episodes ----------------------------------------------------------------------------------------------------------


def test_the_first_record_of_an_episode_is_marked_and_ticks_are_numbered_continuously() -> None:
    tick = begin_tick()
    first, second = tick.observe(state(1)), tick.observe(state(2))
    tick.begin(2, Kind.EVAL, [])
    third = tick.observe(state(90))
    assert [bool(s.flags & Flag.FIRST) for s in (first, second, third)] == [True, False, True]
    assert [s.tick for s in (first, second, third)] == [0, 1, 2]
    assert [(s.episode, s.kind) for s in (first, third)] == [(1, Kind.TRAIN), (2, Kind.EVAL)]


@pytest.mark.parametrize(("terminated", "end"), [(True, Flag.TERMINATED), (False, Flag.TRUNCATED)])
def test_the_last_record_has_no_action_and_is_either_terminated_or_truncated(terminated: bool, end: Flag) -> None:
    tick = begin_tick()
    step = tick.observe(state(1))
    tick.close(step, terminated=terminated)
    assert step.flags == Flag.FIRST | Flag.NO_ACTION | end


def test_a_derived_velocity_spans_missed_frames_and_starts_over_with_the_episode() -> None:
    rig = msgspec.structs.replace(
        PENDULUM.rig,
        observations=(PENDULUM.rig.observations[0], Observation("velocity", "rad/s", -30, 30, derivative_of="angle")),
    )
    tick = begin_tick(msgspec.structs.replace(UNLIMITED, rig=rig))
    resolution = rig.sensors[0].resolution
    assert tick.observe(state(5, (0, 0))).observation[1] == 0.0
    assert tick.observe(state(8, (30, 0))).observation[1] == pytest.approx(30 * resolution / (3 * T_US * 1e-6))
    tick.begin(2, Kind.TRAIN, [])
    assert tick.observe(state(100, (900, 0))).observation[1] == 0.0


def test_the_previous_command_is_the_one_that_the_device_reports_in_force() -> None:
    rig = msgspec.structs.replace(PENDULUM.rig, previous_command=True)
    tick = begin_tick(msgspec.structs.replace(PENDULUM, rig=rig))
    assert tick.observe(state(1, (0, 100), u_start=(5,), u_end=(-12_345,))).observation == pytest.approx(
        (0.0, 0.1, -1.2345)
    )


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_the_policy_sees_the_observation_and_its_answer_is_sent_in_counts() -> None:
    observations = []

    def answer(observation: npt.NDArray[np.float32]) -> tuple[float]:
        observations.append(observation.tolist())
        return (-1.25,)

    step = decide_step(begin_tick(), state(1, (100, -2000)), cast(PolicySession, FakePolicy(answer)), policy_id=9)
    assert observations == [pytest.approx(step.observation)]
    assert (step.policy, step.explored, step.command) == ((-1.25,), (-1.25,), (-12_500,))
    assert (step.policy_id, step.rule) == (9, Rule.NONE)
    assert step.commanded == pytest.approx((-1.25,))


def test_without_a_policy_the_output_is_the_safe_one() -> None:
    step = decide_step(begin_tick(MAGMAN), state(1, u_end=(0, 0, 0, 0)), None)
    assert step.command == (0, 0, 0, 0)


def fail(observation: npt.NDArray[np.float32]) -> tuple[float]:
    raise RuntimeError("an index lies outside")


@pytest.mark.parametrize("session", [policy(NAN), policy(math.inf), cast(PolicySession, FakePolicy(fail))])
def test_a_policy_that_fails_or_returns_a_non_finite_value_hands_over_to_the_fallback(session: PolicySession) -> None:
    step = decide_step(begin_tick(noise=[(1.0,)]), state(1, (0, 1000)), session)
    assert step.rule == Rule.FINITE
    assert not math.isfinite(step.policy[0]), "the policy's output is recorded"
    assert step.exploration == 0.0
    assert step.command == (-15_000,), "the fallback brakes: -3 sat(1 / 2) V"


@given(st.floats(-3, 3, width=32), st.floats(-1, 1))
def test_noise_is_added_in_normalised_units_clipped_and_measured(action_v: float, noise: float) -> None:
    step = decide_step(begin_tick(UNLIMITED, [(noise,)]), state(1), policy(action_v))
    explored = min(max(action_v / 3 + noise, -1), 1)
    assert step.explored[0] == pytest.approx(3 * explored, abs=1e-6)
    assert step.exploration == pytest.approx(abs(explored - action_v / 3), abs=1e-6)
    assert step.policy == (action_v,), "the policy's own action stays in the record"


def test_a_random_level_replaces_the_action_if_the_draw_is_below_epsilon() -> None:
    process = EpsilonGreedy(amplitude=((1, 0.4),), near_envelope=NearEnvelope(start=1.0))
    config = msgspec.structs.replace(UNLIMITED, exploration=process)
    explorer = Explorer(config)
    tick = Tick(config, explorer)
    explorer.begin_episode(Kind.TRAIN, 1)
    tick.begin(1, Kind.TRAIN, [(0.39, -1.0), (0.4, -1.0), (0.0, 0.5), (0.1, 0.5)])
    steps = [decide_step(tick, state(frame), policy(action)) for frame, action in ((1, 0.75), (2, 0.75), (3, NAN))]
    assert [step.explored[0] for step in steps[:2]] == [-3.0, 0.75]
    assert [step.exploration for step in steps] == [pytest.approx(1.25), 0.0, 0.0]
    assert steps[2].rule == Rule.FINITE, "without an answer of the policy the shield acts"
    tick._margin = 0.1
    near_step = decide_step(tick, state(4), policy(0.75))
    assert near_step.amplitude[0] == pytest.approx(0.04)
    assert near_step.explored == (0.75,), "a gate lowers the probability"


def test_the_gates_use_the_margin_of_the_previous_tick_and_its_outcome() -> None:
    process = OrnsteinUhlenbeck(amplitude=((1, 1.0),), near_envelope=NearEnvelope(start=1.0), back_off=BackOff())
    limits = Limits(envelope={"velocity": Envelope(low=-10, high=10)})
    config = msgspec.structs.replace(PENDULUM, exploration=process, limits=limits)
    explorer = Explorer(config)
    tick = Tick(config, explorer)
    explorer.begin_episode(Kind.TRAIN, 1)
    tick.begin(1, Kind.TRAIN, [(0.5,)] * 9)
    steps, previous_step = [], None
    for k, velocity in enumerate((0.0, 5.0, 9.0, 11.0, 11.0, 0.0), start=1):
        frame = state(k, sensors=(0, round(velocity / PENDULUM.rig.sensors[1].resolution)))
        if previous_step is not None:
            tick.complete(previous_step, frame, (0.0, velocity))
        previous_step = decide_step(tick, frame, policy(0.0))
        steps.append(previous_step)
    assert [s.tripped for s in steps] == [False, False, False, True, False, False]
    margins = [s.margin for s in steps]
    assert margins[0] > margins[1] > margins[2] > margins[3] == 0.0
    expected = [1.0, *margins[:3], 0.0, 0.0]
    assert [s.exploration for s in steps] == pytest.approx([0.5 * e for e in expected], abs=1e-6)
    explorer.end_episode()
    explorer.begin_episode(Kind.TRAIN, 2)
    assert explorer.amplitude(1.0) == (0.5,)


def test_parameter_noise_explores_with_another_policy_and_is_measured_from_the_first() -> None:
    config = msgspec.structs.replace(UNLIMITED, exploration=ParameterNoise(amplitude=((1, 0.5),)))
    explorer = Explorer(config)
    tick = Tick(config, explorer)
    explorer.begin_episode(Kind.TRAIN, 1)
    tick.begin(1, Kind.TRAIN, explorer.signal(Kind.TRAIN, 1), policy(1.5))
    step = decide_step(tick, state(1), policy(-1.5))
    assert (step.policy, step.explored) == ((-1.5,), (0.0,))
    assert step.exploration == pytest.approx(0.5)
    assert explorer.state()["scale.squares"] == pytest.approx(1.0)


@pytest.mark.parametrize(("own_answer", "other_answer"), [(NAN, 1.0), (1.0, NAN)])
def test_parameter_noise_without_two_finite_answers_is_zero(own_answer: float, other_answer: float) -> None:
    config = msgspec.structs.replace(UNLIMITED, exploration=ParameterNoise())
    explorer = Explorer(config)
    tick = Tick(config, explorer)
    explorer.begin_episode(Kind.TRAIN, 1)
    tick.begin(1, Kind.TRAIN, explorer.signal(Kind.TRAIN, 1), policy(other_answer))
    step = decide_step(tick, state(1), policy(own_answer))
    assert step.exploration == 0.0
    assert str(step.explored) == str(step.policy) == str((own_answer,))


def test_exploration_is_the_1_norm_over_all_actuators() -> None:
    noise = (0.5, -0.25, 1.0, 0.0)
    step = decide_step(begin_tick(MAGMAN, [noise]), state(1, u_end=(0,) * 4), policy(0.3, 0.3, 0.45, 0.0))
    assert step.explored == pytest.approx((0.45, 0.225, 0.6, 0.0))
    assert step.exploration == pytest.approx(0.5 + 0.25 + 0.5 + 0.0, abs=1e-6)


def test_each_step_has_its_own_noise_and_steps_beyond_it_have_none() -> None:
    tick = begin_tick(UNLIMITED, [(0.1,), (-0.2,)])
    explored = [decide_step(tick, state(k), policy(0.0)).explored[0] for k in (1, 2, 3)]
    assert explored == pytest.approx([0.3, -0.6, 0.0])


def test_an_evaluation_has_no_noise() -> None:
    step = decide_step(begin_tick(noise=[(0.5,)], kind=Kind.EVAL), state(1), policy(1.0))
    assert (step.explored, step.exploration) == ((1.0,), 0.0)


@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.lists(st.floats(-1, 1), max_size=8), COUNTS)
def test_commands_are_integer_counts_within_the_rigs_limits_for_any_policy(
    actions: list[float], noise: list[float], velocity: int
) -> None:
    tick = begin_tick(noise=[(x,) for x in noise])
    for k, action in enumerate(actions, 1):
        step = decide_step(tick, state(k, (0, velocity)), policy(action))
        assert isinstance(step.command[0], int)
        assert -30_000 <= step.command[0] <= 30_000
        assert step.commanded[0] == pytest.approx(step.command[0] * 1e-4)


def test_the_same_frames_lead_to_the_same_decisions() -> None:
    def run() -> list[tuple[float, ...]]:
        tick, steps = begin_tick(noise=[(0.3,), (-0.9,), (0.2,)]), []
        for k in range(1, 4):
            after = state(k, (k * 300, -k * 50), u_end=(k,))
            steps.append(decide_step(tick, after, policy(0.1 * k)))
            if k > 1:
                tick.complete(steps[-2], after, steps[-1].observation)
        return [LAYOUT.values(step) for step in steps]

    assert run() == run()


def test_a_record_holds_what_the_step_knew() -> None:
    step = complete_step(state(6, u_start=(10_000,), u_end=(-20_000,), tau_us=100))
    step.t_mono_ns, step.stage_ns = -5, (1, 2, 3, 4, 5, 6, 7)
    raw = memoryview(bytearray(LAYOUT.size))
    LAYOUT.pack_into(raw, 0, 77, LAYOUT.values(step))
    record = np.frombuffer(raw, LAYOUT.dtype)[0]
    for name in ("tick", "episode", "frame", "kind", "rule", "flags", "policy_id", "tau_us", "t_mono_ns", "reward"):
        assert record[name] == getattr(step, name)
    for name in ("sensors", "command", "u_start", "u_end", "stage_ns"):
        assert record[name].tolist() == list(getattr(step, name))
    for name in ("observation", "policy", "explored", "commanded", "applied"):
        assert record[name].tolist() == pytest.approx(getattr(step, name), rel=1e-6)
    assert record["seq"] == 77


def test_a_policy_sees_the_inputs_of_its_task_and_the_record_holds_them() -> None:
    inputs = (PolicyInput("angle", "sin"), PolicyInput("velocity", lag=1), PolicyInput("velocity", lag=2))
    config = msgspec.structs.replace(UNLIMITED, task=msgspec.structs.replace(UNLIMITED.task, inputs=inputs))
    policy_inputs: list[list[float]] = []

    def answer(observation: npt.NDArray[np.float32]) -> Sequence[float]:
        policy_inputs.append(observation.tolist())
        return (0.5,)

    session = cast(PolicySession, FakePolicy(answer))
    tick = begin_tick(config)
    steps = [decide_step(tick, state(5 + k, sensors=(1000 * k, 100 + k)), session) for k in range(4)]
    tick.begin(2, Kind.TRAIN, [])
    steps.append(decide_step(tick, state(9, sensors=(0, 200)), session))
    velocities = [(0.1, 0.1), (0.1, 0.1), (0.101, 0.1), (0.102, 0.101), (0.2, 0.2)]
    for step, observations, (previous, before_previous) in zip(steps, policy_inputs, velocities, strict=True):
        assert step.observation == pytest.approx((step.observation[0], 0.001 * step.sensors[1]))
        assert step.input == pytest.approx((math.sin(step.observation[0]), previous, before_previous))
        assert np.array(step.input, np.float32).tolist() == observations
    layout = record_layout(config)
    assert layout.pack(steps)["input"].tolist() == policy_inputs
