"""Contradictions in a device's frames, frame by frame; an hour takes a moment."""

from __future__ import annotations

import pytest

from onrig.hw.messages import State
from onrig.runtime.control.contradictions import RATE_WINDOW, Contradictions
from onrig.runtime.run_state.faults import FaultName
from onrig.tools.load import load
from tests.hw.fake_device import state_of

CONFIG = load("pendulum", ["device.pace=realtime"])
PERIOD_US = CONFIG.period_us
TICKS_PER_HOUR = round(3600 * CONFIG.rate_hz)
FULL_COMMAND = round(CONFIG.rig.actuators[0].high / CONFIG.rig.actuators[0].resolution)
FROZEN_FRAMES = round(CONFIG.supervision.frozen_limit_s * CONFIG.rate_hz)


def make_contradictions(frozen_s: float = CONFIG.supervision.frozen_limit_s) -> Contradictions:
    return Contradictions(CONFIG.rig, PERIOD_US, frozen_s)


def frame(n: int, u: int = 0, sensors: tuple[int, ...] = (100, 0), t_us: int | None = None) -> State:
    return state_of(n, n * PERIOD_US if t_us is None else t_us)._replace(sensors=sensors, u_end=(u,))


# -- the rate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [2.0, 0.5, 1.01, 0.99, 10.0, 1.5])
@pytest.mark.rules("H624")
def test_a_device_at_another_rate_is_found_by_its_own_clock(factor: float) -> None:
    contradictions = make_contradictions()
    for n in range(1, 8 * RATE_WINDOW):
        contradiction = contradictions.check(frame(n, sensors=(n, n), t_us=round(n * PERIOD_US / factor)))
        if contradiction is not None:
            assert contradiction.fault is FaultName.DEVICE_RATE
            assert contradiction.detail.startswith(f"{CONFIG.rate_hz * factor:.2f}"[:2])
            assert f"configured {CONFIG.rate_hz:g} Hz" in contradiction.detail
            return
    pytest.fail("not found")


@pytest.mark.rules("H624")
def test_twice_the_rate_is_found_within_twenty_frames() -> None:
    contradictions = make_contradictions()
    assert any(contradictions.check(frame(n, sensors=(n, n), t_us=n * PERIOD_US // 2)) for n in range(1, 20))


@pytest.mark.parametrize("jitter_us", [0, 200, 4_000])
def test_a_punctual_device_is_not_flagged_in_an_hour_whatever_frames_are_lost(jitter_us: int) -> None:
    contradictions = make_contradictions()
    for n in range(1, TICKS_PER_HOUR):
        if n % 7 and n % 1000 > 100:
            t_us = n * PERIOD_US + (jitter_us if n % 3 == 0 else -jitter_us if n % 3 == 1 else 0)
            assert contradictions.check(frame(n, sensors=(n, n), t_us=t_us)) is None


@pytest.mark.rules("H632")
def test_a_clock_that_jumps_occasionally_is_not_another_rate() -> None:
    contradictions = make_contradictions()
    for n in range(1, 20 * RATE_WINDOW):
        n_jumps = n // (RATE_WINDOW + 10)
        assert contradictions.check(frame(n, sensors=(n, n), t_us=(n + 50 * n_jumps) * PERIOD_US)) is None


@pytest.mark.rules("H201")
def test_wrapping_numbers_are_not_another_rate() -> None:
    contradictions = make_contradictions()
    for n in range(1, 500):
        number = (0xFFFF_FFFF - 250 + n) % 0xFFFF_FFFF + 1
        contradiction = contradictions.check(frame(number, sensors=(n, n), t_us=n * PERIOD_US))
        assert contradiction is None or contradiction.fault is not FaultName.DEVICE_RATE


# -- the sensors -----------------------------------------------------------------------------------------------------


def swinging_command(n: int, amplitude: float = 1.0) -> int:
    """A command that alternates between shares of the range, four times a second."""
    return round(amplitude * FULL_COMMAND) * (1 if n // 6 % 2 else -1)


@pytest.mark.rules("H625")
def test_sensors_that_do_not_follow_swinging_commands_are_frozen_after_the_configured_time() -> None:
    contradictions = make_contradictions()
    alarms = [n for n in range(1, 1000) if contradictions.check(frame(n, swinging_command(n)))]
    assert alarms[0] == pytest.approx(FROZEN_FRAMES, abs=2)


@pytest.mark.rules("H625")
def test_two_counts_in_that_time_show_a_live_sensor() -> None:
    contradictions = make_contradictions()
    for n in range(1, TICKS_PER_HOUR):
        alive = (100, 2 * (n // (FROZEN_FRAMES - 2) % 2))
        assert contradictions.check(frame(n, swinging_command(n), alive)) is None


@pytest.mark.rules("H625")
def test_a_decoder_that_dithers_by_a_count_is_frozen() -> None:
    contradictions = make_contradictions()
    alarms = [
        n for n in range(1, 1000) if contradictions.check(frame(n, swinging_command(n), (100 + n // 3 % 2, -(n % 2))))
    ]
    assert alarms[0] == pytest.approx(FROZEN_FRAMES, abs=4)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(lambda n: 0, id="safe output"),
        pytest.param(lambda n: FULL_COMMAND, id="held against a stop"),
        pytest.param(lambda n: swinging_command(n, 0.12), id="noise that friction holds"),
        pytest.param(lambda n: FULL_COMMAND if n % 500 == 0 else 0, id="a pulse every ten seconds"),
    ],
)
@pytest.mark.rules("H630")
def test_an_hour_at_rest_is_not_an_event(command: object) -> None:
    assert callable(command)
    contradictions = make_contradictions()
    assert not any(contradictions.check(frame(n, command(n))) for n in range(1, TICKS_PER_HOUR))


@pytest.mark.rules("H630")
def test_if_disabled_nothing_counts_as_frozen() -> None:
    contradictions = make_contradictions(frozen_s=0)
    assert not any(contradictions.check(frame(n, swinging_command(n))) for n in range(1, 2000))


def test_another_episode_starts_over() -> None:
    contradictions = make_contradictions()
    for n in range(1, 1000):
        if n % (FROZEN_FRAMES - 2) == 0:
            contradictions.reset()
        assert contradictions.check(frame(n, swinging_command(n))) is None


@pytest.mark.rules("H625", "H631")
def test_every_actuator_must_have_moved_for_sensors_to_be_frozen() -> None:
    config = load("magman", ["device.pace=realtime"])
    contradictions = Contradictions(config.rig, config.period_us, 2.0)
    full_command = round(config.rig.actuators[0].high / config.rig.actuators[0].resolution)
    for n in range(1, 3000):
        u = (full_command * (n % 2), full_command * (n // 2 % 2), full_command * (n // 3 % 2), 0)
        state = frame(n, t_us=n * config.period_us)._replace(u_end=u)
        assert contradictions.check(state) is None, "the ball may lie at the coil that is never on"
