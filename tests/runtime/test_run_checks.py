"""Each cross check between values, and the position that it reports."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.explore.settings import BackOff, NearEnvelope, OrnsteinUhlenbeck
from onrig.runtime.memory.settings import Selection, Synthetic
from onrig.runtime.run_checks import findings
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.safety.limits import Limits
from tests.runtime.samples import MAGMAN, PENDULUM
from tests.runtime.spoiled import collect_problems, replace_and_locate

RUN = """\
rig:
  name: pendulum
  sensors:
    - {name: angle, unit: rad, resolution: 4.0e-4, wrap: true}
    - {name: velocity, unit: rad/s, resolution: 0.001}
  actuators:
    - {name: voltage, unit: V, resolution: 1.0e-4, low: -3.0, high: 3.0}
  observations:
    - {name: angle, unit: rad, low: -3.2, high: 3.2}
    - {name: velocity, unit: rad/s, low: -30.0, high: 30.0}
  lease_periods: 5
task:
  name: swingup
  episode_s: 4.0
  start: {angle: 0.0, velocity: 0.0}
  reward: {target: {angle: 3.0}, weights: {angle: 50.0}}
  normalization: {random_reward: -163.5, reference_reward: -43.1}
device:
  twin: {anything: here}
  pace: lockstep
rate_hz: 50
episodes: 500
selection:
  strategy: "FULL[Uniform]"
exploration:
  process: ou
  friction: 0.3
  amplitude:
    - [1, 1.0]
    - [500, 0.1]
limits:
  range: {voltage: [-2.5, 2.5]}
  rate_per_s: {voltage: 100.0}
  envelope: {velocity: {low: -15, high: 15}}
  fallback: {kind: damp, actuator: voltage, observation: velocity, full_at: 2.0}
  fallback_dwell_s: 0.1
realtime: {priority: 50}
seed: 0
evaluate_every: 1
barrier_timeout_s: 60
"""
ANGLE = "{name: angle, unit: rad, low: -3.2"

CASES = {
    # name: (text in the valid run, its replacement with the culprit between « and », message)
    "lease": ("lease_periods: 5", "lease_periods: «0»", "must be 1 to 255 at rig.lease_periods"),
    "resolution": (
        "resolution: 4.0e-4",
        "resolution: «-1»",
        "expected at least 1e-18, got -1 at rig.sensors[0].resolution",
    ),
    "sensor": (ANGLE, "«{name: tilt, unit: rad, low: -3.2", "no sensor 'tilt' (known: angle, velocity)"),
    "task": ("start: {angle: 0.0", "start: {angel: «0.0»", "no observation 'angel'"),
    "task range": ("{random_reward: -163.5", "«{random_reward: 0", "random_reward < reference_reward"),
    "rate": ("rate_hz: 50", "rate_hz: «0.01»", "expected 0.1 to 10000, got 0.01 at rate_hz"),
    "no rate": ("rate_hz: 50", "rate_hz: «0»", "expected 0.1 to 10000, got 0 at rate_hz"),
    "short episode": ("episode_s: 4.0", "episode_s: «0.009»", "got 0.009 s at 50 Hz at task.episode_s"),
    "endless episode": ("episode_s: 4.0", "episode_s: «1e9»", "expected an episode of 1 to"),
    "episodes": ("episodes: 500", "episodes: «0»", "expected at least 1, got 0 at episodes"),
    "seed": ("seed: 0", "seed: «-1»", "expected 0 or more, got -1 at seed"),
    "evaluations": ("evaluate_every: 1", "evaluate_every: «-1»", "got -1 at evaluate_every"),
    "timeout": (
        "barrier_timeout_s: 60",
        "barrier_timeout_s: «0»",
        "a positive number, got 0 at barrier_timeout_s",
    ),
    "no device": (
        "twin: {anything: here}\n  pace: lockstep",
        "«pace: lockstep",
        "exactly one of 'twin', 'port', 'transport' and 'driver'",
    ),
    "two devices": (
        "twin: {anything",
        "«port: {path: x}\n  twin: {anything",
        "exactly one of 'twin', 'port', 'transport' and 'driver'",
    ),
    "pace": ("pace: lockstep", "pace: {scaled: «0»}", "expected 0.01 to 1000, got 0 at device.pace.scaled"),
    "priority": ("priority: 50", "priority: «99»", "at realtime.priority"),
    "strategy": (
        '"FULL[Uniform]"',
        '«"FULL[Uni]"',
        "unknown sampling 'Uni' (did you mean 'Uniform'?); known retentions: Expl(ALPHA), FIFO",
    ),
    "capacity": ('"FULL[Uniform]"', '"FIFO[Uniform]"\n  capacity: «0»', "at least 1, got 0 at selection.capacity"),
    "full": ('"FULL[Uniform]"', '"FULL[Uniform]"\n  capacity: «99999»', "all 100000 experiences of the run"),
    "two capacities": (
        '"FULL[Uniform]"',
        '"FIFO[Uniform]"\n  capacity: 9\n  capacity_bytes: «9000»',
        "expected either 'capacity' or 'capacity_bytes' at selection",
    ),
    "bytes": (
        '"FULL[Uniform]"',
        '"FIFO[Uniform]"\n  capacity_bytes: «39»',
        "39 bytes hold no transition of 40 bytes at selection.capacity_bytes",
    ),
    "negative bytes": ('"FULL[Uniform]"', '"Resv[Uniform]"\n  capacity_bytes: «-1»', "-1 bytes are too few"),
    "bytes of full": (
        '"FULL[Uniform]"',
        '"FULL[Uniform]"\n  capacity_bytes: «3999999»',
        "100000 experiences of the run, but 3999999 bytes hold only 99999 at selection.capacity_bytes",
    ),
    "bytes beyond slots": (
        '"FULL[Uniform]"',
        '"FIFO[Uniform]"\n  capacity_bytes: «171798691840»',
        "171798691840 bytes hold 4294967296 experiences; the maximum is 4294967295",
    ),
    "never written": (
        '"FULL[Uniform]"',
        '"FULL[Uniform]"\n  write_probability: «0»',
        "expected more than 0, at most 1, got 0 at selection.write_probability",
    ),
    "written too often": ('"FULL[Uniform]"', '"FULL[Uniform]"\n  write_probability: «1.5»', "got 1.5"),
    "synthetic fraction": (
        '"FULL[Uniform]"',
        '"FULL[Uniform]"\n  synthetic: {states: «-0.1»}',
        "expected 0 to 1, got -0.1 at selection.synthetic.states",
    ),
    "refresh": (
        '"FULL[Uniform]"',
        '"FULL[Uniform]"\n  synthetic: {actions: 1, refresh: «2»}',
        "expected 0 to 1, got 2 at selection.synthetic.refresh",
    ),
    "synthetic sum": (
        '"FULL[Uniform]"',
        '"FULL[Uniform]"\n  synthetic: «{states: 0.6, actions: 0.7}',
        "expected states + actions of at most 1, got 0.6 and 0.7 at selection.synthetic",
    ),
    "friction": (
        "friction: 0.3",
        "friction: «2.0»",
        "0 to less than 2, got 2 at exploration.friction (the process is stable in this interval)",
    ),
    "no schedule": ("    - [1, 1.0]\n    - [500, 0.1]", "    «[]", "at least one [episode, amplitude]"),
    "schedule": ("[500, 0.1]", "«[1, 0.1]", "episodes must increase, got 1 at exploration.amplitude[1]"),
    "amplitude": ("[500, 0.1]", "[500, «1.5»]", "0 to 1, got 1.5 at exploration.amplitude[1][1]"),
    "own schedule": (
        "    - [1, 1.0]\n    - [500, 0.1]",
        "    voltage: [[1, 1.0], «[1, 0.5]]",
        "episodes must increase, got 1 at exploration.amplitude.voltage[1]",
    ),
    "schedule name": (
        "    - [1, 1.0]\n    - [500, 0.1]",
        "    volts: «[[1, 1.0]]",
        "no actuator 'volts' (did you mean 'voltage'?) at exploration.amplitude.volts",
    ),
    "schedule missing": (
        "    - [1, 1.0]\n    - [500, 0.1]",
        "    «{}",
        "no schedule for voltage at exploration.amplitude",
    ),
    "std": (
        "process: ou\n  friction: 0.3",
        "process: gaussian\n  std: «0»",
        "expected a positive number, got 0 at exploration.std",
    ),
    "target": ("process: ou\n  friction: 0.3", "process: parameter\n  target_std: «2»", "at exploration.target_std"),
    "adapt every": (
        "process: ou\n  friction: 0.3",
        "process: parameter\n  adapt_every: «0»",
        "exploration.adapt_every",
    ),
    "adaption": (
        "process: ou\n  friction: 0.3",
        "process: parameter\n  adaption: «1»",
        "more than 1, at most 2, got 1",
    ),
    "near": ("process: ou", "process: ou\n  near_envelope: {from: «0»}", "at exploration.near_envelope.from"),
    "near floor": ("process: ou", "process: ou\n  near_envelope: {floor: «2»}", "at exploration.near_envelope.floor"),
    "back-off": ("process: ou", "process: ou\n  back_off: {factor: «1»}", "at exploration.back_off.factor"),
    "back-off least": ("process: ou", "process: ou\n  back_off: {least: «0»}", "at exploration.back_off.least"),
    "back-off never": (
        "process: ou",
        "process: ou\n  back_off: {clean_episodes: «0»}",
        "at least 1, got 0 at exploration.back_off.clean_episodes",
    ),
    "always quiet": (
        "process: ou",
        "process: ou\n  quiet: {every: «1»}",
        "at least 2, got 1 at exploration.quiet.every",
    ),
    "too quiet": (
        "process: ou",
        "process: ou\n  quiet: {every: 3, episodes: «3»}",
        "expected 1 to 2 of every 3, got 3",
    ),
    "warn": ("process: ou", "process: ou\n  budgets: {warn: «1.5»}", "0 to 1, got 1.5 at exploration.budgets.warn"),
    "no budget": (
        "process: ou",
        "process: ou\n  budgets: {hour: {trips: «0»}}",
        "expected at least 1, got 0 at exploration.budgets.hour.trips",
    ),
    "budget below an episode": (
        "process: ou",
        "process: ou\n  budgets: {session: {energy_s: «3.9»}}",
        "3.9 is less than one episode may use (4) at exploration.budgets.session.energy_s",
    ),
    "budget below its episode's": (
        "process: ou",
        "process: ou\n  budgets: {episode: {trips: 5}, hour: {trips: «4»}}",
        "4 is less than one episode may use (5) at exploration.budgets.hour.trips",
    ),
    "thermometer": (
        "process: ou",
        "process: ou\n  budgets: {temperature: {sensor: «winding», warn: 1, limit: 2}}",
        "no sensor 'winding' (it has angle, velocity) at exploration.budgets.temperature.sensor",
    ),
    "heat": (
        "process: ou",
        "process: ou\n  budgets: {temperature: «{sensor: angle, warn: 2, limit: 2}}",
        "expected warn below limit, got warn 2 and limit 2 at exploration.budgets.temperature",
    ),
    "cooling": (
        "process: ou",
        "process: ou\n  budgets: {temperature: {sensor: angle, warn: 1, limit: 2, cool_s: «0»}}",
        "at exploration.budgets.temperature.cool_s",
    ),
    "intervened": (
        '"FULL[Uniform]"',
        '"FULL[Uniform]"\n  intervened: {weight: «1.5»}',
        "expected 0 to 1, got 1.5 at selection.intervened.weight",
    ),
    "range name": (
        "range: {voltage",
        "range: {voltag: «[0, 1], voltage",
        "no actuator 'voltag' (did you mean 'voltage'?)",
    ),
    "range order": ("[-2.5, 2.5]", "«[2, -2]", "expected low < high, got [2, -2] at limits.range.voltage"),
    "range": ("[-2.5, 2.5]", "«[-2.5, 3.1]", "[-2.5, 3.1] V is wider than the rig's [-3, 3] at limits.range.voltage"),
    "range safe": ("[-2.5, 2.5]", "«[1, 2.5]", "the safe output 0 V is outside [1, 2.5] at limits.range.voltage"),
    "rate name": (
        "{voltage: 100.0}",
        "{torque: «100.0»}",
        "no actuator 'torque' (it has voltage) at limits.rate_per_s",
    ),
    "rate sign": ("{voltage: 100.0}", "{voltage: «-1»}", "a positive rate, got -1 at limits.rate_per_s.voltage"),
    "rate below a count": ("{voltage: 100.0}", "{voltage: «0.004»}", "less than one count (0.0001 V) per period"),
    "envelope name": (
        "envelope: {velocity",
        "envelope: {speed: «{low: 0, high: 1}, velocity",
        "no observation 'speed'",
    ),
    "envelope": ("{low: -15, high: 15}", "«{low: 15, high: -15}", "low < high and 0 < release"),
    "release": ("{low: -15, high: 15}", "«{low: -15, high: 15, release: 1.1}", "0 < release <= 1"),
    "fallback actuator": ("actuator: voltage", "actuator: «volts»", "no actuator 'volts' (did you mean 'voltage'"),
    "fallback observation": ("observation: velocity", "observation: «speed»", "no observation 'speed' (it has angle"),
    "fallback gain": ("full_at: 2.0", "full_at: «0»", "expected at least 1e-18, got 0 at limits.fallback.full_at"),
    "dwell": ("fallback_dwell_s: 0.1", "fallback_dwell_s: «-0.1»", "at limits.fallback_dwell_s"),
    "long dwell": ("fallback_dwell_s: 0.1", "fallback_dwell_s: «1e308»", "at limits.fallback_dwell_s"),
}


def write_run(folder: Path, text: str) -> str:
    (folder / "run.yaml").write_text(text)
    return str(folder / "run.yaml")


def test_the_run_these_cases_spoil_is_sound(tmp_path: Path) -> None:
    assert load_run(write_run(tmp_path, RUN)).episodes == 500


@pytest.mark.parametrize("case", CASES)
def test_mismatches_are_reported_at_their_line_and_column(tmp_path: Path, case: str) -> None:
    old, new, message = CASES[case]
    text, location = replace_and_locate(RUN, old, new)
    path = write_run(tmp_path, text)
    problems = collect_problems(path)
    matching = [p for p in problems if p.startswith(f"{path}:{location}: ")]
    assert any(message in p for p in matching), f"nothing at {location} but {problems}"


def test_a_device_on_a_port_has_no_plant_for_synthetic_experiences(tmp_path: Path) -> None:
    text = RUN.replace("twin: {anything: here}", "port: {path: /dev/ttyACM0}")
    path = write_run(tmp_path, text.replace('"FULL[Uniform]"', '"FULL[Uniform]"\n  synthetic: {actions: 0.1}'))
    (problem,) = collect_problems(path)
    assert problem.startswith(f"{path}:25:14: ")
    assert "this device is on /dev/ttyACM0 at selection.synthetic" in problem


def test_policy_dependent_noise_cannot_be_redrawn(tmp_path: Path) -> None:
    text = RUN.replace('"FULL[Uniform]"', '"FULL[Uniform]"\n  synthetic: {actions: 0.1}')
    exploration_section = text[text.index("exploration:") : text.index("limits:")]
    (problem,) = collect_problems(
        write_run(tmp_path, text.replace(exploration_section, "exploration: {process: parameter}\n"))
    )
    assert "expected" not in problem
    assert "need noise that does not depend on the policy" in problem


def test_all_problems_are_reported_at_once_from_top_to_bottom(tmp_path: Path) -> None:
    text = RUN
    for name in ("lease", "short episode", "strategy", "range", "dwell"):
        old, new, _ = CASES[name]
        text, _ = replace_and_locate(text, old, new)
    with pytest.raises(ConfigError) as error:
        load_run(write_run(tmp_path, text))
    lines = [problem.mark.line for problem in error.value.problems]
    assert lines == sorted(lines)
    assert len(lines) == 5


@pytest.mark.parametrize("name", ["a.b", "foo[x]", "[", "x[1000000000000]", ""])
def test_no_name_in_a_task_makes_the_checks_themselves_fail(tmp_path: Path, name: str) -> None:
    text = RUN.replace("start: {angle: 0.0", f'start: {{"{name}": 0.0')
    with pytest.raises(ConfigError) as error:
        load_run(write_run(tmp_path, text))
    (problem,) = error.value.problems
    assert f"no observation '{name}'" in problem.message
    assert problem.mark.line == 15


def test_a_rate_that_barely_moves_the_actuator_is_allowed() -> None:
    limits = Limits(rate_per_s={"voltage": 0.005})
    assert list(findings(msgspec.structs.replace(PENDULUM, limits=limits))) == []


@pytest.mark.parametrize("config", [PENDULUM, MAGMAN], ids=["pendulum", "magman"])
def test_shipped_configurations_have_no_findings(config: RunConfig) -> None:
    assert list(findings(config)) == []


def _exploration_problems(config: RunConfig) -> list[str]:
    return [message for _, message in findings(config)]


def test_a_gate_near_the_envelope_requires_an_envelope() -> None:
    near_envelope = OrnsteinUhlenbeck(near_envelope=NearEnvelope())
    assert _exploration_problems(msgspec.structs.replace(PENDULUM, exploration=near_envelope)) == []
    (message,) = _exploration_problems(msgspec.structs.replace(PENDULUM, exploration=near_envelope, limits=Limits()))
    assert message == "limits.envelope is required as well, at exploration.near_envelope"


def test_a_schedule_over_steps_mentions_steps() -> None:
    decreasing_amplitude = OrnsteinUhlenbeck(over="steps", amplitude=((5, 1.0), (4, 0.5)))
    (message,) = _exploration_problems(msgspec.structs.replace(PENDULUM, exploration=decreasing_amplitude))
    assert message == "steps must increase, got 4 at exploration.amplitude[1]"


def test_synthetic_states_need_redrawable_noise() -> None:
    synthetic = Selection(strategy="FIFO[Uniform]", synthetic=Synthetic(states=0.1))
    gated_noise = OrnsteinUhlenbeck(back_off=BackOff())
    assert _exploration_problems(msgspec.structs.replace(PENDULUM, selection=synthetic)) == []
    (message,) = _exploration_problems(msgspec.structs.replace(PENDULUM, selection=synthetic, exploration=gated_noise))
    assert message.endswith("without gates and budgets, at exploration")
    synthetic_actions = Selection(strategy="FIFO[Uniform]", synthetic=Synthetic(actions=0.1))
    assert (
        _exploration_problems(msgspec.structs.replace(PENDULUM, selection=synthetic_actions, exploration=gated_noise))
        == []
    )
