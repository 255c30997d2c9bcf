"""A sign that flips during a run: fallback and reset drive instead of braking, which is a fault with its own name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.hw.messages import State, Status
from onrig.runtime.control.episode import begin_episode, never_ends, policy_action_source
from onrig.runtime.control.tick import Tick
from onrig.runtime.record import Kind
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.run_state.faults import FAULTS, FaultName, Halted, Rearm
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import step
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions
from tests.runtime.control.test_loop import Bench
from tests.runtime.control.test_tick import policy
from tests.tools.replaying.runs import LoggedRun
from tests.tools.replaying.test_verification import assert_equal, verify


def plant_in(config: RunConfig) -> Plant:
    assert config.device.twin is not None
    return msgspec.convert(config.device.twin, TwinOptions).plant


def invert_actuator(device: TwinDevice) -> None:
    """Flip the sign of its actuator."""
    device._resolutions = tuple(-r for r in device._resolutions)


class DivergingLoop:
    """The tick's pure core on a pendulum whose actuator or velocity sensor has the wrong sign."""

    def __init__(self, config: RunConfig, *, actuator: float = 1.0, sensor: float = 1.0) -> None:
        self._config, self._actuator, self._sensor = config, actuator, sensor
        self._plant = plant_in(config)
        self.tick = Tick(config)

    def run(self, seconds: float, action: float, state: tuple[float, ...] = (0.0, 0.0)) -> tuple[float, float]:
        """Demand ``action`` until the fault; returns its time (inf: never) and the greatest |velocity|."""
        config, tick, max_velocity = self._config, self.tick, 0.0
        previous_command: tuple[int, ...] = (0,)
        (angle, velocity), (voltage,) = config.rig.sensors, config.rig.actuators
        tick.begin(1, Kind.TRAIN, [])
        respond = begin_episode(tick, policy_action_source(tick, policy(action), 1), has_ended=never_ends)
        for k in range(1, round(seconds * config.rate_hz)):
            sensors = (round(state[0] / angle.resolution), round(self._sensor * state[1] / velocity.resolution))
            t_us = k * config.period_us
            command = respond(
                State(k, t_us, Status.ARMED, 0, 5, k - 1, 0, sensors, previous_command, previous_command)
            ).command
            if tick.contradiction is not None:
                return k / config.rate_hz, max_velocity
            state = step(
                self._plant, state, (self._actuator * command[0] * voltage.resolution,), config.period_us * 1e-6, 4
            )
            max_velocity, previous_command = max(max_velocity, abs(state[1])), command
        return float("inf"), max_velocity


LOW_ENVELOPE = ["limits.predicted=null", "limits.envelope.velocity={low: -5, high: 5}"]
SIGNS = [{"actuator": -1.0}, {"sensor": -1.0}]


@pytest.mark.parametrize("signs", SIGNS, ids=["actuator", "sensor"])
@pytest.mark.parametrize(("name", "velocity_limit"), [("pendulum", 21.0), ("pendulum-hardware", 47.0)])
def test_a_fallback_that_accelerates_is_found_soon_after_the_envelope(
    name: str, velocity_limit: float, signs: dict[str, float]
) -> None:
    config = load_run(name)
    loop = DivergingLoop(config, **signs)
    at_s, max_velocity = loop.run(20.0, float("nan"), (0.5, 3.0))
    assert at_s < 20.0
    assert config.limits.envelope["velocity"].high < max_velocity < velocity_limit, "it was on the way to 56 rad/s"
    contradiction = loop.tick.contradiction
    assert contradiction is not None
    assert contradiction.fault is FaultName.FALLBACK_DIVERGES
    assert "at full effort" in contradiction.detail
    assert FAULTS[contradiction.fault].rearm is Rearm.PERSON


@pytest.mark.parametrize("signs", SIGNS, ids=["actuator", "sensor"])
def test_without_a_prediction_it_is_found_after_a_second_outside(signs: dict[str, float]) -> None:
    config = load_run("pendulum", ["limits.predicted=null"])
    at_s, max_velocity = DivergingLoop(config, **signs).run(20.0, float("nan"), (0.5, 3.0))
    assert at_s < 20.0
    assert max_velocity < 45.0


@pytest.mark.parametrize("signs", [{}, {"actuator": -1.0, "sensor": -1.0}], ids=["right", "both"])
@pytest.mark.parametrize("settings", [[], ["limits.predicted=null"], LOW_ENVELOPE])
@pytest.mark.parametrize("velocity", [4.0, 14.0, 25.0])
def test_a_brake_that_brakes_is_not_a_fault_however_it_was_entered(
    signs: dict[str, float], settings: list[str], velocity: float
) -> None:
    for angle in (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0):
        for action in (float("nan"), 3.0, -3.0):
            loop = DivergingLoop(load_run("pendulum", settings), **signs)
            assert loop.run(4.0, action, (angle, velocity))[0] == float("inf")


def test_the_run_halts_disarmed_and_waits_for_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, "task.episode_s=8", "supervision.resume_timeout_s=0")
    bench.ring.at_push = lambda n: invert_actuator(bench.device) if n == 1 else None
    bench.loop._actor.act = lambda step: setattr(step, "policy", (float("nan"),))  # type: ignore[method-assign]
    bench.device._start_state = (0.5, 3.0)
    with pytest.raises(Halted) as error:
        bench.loop.run()
    assert error.value.fault is FaultName.FALLBACK_DIVERGES
    assert bench.transitions[-2:] == ["trip:fault", "expired:disconnected"]
    assert not bench.device.armed


def test_a_reset_that_drives_the_wrong_way_ends_long_before_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("limits={envelope: {velocity: {low: -30, high: 30}}}", "supervision.resume_timeout_s=0")
    bench = Bench(tmp_path, monkeypatch, *settings, lockstep=False, reset=False)
    invert_actuator(bench.device)
    with pytest.raises(Halted) as error:
        bench.loop.run()
    assert error.value.fault is FaultName.RESET_DIVERGES
    assert bench.ring.n_pushed < 3 * 50, "a fifth of ten seconds"
    assert not bench.device.armed


def test_the_fault_is_found_again_from_the_records(tmp_path: Path) -> None:
    settings = ("task.episode_s=8", "supervision.resume_timeout_s=0", "episodes=1")
    run = LoggedRun(tmp_path / "run", "pendulum", *settings, actions_at={2: lambda run: invert_actuator(run.device)})
    run.admit_policy(1, float("nan"))
    run.at_start = lambda loop: setattr(run.device, "_start_state", (0.5, 3.0))
    with pytest.raises(Halted):
        run.run()
    run._log_pending()
    run.log.close()
    run.events.close()
    run.rows.close()
    assert_equal(verify(run), len(run.records))
