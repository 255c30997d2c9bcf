from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw.rig import Rig, TrackingRig, targets_of
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.config.tables import hash_of
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.record import Kind
from onrig.runtime.rewards import Distance, Transitions
from onrig.runtime.run_config import RunConfig, to_plain_data
from onrig.runtime.run_loading import load_resolved, load_run, save_resolved
from onrig.runtime.targets import Choice, Csv, Drawn, Sine, Steps, Target, TargetFailed, Values, draw_values
from onrig.runtime.tracking import EpisodeTargets, followers
from tests.runtime.samples import PENDULUM

TABLE = "t,value\n0,1.5\n0.1,-0.5\n0.4,2\n"
TARGETS: dict[str, Target] = {
    "drawn": Drawn(low=-3.0, high=3.0),
    "choice": Choice(values=(-1.0, 0.5, 2.0)),
    "levels": Steps(levels=((0.0, 1.0), (0.06, -1.0), (0.2, 0.25))),
    "random levels": Steps(low=-2.0, high=1.0, every_s=0.1),
    "sine": Sine(amplitude=2.0, frequency_hz=1.5, offset=0.5),
    "linear table": Csv(file="table.csv", content=TABLE),
    "held table": Csv(file="table.csv", content=TABLE, between="held"),
}
PERIOD_S = 0.02


def values(target: Target, seed: int = 0, steps: int = 50) -> list[float]:
    drawn_values = draw_values([target], steps, PERIOD_S, lambda i: np.random.default_rng([seed, i]))
    assert drawn_values.shape == (steps + 1, 1)
    return [float(value) for value in drawn_values[:, 0]]


@pytest.mark.parametrize("name", TARGETS)
@given(seed=st.integers(0, 1000))
def test_values_are_within_the_span_and_match_the_generator(name: str, seed: int) -> None:
    target = TARGETS[name]
    assert list(target.problems()) == []
    low, high = target.span()
    drawn_values = values(target, seed)
    assert drawn_values == values(target, seed)
    assert low - 1e-12 <= min(drawn_values) <= max(drawn_values) <= high + 1e-12
    longer_values = values(target, seed, steps=75)
    assert longer_values[:51] == drawn_values, "the values of a step do not depend on the episode's length"


def test_a_drawn_value_and_a_choice_are_constant_within_an_episode_and_differ_between_episodes() -> None:
    for name in ("drawn", "choice"):
        assert {len(set(values(TARGETS[name], seed))) for seed in range(20)} == {1}
    assert len({values(TARGETS["drawn"], seed)[0] for seed in range(20)}) == 20
    assert {values(TARGETS["choice"], seed)[0] for seed in range(50)} == {-1.0, 0.5, 2.0}


def test_levels_change_at_the_samples_of_their_times() -> None:
    assert values(TARGETS["levels"], steps=12) == [1.0] * 3 + [-1.0] * 7 + [0.25] * 3
    drawn_values = values(TARGETS["random levels"], steps=20)
    assert [k for k in range(1, 21) if drawn_values[k] != drawn_values[k - 1]] == [5, 10, 15, 20], (
        "0.1 s are five periods"
    )


def test_a_sine_and_a_table_match_their_formulas() -> None:
    sine = Sine(amplitude=2.0, frequency_hz=1.5, offset=0.5, phase_rad=0.3)
    expected = [0.5 + 2.0 * math.sin(2.0 * math.pi * 1.5 * k * PERIOD_S + 0.3) for k in range(51)]
    np.testing.assert_allclose(values(sine), expected, rtol=1e-12)
    assert values(TARGETS["linear table"], steps=30) == pytest.approx(
        np.interp(np.arange(31) * PERIOD_S, [0.0, 0.1, 0.4], [1.5, -0.5, 2.0])
    )
    assert values(TARGETS["held table"], steps=21) == [1.5] * 5 + [-0.5] * 15 + [2.0] * 2


INVALID_TARGETS: dict[str, tuple[object, str]] = {
    "no span": ({"kind": "drawn", "low": 1, "high": 1}, "low < high at task.targets.ref"),
    "one choice": ({"kind": "choice", "values": [2]}, "values from 2 to 2: expected low < high"),
    "both forms": ({"kind": "steps", "levels": [[0, 1], [1, 2]], "every_s": 1}, "expected either levels"),
    "no form": ({"kind": "steps"}, "expected either levels, as [time in s, value], or all of low, high and every_s"),
    "a late start": ({"kind": "steps", "levels": [[0.5, 1], [1, 2]]}, "must be at 0 s at task.targets.ref.levels"),
    "no order": ({"kind": "steps", "levels": [[0, 1], [2, 2], [1, 3]]}, "the times must increase"),
    "no file": ({"kind": "csv", "file": "nowhere.csv"}, "nowhere.csv': No such file or directory"),
    "unknown observation": (
        {"kind": "drawn", "low": 0, "high": 1, "observation": "angel"},
        "rig 'pendulum' has no observation 'angel' (did you mean 'angle'?) at task.targets.ref.observation",
    ),
    "unknown kind": ({"kind": "drwan", "low": 0, "high": 1}, "did you mean 'drawn'?"),
    "a taken name": ({}, "rig 'pendulum' has an observation or actuator with that name at task.targets.voltage"),
}


@pytest.mark.parametrize("name", INVALID_TARGETS)
def test_a_target_without_values_is_refused_with_its_place(name: str) -> None:
    target, message = INVALID_TARGETS[name]
    targets = {"voltage": {"kind": "drawn", "low": 0, "high": 1}} if not target else {"ref": target}
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", [f"task.targets={msgspec.json.encode(targets).decode()}"])
    assert message in str(error.value)


TARGET_OVERRIDE = "task.targets={angle_ref: {kind: drawn, low: -3, high: 3}}"
REWARD_OVERRIDE = "task.reward.terms={near: {kind: distance, observation: angle, weight: 1, target: angle_ref}}"


def test_targets_are_signals_after_the_rigs_own_and_occur_only_once_in_each_file(tmp_path: Path) -> None:
    config = load_run(
        "pendulum", [TARGET_OVERRIDE, REWARD_OVERRIDE, "rig.previous_command=true", "limits.predicted=null"]
    )
    assert [s.name for s in config.rig.signals] == ["angle", "velocity", "previous_voltage", "angle_ref"]
    assert config.signals == config.rig.signals
    (target,) = targets_of(config.rig)
    assert (target.unit, target.low, target.high) == ("rad", -3.0, 3.0), "the unit of what is compared with it"
    assert followers(config.task) == {"angle_ref": "angle"}
    save_resolved(config, tmp_path / "config.yaml")
    assert "targets" not in yaml.safe_load((tmp_path / "config.yaml").read_text())["rig"]
    assert load_resolved(tmp_path / "config.yaml") == config
    assert to_plain_data(config)["rig"] == msgspec.to_builtins(PENDULUM.rig) | {"previous_command": True}


def test_the_signals_include_the_targets_of_the_configured_task() -> None:
    config = load_run("pendulum", [TARGET_OVERRIDE])
    other = {"speed_ref": Sine(amplitude=1.0, frequency_hz=1.0, observation="velocity")}
    with_other_targets = msgspec.structs.replace(config, task=msgspec.structs.replace(config.task, targets=other))
    assert [(s.name, s.unit) for s in targets_of(with_other_targets.rig)] == [("speed_ref", "rad/s")]
    without_targets = msgspec.structs.replace(config, task=PENDULUM.task)
    assert type(without_targets.rig) is Rig
    assert isinstance(config.rig, TrackingRig)
    assert without_targets.rig == PENDULUM.rig


def test_a_tasks_inputs_may_omit_a_target() -> None:
    config = load_run(
        "pendulum", [TARGET_OVERRIDE, "task.inputs=[{observation: angle}, {observation: angle_ref, lag: 1}]"]
    )
    assert [s.name for s in config.signals] == ["angle", "angle_ref-1"]


@pytest.mark.parametrize("file", ["task.yaml", "run.yaml"])
def test_a_table_is_read_from_next_to_the_task_and_becomes_part_of_the_run(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "table.csv").write_text(TABLE)
    task = yaml.safe_load((Path("configs/tasks/swingup.yaml")).read_text())
    task["targets"] = {"ref": {"kind": "csv", "file": "table.csv"}}
    run = {**yaml.safe_load(Path("configs/pendulum.yaml").read_text()), "task": task}
    if file == "task.yaml":
        (folder / file).write_text(yaml.safe_dump(task))
        run["task"] = "mine/task.yaml"
    (tmp_path / "run.yaml" if file == "task.yaml" else folder / "run.yaml").write_text(yaml.safe_dump(run))
    config = load_run(str(tmp_path / "run.yaml" if file == "task.yaml" else folder / "run.yaml"))
    assert (config.rig.signals[-1].low, config.rig.signals[-1].high) == (-0.5, 2.0)
    save_resolved(config, tmp_path / "config.yaml")
    (folder / "table.csv").unlink()
    reloaded = load_resolved(tmp_path / "config.yaml")
    assert reloaded == config
    (target,) = (reloaded.task.targets or {}).values()
    assert isinstance(target, Csv)
    assert (target.content, target.sha256) == (TABLE, hash_of(TABLE))
    (tmp_path / "config.yaml").write_text((tmp_path / "config.yaml").read_text().replace("1.5", "1.4"))
    with pytest.raises(ConfigError, match="does not match its sha256"):
        load_resolved(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("content", "expected_message"),
    [
        ("a,b\n1,2\n", "expected a first line with the columns t and value"),
        ("t,value\n", "has no rows"),
        ("t,value\n0,1\n1,x\n", "line 3: expected two numbers"),
        ("t,value\n0,1\n0,2\n", "line 3: the times must increase"),
        ("t,value\n0,1\n1,nan\n", "line 3: expected numbers of at most 1e+09"),
        ("t,value\n0\n", "line 2: expected two numbers"),
    ],
)
def test_an_unreadable_table_names_its_line(content: str, expected_message: str) -> None:
    ((path, message),) = Csv(file="table.csv", content=content).problems()
    assert (path, message) == ("file", f"table.csv: {expected_message}")


def episode_targets_of(config: RunConfig) -> EpisodeTargets:
    return EpisodeTargets(config.task, config.rig, config.period_us, steps=50)


def test_each_target_of_each_episode_has_its_own_stream() -> None:
    config = load_run(
        "pendulum", ["task.targets={a: {kind: drawn, low: 0, high: 1}, b: {kind: drawn, low: 0, high: 1}}"]
    )
    episode_targets = episode_targets_of(config)
    first_values = [
        float(v)
        for e in (1, 2)
        for kind in (Kind.TRAIN, Kind.EVAL)
        for v in episode_targets.values_for_kind(7, kind, e)[0]
    ]
    assert len(set(first_values)) == 8
    assert first_values[:2] == [stream(7, Role.TARGETS_TRAIN, 1, i).uniform(0.0, 1.0) for i in (0, 1)]
    assert first_values[2:4] == [stream(7, Role.TARGETS_EVAL, 1, i).uniform(0.0, 1.0) for i in (0, 1)]
    assert (
        episode_targets.values_for_kind(7, Kind.EVAL, 1).tobytes()
        == episode_targets.values_for_role(7, Role.PLANT_EVAL, 1).tobytes()
    )
    assert episode_targets.values_for_kind(7, Kind.RESET, 1).tolist() == [[0.5, 0.5]], (
        "nothing is drawn for the way to a start"
    )


@given(x=st.floats(-math.pi, math.pi, exclude_max=True), target=st.floats(-3.0, 3.0))
def test_the_distance_of_an_angle_is_the_shorter_way_round(x: float, target: float) -> None:
    config = load_run("pendulum", [TARGET_OVERRIDE])
    wrapped_error = math.remainder(x - target, 2.0 * math.pi)
    unused = np.zeros((1, 1))
    observations = np.array([[x, 0.0, target]])
    for target_setting in ("angle_ref", target or "angle_ref"):
        term = Distance("angle", 2.0, target_setting).build(config.rig)
        reward = term(Transitions(observations, unused, unused, np.zeros(1, np.bool_)))
        assert reward[0] == pytest.approx(-2.0 * abs(wrapped_error), abs=1e-9)


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ({"target": "angel_ref"}, "has no target 'angel_ref' (did you mean 'angle_ref'?)"),
        ({"target": "angle"}, "'angle' would be compared with itself"),
        ({"target": "velocity"}, "'velocity' is in 'rad/s', but 'angle' is in 'rad'"),
    ],
)
def test_a_distance_requires_a_target_of_its_unit(term: dict[str, object], message: str) -> None:
    reward_terms = {"near": {"kind": "distance", "observation": "angle", "weight": 1, **term}}
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", [TARGET_OVERRIDE, f"task.reward.terms={msgspec.json.encode(reward_terms).decode()}"])
    assert f"{message} at task.reward.terms.near.target" in str(error.value)


def test_synthetic_experiences_of_a_task_with_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="synthetic experiences have no next target"):
        load_run("pendulum", [TARGET_OVERRIDE, "selection.synthetic={states: 0.1}"])


class Broken(Target, frozen=True, tag="broken"):
    value: float = math.nan

    def draw(self, times: Values, rng: np.random.Generator) -> Values:
        if self.value > 0.0:
            raise LookupError("no such level")
        return np.full(len(times), self.value)


@pytest.mark.parametrize(("value", "message"), [(math.nan, "non-finite"), (math.inf, "no such level")])
def test_a_target_with_non_finite_values_is_named(value: float, message: str) -> None:
    with pytest.raises(TargetFailed, match=f"of kind 'broken' .*{message}"):
        values(Broken(value=value))


def test_levels_cannot_be_drawn_more_often_than_they_could_matter() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"0\.001"):
        msgspec.convert({"kind": "steps", "low": 0.0, "high": 1.0, "every_s": 1e-12}, Steps)
