from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.explore.noise import episode_noise
from onrig.runtime.explore.settings import (
    BackOff,
    Budgets,
    Exploration,
    Gaussian,
    NearEnvelope,
    NoExploration,
    OrnsteinUhlenbeck,
    Quiet,
    Quota,
    TemperatureLimit,
)
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.record import Kind
from onrig.runtime.run_config import RunConfig
from tests.runtime.samples import MAGMAN, PENDULUM

GATED = OrnsteinUhlenbeck(
    near_envelope=NearEnvelope(start=0.5, floor=0.1),
    back_off=BackOff(factor=0.5, least=0.1, clean_episodes=2),
    budgets=Budgets(warn=0.5, episode=Quota(interventions=8), session=Quota(trips=6), hour=Quota(energy_s=50.0)),
    quiet=Quiet(every=4),
)
TICKS = st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans(), st.floats(-3, 3)), max_size=12)


def explorer(exploration: Exploration, config: RunConfig = PENDULUM) -> Explorer:
    return Explorer(msgspec.structs.replace(config, exploration=exploration))


def advance(
    e: Explorer, *, tripped: bool = False, intervened: bool = False, volts: float = 0.0, sensor: int = 0
) -> None:
    e.record_outcome(intervened=intervened or tripped, tripped=tripped, applied=(volts,), sensors=(sensor, 0))


@pytest.mark.parametrize("config", [PENDULUM, MAGMAN], ids=["pendulum", "magman"])
@pytest.mark.parametrize("process", [OrnsteinUhlenbeck(), Gaussian(std=0.5), OrnsteinUhlenbeck(quiet=Quiet(every=3))])
def test_without_gates_signal_times_amplitude_is_the_noise_of_the_episode_bit_for_bit(
    process: Exploration, config: RunConfig
) -> None:
    names = [a.name for a in config.rig.actuators]
    e = explorer(process, config)
    for episode in (1, 3, 250, 500):
        e.begin_episode(Kind.TRAIN, episode)
        signal = e.signal(Kind.TRAIN, episode)
        noise = [tuple(a * u for a, u in zip(e.amplitude(1.0), row, strict=True)) for row in signal]
        expected = episode_noise(process, stream(config.seed, Role.EXPLORATION, episode), episode, 200, names)
        assert (noise or [(0.0,) * len(names)] * 200) == expected


@settings(max_examples=60)
@given(st.lists(TICKS, max_size=6))
def test_gates_only_ever_reduce(episodes: list[list[tuple[float, bool, bool, float]]]) -> None:
    e, ungated = explorer(GATED), explorer(OrnsteinUhlenbeck())
    for number, ticks in enumerate(episodes, start=1):
        e.begin_episode(Kind.TRAIN, number)
        ungated.begin_episode(Kind.TRAIN, number)
        for margin, tripped, intervened, volts in ticks:
            (amplitude,), (scheduled,) = e.amplitude(margin), ungated.amplitude(margin)
            assert 0.0 <= amplitude <= scheduled
            if e.pause is not None:
                assert amplitude == 0.0
            advance(e, tripped=tripped, intervened=intervened, volts=volts)
        e.end_episode()
        if e.pause_due is not None:
            e.rest(e.pause_due.wait_s)
            assert e.pause_due is None


@settings(max_examples=60)
@given(st.lists(TICKS, max_size=5), st.lists(TICKS, min_size=1, max_size=4))
def test_a_restored_explorer_continues_like_the_saved_one(
    before: list[list[tuple[float, bool, bool, float]]], after: list[list[tuple[float, bool, bool, float]]]
) -> None:
    schedule_over_steps = msgspec.structs.replace(GATED, over="steps", amplitude=((0, 1.0), (40, 0.2)))
    original, restored = explorer(schedule_over_steps), explorer(schedule_over_steps)

    def run(explorers: list[Explorer], episodes: list[list[tuple[float, bool, bool, float]]], start: int) -> None:
        for number, ticks in enumerate(episodes, start=start):
            for e in explorers:
                e.begin_episode(Kind.TRAIN, number)
            assert len({tuple(e.signal(Kind.TRAIN, number)) for e in explorers}) == 1
            for margin, tripped, intervened, volts in ticks:
                assert len({e.amplitude(margin) for e in explorers}) == 1
                for e in explorers:
                    advance(e, tripped=tripped, intervened=intervened, volts=volts)
                assert len({e.pause for e in explorers}) == 1
            for e in explorers:
                e.end_episode()
            assert len({e.pause_due for e in explorers}) == 1

    run([original], before, 1)
    state = original.state()
    assert all(isinstance(value, int | float) for value in state.values())
    restored.restore(msgspec.json.decode(msgspec.json.encode(state)))
    run([original, restored], after, len(before) + 1)


@pytest.mark.parametrize(
    ("schedule_unit", "amplitude"), [("steps", ((0, 1.0), (10, 0.0))), ("seconds", ((0, 1.0), (0.2, 0.0)))]
)
def test_a_schedule_over_steps_advances_in_training_and_never_in_evaluation_or_quiet_episodes(
    schedule_unit: str, amplitude: tuple[tuple[float, float], ...]
) -> None:
    process = OrnsteinUhlenbeck(quiet=Quiet(every=2), amplitude=amplitude)
    e = explorer(msgspec.structs.replace(process, over=schedule_unit))
    amplitudes = []
    for episode, kind in ((1, Kind.TRAIN), (1, Kind.EVAL), (2, Kind.TRAIN), (3, Kind.TRAIN)):
        e.begin_episode(kind, episode)
        signal = e.signal(kind, episode)
        assert bool(signal) is (episode != 2 and kind is Kind.TRAIN) is e.is_exploring
        for _ in range(3):
            amplitudes.append(e.amplitude(1.0)[0])
            advance(e)
        e.end_episode()
    assert amplitudes == pytest.approx([1.0, 0.9, 0.8, 0, 0, 0, 0, 0, 0, 0.7, 0.6, 0.5])


def test_near_the_envelope_the_amplitude_follows_the_margin() -> None:
    e = explorer(OrnsteinUhlenbeck(near_envelope=NearEnvelope(start=0.5, floor=0.2)))
    e.begin_episode(Kind.TRAIN, 1)
    assert [e.amplitude(m)[0] for m in (1.0, 0.5, 0.25, 0.0, math.nan)] == pytest.approx([1, 1, 0.6, 0.2, 0.2])


def test_a_trip_backs_off_at_once_and_clean_episodes_restore_step_by_step() -> None:
    e = explorer(OrnsteinUhlenbeck(amplitude=((1, 1.0),), back_off=BackOff(factor=0.5, least=0.1, clean_episodes=2)))
    e.begin_episode(Kind.TRAIN, 1)
    for left in (0.5, 0.25, 0.125, 0.1, 0.1):
        advance(e, tripped=True)
        assert e.amplitude(1.0) == (left,)
    e.end_episode()
    amplitudes = []
    for episode in range(2, 12):
        e.begin_episode(Kind.TRAIN, episode)
        amplitudes.append(e.amplitude(1.0)[0])
        advance(e)
        e.end_episode()
        e.begin_episode(Kind.EVAL, episode)
        e.end_episode()
    assert amplitudes == [0.1, 0.1, 0.125, 0.125, 0.25, 0.25, 0.5, 0.5, 1.0, 1.0]


@settings(max_examples=40)
@given(st.lists(st.floats(-3, 3), min_size=30, max_size=60), st.sampled_from(["energy_s", "wear_strokes"]))
def test_no_budget_is_exceeded_by_more_than_the_tick_that_spent_it(volts: list[float], quantity: str) -> None:
    period_s, limit = 0.02, 0.1 if quantity == "energy_s" else 4.0
    e = explorer(NoExploration(budgets=Budgets(session=msgspec.convert({quantity: limit}, Quota))))
    e.begin_episode(Kind.TRAIN, 1)
    used, previous = 0.0, volts[0]
    for v in volts:
        if e.pause is not None:
            break
        assert used < limit + 1e-12
        used += (v / 3) ** 2 * period_s if quantity == "energy_s" else abs(v - previous) / 6
        previous = v
        advance(e, volts=v)
        assert (e.pause is not None) is (not used < limit) or used == pytest.approx(limit)
    assert used <= limit + (period_s if quantity == "energy_s" else 1.0) + 1e-12


def test_effort_is_counted_from_the_safe_output_and_evaluation_counts_as_wear() -> None:
    budgets = Budgets(session=Quota(energy_s=1.0, wear_strokes=10.0))
    e = Explorer(msgspec.structs.replace(MAGMAN, exploration=OrnsteinUhlenbeck(budgets=budgets)))
    e.begin_episode(Kind.EVAL, 1)
    for applied in ((0.0,) * 4, (0.6, 0.3, 0.0, 0.0)):
        e.record_outcome(intervened=False, tripped=False, applied=applied, sensors=(0,))
    state = e.state()
    assert state["budget.session.energy_s"] == pytest.approx(0.02 * 1.25)
    assert state["budget.session.wear_strokes"] == pytest.approx(1.5)
    assert state["training_steps"] == 0


def test_the_hourly_driving_limit_is_a_duty_cycle_that_waits_for_the_hour_to_pass() -> None:
    e = explorer(NoExploration(budgets=Budgets(hour=Quota(driven_s=0.1))))  # five periods of 20 ms
    e.begin_episode(Kind.TRAIN, 1)
    for _ in range(4):
        advance(e)
    assert e.pause is None
    advance(e)
    e.end_episode()
    pause = e.pause_due
    assert pause is not None
    assert "hour.driven_s" in pause.cause
    assert 3600 <= pause.wait_s <= 3660
    e.rest(pause.wait_s)
    assert e.pause is None


def test_lost_frames_count_as_time_under_command() -> None:
    e = explorer(NoExploration(budgets=Budgets(hour=Quota(driven_s=100.0, energy_s=100.0))))
    e.begin_episode(Kind.TRAIN, 1)
    e.record_outcome(intervened=False, tripped=False, applied=(3.0,), sensors=(0, 0), periods=4)
    state = e.state()
    assert state["budget.hour.driven_s"] == pytest.approx(0.08)
    assert state["budget.hour.energy_s"] == pytest.approx(0.08)


def test_a_spent_episode_budget_ends_the_episode_and_requires_no_pause_before_the_next() -> None:
    e = explorer(OrnsteinUhlenbeck(budgets=Budgets(episode=Quota(trips=1))))
    e.begin_episode(Kind.TRAIN, 1)
    advance(e, tripped=True)
    pause = e.pause
    assert pause is not None
    assert pause.wait_s == 0.0
    e.end_episode()
    assert e.pause_due is None
    e.begin_episode(Kind.TRAIN, 2)
    assert e.pause is None


def test_an_operator_who_ends_an_endless_pause_grants_a_new_session() -> None:
    e = explorer(OrnsteinUhlenbeck(budgets=Budgets(session=Quota(trips=1))))
    e.begin_episode(Kind.TRAIN, 1)
    advance(e, tripped=True)
    e.end_episode()
    pause = e.pause_due
    assert pause is not None
    assert math.isinf(pause.wait_s)
    e.rest(12.0)
    e.begin_episode(Kind.TRAIN, 2)
    assert e.pause is None


def test_the_temperature_is_read_from_the_sensor_of_that_name() -> None:
    budgets = Budgets(temperature=TemperatureLimit(sensor="angle", warn=1.0, limit=2.0))
    e = explorer(OrnsteinUhlenbeck(budgets=budgets))
    e.begin_episode(Kind.TRAIN, 1)
    resolution = PENDULUM.rig.sensors[0].resolution
    advance(e, sensor=round(1.75 / resolution))
    assert e.amplitude(1.0)[0] == pytest.approx(0.25, abs=0.001)
    advance(e, sensor=round(2.1 / resolution))
    assert e.pause is not None
    e.end_episode()
    e.rest(60.0)
    assert e.pause is None


def test_a_restraint_applies_from_the_next_episode_and_can_be_lifted() -> None:
    e = explorer(OrnsteinUhlenbeck(amplitude=((1.0, 0.8),)))
    e.begin_episode(Kind.TRAIN, 1)
    e.restrain(0.5)
    assert e.amplitude(1.0) == (0.8,)
    e.begin_episode(Kind.TRAIN, 2)
    assert e.amplitude(1.0) == (0.4,)
    e.restrain(1.0)
    e.begin_episode(Kind.TRAIN, 3)
    assert e.amplitude(1.0) == (0.8,)


def test_a_restraint_is_not_part_of_the_state_of_a_resumed_run() -> None:
    e, unrestrained = explorer(GATED), explorer(GATED)
    e.restrain(0.5)
    assert e.state() == unrestrained.state()


def test_a_resume_by_an_operator_begins_a_new_session_and_keeps_the_hour() -> None:
    budgets = Budgets(session=Quota(trips=1), hour=Quota(interventions=3))
    e = explorer(OrnsteinUhlenbeck(budgets=budgets))
    e.begin_episode(Kind.TRAIN, 1)
    advance(e, tripped=True)
    restored = explorer(OrnsteinUhlenbeck(budgets=budgets))
    restored.restore(e.state())
    assert restored.pause is not None
    restored.begin_session()
    assert restored.pause is None
    assert restored.state()["budget.session.trips"] == 0.0
    assert restored.state()["budget.hour.interventions"] == 1.0
