from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from onrig.runtime.control.tick import Tick
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.policy.contract import GAUSSIAN
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, RecordLayout, Rule, Step
from onrig.runtime.safety.limits import Limits
from tests.runtime.policy import models
from tests.runtime.policy.models import STOCHASTIC, node
from tests.runtime.samples import PENDULUM, state

OWN_NOISE = msgspec.structs.replace(PENDULUM, exploration=OwnNoise(), limits=Limits())
ANGLE = 10_000
"""Counts of the angle in the frames here."""


def session(**nodes: object) -> PolicySession:
    return PolicySession(models.serialized(models.stochastic(**nodes)))  # type: ignore[arg-type]


def decide_step(tick: Tick, policy: PolicySession, frame: int = 1) -> Step:
    step = tick.observe(state(frame, (ANGLE, 0)))
    tick.evaluate_policy(step, policy, 4)
    tick.explore(step)
    tick.shield(step)
    return step


def begin_tick(noise: float | None, kind: Kind = Kind.TRAIN) -> Tick:
    tick = Tick(OWN_NOISE)
    tick.begin(1, kind, [] if noise is None else [(noise,)] * 10)
    return tick


@pytest.mark.parametrize("behaviour", [STOCHASTIC.behaviour, GAUSSIAN])
@pytest.mark.parametrize("noise", [0.7, -3.0])
def test_the_action_is_drawn_by_the_policy_with_the_noise(behaviour: str, noise: float) -> None:
    contract = msgspec.structs.replace(STOCHASTIC, behaviour=behaviour)
    step = decide_step(begin_tick(noise), session(contract=contract))
    mean, std = 0.3 * step.observation[0], math.exp(-1.0)
    squash = math.tanh if behaviour == STOCHASTIC.behaviour else lambda x: min(max(x, -1.0), 1.0)
    assert (*step.mean, *step.std, *step.drawn) == pytest.approx((mean, std, mean + std * noise), rel=1e-6)
    assert step.policy[0] == pytest.approx(3 * squash(mean))
    assert step.explored[0] == pytest.approx(3 * squash(mean + std * noise), rel=1e-6)
    assert step.exploration == pytest.approx(abs(squash(mean + std * noise) - squash(mean)), rel=1e-5)
    assert step.rule is Rule.NONE
    assert not step.flags & Flag.RESTRAINED


def test_without_noise_policy_and_explored_action_are_identical_bit_for_bit() -> None:
    for tick in (begin_tick(None, Kind.EVAL), begin_tick(0.0)):
        step = decide_step(tick, session())
        assert step.policy == step.explored
        assert step.exploration == 0.0
        assert step.drawn == step.mean


def test_a_gate_reduces_noise_and_recorded_spread_and_is_reported() -> None:
    explorer = Explorer(OWN_NOISE)
    tick = Tick(OWN_NOISE, explorer)
    explorer.restrain(0.25)
    explorer.begin_episode(Kind.TRAIN, 1)
    tick.begin(1, Kind.TRAIN, explorer.signal(Kind.TRAIN, 1))
    ungated_tick = begin_tick(explorer.signal(Kind.TRAIN, 1)[0][0])
    step, ungated_step = decide_step(tick, session()), decide_step(ungated_tick, session())
    assert step.amplitude == (0.25,)
    assert step.std[0] == pytest.approx(0.25 * ungated_step.std[0])
    assert step.drawn[0] - step.mean[0] == pytest.approx(
        0.25 * (ungated_step.drawn[0] - ungated_step.mean[0]), rel=1e-5
    )
    assert step.flags & Flag.RESTRAINED


@pytest.mark.parametrize("port", ["mean", "std", "drawn"])
def test_a_non_finite_output_is_not_an_answer(port: str) -> None:
    # The root of a negative number; the action comes from the noise alone.
    nan_port = {
        "small": node("MatMul", ["observation", "to_mean"], ["small"]),
        "below": node("Sub", ["small", "most"], ["below"]),
        "root": node("Sqrt", ["below"], ["root"]),
    }
    ports = {name: node("Identity", ["root" if name == port else "noise"], [name]) for name in ("mean", "std", "drawn")}
    policy = session(**nan_port, **ports, unit=node("Tanh", ["noise"], ["unit"]))
    step = decide_step(begin_tick(0.5), policy)
    assert math.isnan(step.policy[0])
    assert step.rule is Rule.FINITE
    assert step.drawn == ()
    layout = RecordLayout.for_rig(OWN_NOISE.rig, behaviour=True)
    assert np.isfinite(layout.pack([step])[0]["drawn"]).all(), "the record has its fields all the same"


@pytest.mark.parametrize(
    "wrong_nodes",
    [
        {"drawn": node("Add", ["mean", "noise"], ["drawn"])},
        {"unit": node("Tanh", ["mean"], ["unit"])},
        {"std": node("Tanh", ["log_std"], ["std"])},
    ],
    ids=["drawn", "action", "std"],
)
def test_a_draw_that_contradicts_its_ports_is_not_an_answer(wrong_nodes: dict[str, object]) -> None:
    step = decide_step(begin_tick(0.7), session(**wrong_nodes))
    assert math.isnan(step.explored[0])
    assert step.rule is Rule.FINITE


# -- hidden state ------------------------------------------------------------------------------------------------------


def recurrent() -> PolicySession:
    return PolicySession(models.serialized(models.recurrent()))


def outputs(tick: Tick, policy: PolicySession, steps: int) -> list[float]:
    """Sums behind the tanh of the next actions; the angle is the same in each step."""
    frames = range(tick.count + 1, tick.count + 1 + steps)
    outputs_of_frames = [decide_step(tick, policy, frame) for frame in frames]
    return [math.atanh(step.policy[0] / 3) / step.observation[0] for step in outputs_of_frames]


def test_the_state_is_carried_from_tick_to_tick_and_starts_at_zero_in_each_episode() -> None:
    tick, policy = Tick(PENDULUM), recurrent()
    for _ in range(2):
        tick.begin(1, Kind.EVAL, [])
        assert outputs(tick, policy, 4) == pytest.approx([1, 1.5, 1.75, 1.875], rel=1e-3)


def test_after_a_swap_or_rollback_the_state_starts_at_zero() -> None:
    tick, policy, other = Tick(PENDULUM), recurrent(), recurrent()
    tick.begin(1, Kind.EVAL, [])
    assert outputs(tick, policy, 2) == pytest.approx([1, 1.5], rel=1e-3)
    assert outputs(tick, other, 2) == pytest.approx([1, 1.5], rel=1e-3)
    assert outputs(tick, policy, 2) == pytest.approx([1, 1.5], rel=1e-3)


def test_a_state_from_before_the_ticks_of_another_policy_is_discarded() -> None:
    tick, policy = Tick(PENDULUM), recurrent()
    tick.begin(1, Kind.EVAL, [])
    assert outputs(tick, policy, 2) == pytest.approx([1, 1.5], rel=1e-3)
    decide_step(tick, PolicySession(models.serialized(models.policy())), 3)
    assert outputs(tick, policy, 2) == pytest.approx([1, 1.5], rel=1e-3)


def test_a_non_finite_state_is_not_an_answer_and_is_not_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tick, policy = Tick(PENDULUM), recurrent()
    tick.begin(1, Kind.EVAL, [])
    assert outputs(tick, policy, 2) == pytest.approx([1, 1.5], rel=1e-3)

    def act_diverged(observation: object) -> tuple[float, ...]:
        policy.hidden_out.fill(math.inf)
        return (0.5,)

    with monkeypatch.context() as patched:
        patched.setattr(policy, "act", act_diverged)
        step = decide_step(tick, policy, 3)
    assert math.isnan(step.policy[0])
    assert step.rule is Rule.FINITE
    assert outputs(tick, policy, 1) == pytest.approx([1.75], rel=1e-3)


def test_another_tick_that_uses_the_same_session_does_not_change_the_state() -> None:
    tick, rehearsal, policy = Tick(PENDULUM), Tick(PENDULUM), recurrent()
    tick.begin(1, Kind.EVAL, [])
    rehearsal.begin(0, Kind.EVAL, [])
    assert outputs(tick, policy, 2) == pytest.approx([1, 1.5], rel=1e-3)
    outputs(rehearsal, policy, 5)
    assert outputs(tick, policy, 1) == pytest.approx([1.75], rel=1e-3)


def test_the_state_is_carried_while_the_fallback_acts() -> None:
    limits = msgspec.structs.replace(PENDULUM.limits, predicted=None)
    tick, policy = Tick(msgspec.structs.replace(PENDULUM, limits=limits)), recurrent()
    tick.begin(1, Kind.EVAL, [])
    rules = []
    for frame in range(1, 5):
        step = tick.observe(state(frame, (ANGLE, 3_000_000 if frame == 2 else 0)))
        tick.evaluate_policy(step, policy, 4)
        tick.explore(step)
        tick.shield(step)
        rules.append(step.rule)
    assert Rule.ENVELOPE in rules
    assert math.atanh(step.policy[0] / 3) / step.observation[0] == pytest.approx(1.875, rel=1e-3)
