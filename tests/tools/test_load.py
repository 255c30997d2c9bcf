"""Sections owned by other packages, and their cross checks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from onrig.learner.algorithm_settings import DdpgConfig
from onrig.runtime.config.document import find_config, shipped_names
from onrig.runtime.config.problem import ConfigError, Problem
from onrig.runtime.run_loading import load_resolved, save_resolved
from onrig.tools.load import load, load_for_rig
from onrig.tools.resumption import CannotResume, prepare_resumption

PENDULUM_FILE = str(find_config("pendulum"))


def collect_problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load("pendulum", overrides)
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_configurations_are_valid_and_load_back_equal(name: str, tmp_path: Path) -> None:
    config = load(name)
    save_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config


@pytest.mark.parametrize("recipe", shipped_names("recipes"))
def test_every_shipped_recipe_is_valid_for_the_run_that_it_is_named_after(recipe: str) -> None:
    load(recipe.split("-")[0], [f"recipe={recipe}"])


def test_the_resolved_sections_have_their_defaults_filled_in() -> None:
    config = load("pendulum")
    assert config.device.twin is not None
    assert config.device.twin["sensor_noise"] == 0.0
    assert config.learner["backlog"] == 2000


def test_overrides_apply_within_sections() -> None:
    config = load("pendulum", ["learner.ddpg.tau=0.5", "device.twin.sensor_noise=0.01"])
    assert isinstance(config.learner["ddpg"], dict)
    assert config.learner["ddpg"]["tau"] == 0.5
    assert config.device.twin is not None
    assert config.device.twin["sensor_noise"] == 0.01


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learner.ddpg.tua=0.5", "unknown field 'tua' at learner.ddpg (did you mean 'tau'?)"),
        ("learner.ddpg.tau=0", "at learner.ddpg.tau"),
        ("learner.updates_per_episode=0", "expected at least 1, got 0 at learner.updates_per_episode"),
        ("learner.backlog=0", "expected at least 1, got 0 at learner.backlog"),
        ("device.twin.sensor_noise=-1", "at device.twin.sensor_noise"),
        ("device.twin.plant.kind=pendulun", "at device.twin.plant.kind (did you mean 'pendulum'?)"),
        ("device.twin.lease_max=4", ""),
    ],
)
def test_a_problem_in_a_section_is_reported_at_its_place(override: str, message: str) -> None:
    problems = collect_problems(override)
    if message:
        assert any(t.startswith(f"--set {override}:1:1: ") and message in t for t in problems), problems
    else:
        assert any("the twin's longest lease is 4 at rig.lease_periods" in t for t in problems), problems


def test_two_ways_of_scheduling_updates_exclude_each_other() -> None:
    problems = collect_problems("learner.updates_per_transition=1.0")
    assert any("exactly one of 'updates_per_episode' and 'updates_per_transition' at learner" in t for t in problems)


@pytest.mark.parametrize(
    "overrides",
    [
        ["selection={strategy: 'FIFO[Uniform]', capacity: 15}"],
        ["episodes=1", "task.episode_s=0.3"],
        ["episodes=100", "learner.ddpg.batch=20001"],
    ],
)
def test_a_memory_that_holds_no_batch_is_refused(overrides: list[str]) -> None:
    assert any("is smaller than a batch of" in t for t in collect_problems(*overrides))


def test_a_memory_of_exactly_one_batch_is_accepted() -> None:
    assert load("pendulum", ["selection={strategy: 'FIFO[Uniform]', capacity: 16}"]).selection.capacity == 16


def test_a_period_unsupported_by_the_twin_is_reported_with_its_bounds() -> None:
    problems = collect_problems("device.twin.period_min_us=30000")
    assert any(
        "50 Hz is a period of 20000 us, but the twin supports 30000 to 1000000 us at rate_hz" in t for t in problems
    ), problems


@pytest.mark.parametrize("override", ["rate_hz=0", "rate_hz=1e-310", "rate_hz=-5", "task.episode_s=1e308"])
def test_an_absurd_rate_or_length_is_reported_once(override: str) -> None:
    (problem,) = collect_problems(override)
    assert problem.startswith(f"--set {override}:1:1: ")


def test_synthetic_experiences_need_a_rig_that_observes_the_complete_state_of_the_plant() -> None:
    estimate = "rig.observations=[{name: angle, unit: rad, low: -3, high: 3}, " + (
        "{name: velocity, unit: rad/s, low: -30, high: 30, derivative_of: angle}]"
    )
    sensor_error = "limits.predicted.sensor_error={velocity: 3.2}"
    assert load("pendulum", [estimate, sensor_error]).rig.observations[1].derivative_of == "angle"
    problems = collect_problems(estimate, sensor_error, "selection.synthetic={states: 0.1}")
    assert any("'velocity' is an estimate from 'angle'" in t and t.endswith("at selection.synthetic") for t in problems)


def test_problems_in_every_section_are_reported_at_once() -> None:
    problems = collect_problems(
        "learner.backlog=0", "device.twin.period_min_us=30000", "limits.fallback_dwell_s=-1", "episodes=0"
    )
    assert len(problems) >= 4


def test_a_rig_explores_as_its_policies_do() -> None:
    sac, own_noise = "learner.algorithm=sac", "exploration.process=own"
    assert load("pendulum", [sac]).learner["algorithm"] == "sac", "trials explore by the policy's noise in any case"
    with pytest.raises(ConfigError) as error:
        load_for_rig("pendulum", [sac])
    (problem,) = map(str, error.value.problems)
    assert "pendulum.yaml:14:12: the policies of sac sample their actions: expected 'own', got 'ou'" in problem
    with pytest.raises(ConfigError) as error:
        load_for_rig("pendulum", [own_noise])
    (problem,) = map(str, error.value.problems)
    assert problem.startswith(f"--set {own_noise}:1:1: the policies of ddpg have no noise of their own")
    assert load_for_rig("pendulum", [sac, own_noise]).stochastic
    assert load_for_rig("pendulum", [own_noise, "local_learner=false", "device.pace=realtime"]).stochastic
    assert load_for_rig("pendulum") == load("pendulum")


def test_a_memory_must_hold_a_batch_of_the_selected_algorithm() -> None:
    overrides = ["selection={strategy: 'FIFO[Uniform]', capacity: 100}", "learner.dqn.batch=101"]
    load("pendulum", overrides)
    (problem,) = collect_problems(*overrides, "learner.algorithm=dqn")
    assert "a memory of 100 experiences is smaller than a batch of 101 at learner.dqn.batch" in problem


def test_klper_needs_batches_with_a_spread() -> None:
    overrides = ["selection.strategy=FIFO[KLPER(4)]", "learner.ddpg.batch=1"]
    (problem,) = collect_problems(*overrides)
    assert problem.endswith("expected a batch of at least 2, got 1 at learner.ddpg.batch")
    load("pendulum", [overrides[0], "learner.ddpg.batch=2"])
    load("pendulum", overrides[1:])


def test_a_recurrent_policy_excludes_features_that_evaluate_single_observations() -> None:
    recurrent = ["learner.algorithm=vracer", "learner.vracer.recurrent={units: [32, 32]}", "exploration={process: own}"]
    load_for_rig("pendulum-hidden", recurrent)
    (problem,) = collect_problems(*recurrent, "selection.strategy=FIFO[KLPER(4)]")
    assert problem.endswith("but a recurrent policy needs the episode: choose another strategy at selection.strategy")
    (units_problem,) = collect_problems(*recurrent, "learner.vracer.recurrent.units=[32, 30]")
    assert units_problem.endswith("at learner.vracer.recurrent.units[1]")


def test_synthetic_experiences_and_inputs_of_a_policy_exclude_each_other() -> None:
    (problem,) = collect_problems("task.inputs=[{observation: angle}]", "selection.synthetic={states: 0.1}")
    assert problem.endswith("remove one of the two, at selection.synthetic")
    (problem,) = collect_problems("task.inputs=[{observation: speed}]")
    assert "rig 'pendulum' has no observation 'speed' (it has angle, velocity) at task.inputs[0].observation" in problem


def test_a_learned_sampling_needs_an_algorithm_that_reports_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["selection.strategy=FIFO[NERS]", "learner.ners={hidden: [64, 64, 32], score: [64, 32]}"]
    load("pendulum", overrides)
    monkeypatch.setattr(DdpgConfig, "provides_targets", False)
    (problem,) = collect_problems(*overrides)
    assert (
        "NERS needs the critic's targets, which ddpg does not provide: use crossq, dqn, droq, naf, rainbow, " in problem
    )
    assert problem.endswith("sac, td3 at selection.strategy")
    (problem,) = collect_problems("selection.strategy=MaxKLDiv[Uniform]", "selection.capacity=1000")
    assert "MaxKLDiv needs the KL divergence, which only ReF-ER provides (acer, ddpg, naf, vracer)" in problem
    assert problem.endswith("set learner.refer at selection.strategy")
    own_noise = ["exploration={process: own}", "learner.refer={}"]
    load("pendulum", ["selection.strategy=MaxKLDiv[Uniform]", "selection.capacity=1000", *own_noise])
    load("pendulum", ["selection.strategy=MinError[Uniform]", "selection.capacity=1000"])
    (problem,) = collect_problems("selection.strategy=FIFO[NERS+IS]")
    assert "unknown sampling 'NERS+IS'" in problem


ON_POLICY_OVERRIDES = ["learner={algorithm: ppo}", "exploration={process: own}"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learner.updates_per_episode=10", "ppo learns from each batch of its policies: remove this setting"),
        ("learner.learning_starts=10", "ppo learns from each batch of its policies: remove this setting"),
        ("learner.ppo={actors: 8}", "a rig has only one actor: remove this setting, got 8"),
        ("learner.ppo={truncations: terminate}", "also end at missing experiences: expected 'bootstrap'"),
        ("learner.ppo={batch: 100}", "expected a divisor of the 2048 steps, got 100"),
        ("exploration.amplitude=[[1, 1.0], [9, 0.5]]", "ppo cannot learn from actions with reduced noise"),
        ("exploration.quiet={every: 5}", "ppo cannot learn from actions without noise: remove this setting"),
        ("exploration.process=ou", "the policies of ppo sample their actions: expected 'own', got 'ou'"),
        ("selection={strategy: 'FIFO[PER]'}", "in order, and draws its own minibatches: expected FIFO[Uni"),
        ("selection={strategy: 'Resv[Uniform]'}", "expected FIFO[Uniform], got Resv[Uniform]"),
        ("selection={write_probability: 0.5}", "ppo needs every step of an episode: remove this setting"),
        ("selection={intervened: drop}", "the policy of ppo cannot learn from actions that are not its own"),
        (
            "selection={capacity: 2246}",
            "a batch of 2048 and the rest of its last episode need up to 2247 experiences, but the memory holds 2246: "
            "set it to 2247 or more",
        ),
    ],
)
def test_obstacles_to_gathering_policy_batches_are_reported_at_their_place(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_for_rig("pendulum", [*ON_POLICY_OVERRIDES, override])
    (problem,) = error.value.problems
    assert message in str(problem)
    assert str(problem).startswith(f"--set {override}:1:")


def test_a_memory_of_a_batch_and_the_rest_of_an_episode_is_accepted() -> None:
    load_for_rig("pendulum", [*ON_POLICY_OVERRIDES, "selection={strategy: 'FIFO[Uniform]', capacity: 2247}"])
    load_for_rig("pendulum", [*ON_POLICY_OVERRIDES, "learner.algorithm=trpo"])


SAC_OVERRIDES = ("learner.algorithm=sac", "exploration.process=own")


@pytest.mark.parametrize(
    ("overrides", "expected_start"),
    [
        (SAC_OVERRIDES, f"{PENDULUM_FILE}:15:"),
        ((*SAC_OVERRIDES, "exploration.amplitude=[[1, 1.0], [9, 0.5]]"), "--set exploration.amplitude="),
        ((*SAC_OVERRIDES, "exploration.amplitude={voltage: [[1, 0.9]]}"), "--set exploration.amplitude="),
        ((*SAC_OVERRIDES, "exploration.amplitude=[[1, 1.0]]"), ""),
        (("learner.algorithm=sac", "exploration={process: own}"), ""),
        ((), ""),
    ],
)
def test_reducing_a_policys_own_noise_is_reported(overrides: tuple[str, ...], expected_start: str) -> None:
    warnings: list[Problem] = []
    load_for_rig("pendulum", overrides, on_warning=warnings.append)
    assert [str(problem).startswith(expected_start) for problem in warnings] == [True] * bool(expected_start)
    assert all(": warning: the policy's own noise is reduced" in str(problem) for problem in warnings)
    assert all("remove it" in str(problem) for problem in warnings)


@pytest.mark.parametrize(("episodes", "is_warned"), [(9, True), (10, False)])
def test_a_run_shorter_than_a_batch_gets_a_warning(episodes: int, is_warned: bool) -> None:
    warnings: list[Problem] = []
    load_for_rig("pendulum", ["recipe=pendulum-ppo", f"episodes={episodes}"], on_warning=warnings.append)
    message = "the run has 1800 steps, fewer than a batch of 2000: the policy never changes"
    assert [message in str(problem) for problem in warnings] == [True] * is_warned


def test_a_run_on_a_port_resumes_with_its_own_command_line_wherever_the_device_is_now(tmp_path: Path) -> None:
    port_fd, other_fd = os.openpty()
    realtime = ["device.pace=realtime"]
    save_resolved(load_for_rig("pendulum-hardware", realtime, port="/dev/ttyUSB7"), tmp_path / "config.yaml")
    (tmp_path / "meta.json").touch()
    config = prepare_resumption(tmp_path, "pendulum-hardware", realtime, os.ttyname(other_fd)).config
    assert config.device.port is not None
    assert (config.device.port.path, config.device.twin) == (os.ttyname(other_fd), None)
    with pytest.raises(CannotResume, match="configuration differs from that of the run"):
        prepare_resumption(tmp_path, "pendulum", realtime, os.ttyname(other_fd))
    os.close(other_fd)
    os.close(port_fd)


def test_a_configuration_without_a_learner_is_read_back_unchanged(tmp_path: Path) -> None:
    text = find_config("pendulum").read_text()
    (tmp_path / "mine.yaml").write_text(
        re.sub(r"^learner:.*\n(?:[ #].*\n)*", "local_learner: false\n", text, flags=re.M)
    )
    first_config = load_for_rig(str(tmp_path / "mine.yaml"))
    assert first_config.learner == {}
    save_resolved(first_config, tmp_path / "config.yaml")
    assert load_for_rig(str(tmp_path / "config.yaml")) == first_config


TERMINATING = "task.terminate={velocity: [-6, 6]}"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([TERMINATING], "worth 0, but random actions earn -3270 without it (discounted by 0.95)"),
        ([TERMINATING, "task.normalization=null"], "worth 0, but the start state earns -3141 without it"),
        ([TERMINATING, "task.reward.terminal=-1000"], "worth -1000, but"),
        ([TERMINATING, "task.reward.terminal=-4000"], ""),
        ([TERMINATING, "task.normalization=null", "task.reward.alive=200"], ""),
        ([], ""),
    ],
)
def test_a_reward_that_teaches_falling_gets_a_warning(overrides: list[str], expected: str) -> None:
    warnings: list[Problem] = []
    load_for_rig("pendulum", overrides, on_warning=warnings.append)
    reward_warnings = [str(problem) for problem in warnings if "rewarded for ending" in str(problem)]
    assert len(reward_warnings) == bool(expected)
    assert all(expected in line and "set reward.terminal below -3" in line for line in reward_warnings)


def test_learning_starts_within_the_memory() -> None:
    memory = "selection={strategy: 'FIFO[Uniform]', capacity: 500}"
    load("pendulum", [memory, "learner.learning_starts=500"])
    (problem,) = collect_problems(memory, "learner.learning_starts=501")
    assert "a memory of 500 experiences never holds 501, so no update would follow" in problem


def test_a_run_too_short_for_learning_starts_gets_a_warning() -> None:
    warnings: list[Problem] = []
    memory = "selection={strategy: 'FULL[Uniform]'}"
    load_for_rig("pendulum", [memory, "learner.learning_starts=1000", "episodes=2"], on_warning=warnings.append)
    (warning,) = [str(problem) for problem in warnings if "the policy never changes" in str(problem)]
    assert "the run stores about 400 experiences, fewer than learner.learning_starts (1000)" in warning


def test_images_whose_policies_a_rig_refuses_are_reported_before_a_run() -> None:
    def settings(image_side: int, n_images: int) -> list[str]:
        inputs = ", ".join(f"{{observation: front, lag: {lag}}}" for lag in range(n_images))
        return [
            f"rig.cameras=[{{name: front, rows: {image_side}, columns: {image_side}}}]",
            f"task.inputs=[{inputs}]",
            f"learner.td3.images={{size: [{image_side}, {image_side}], frames: {n_images}, convolutions: [[8, 8, 4]]}}",
            "selection.capacity=100",
        ]

    load_for_rig("pendulum-camera", settings(64, 4))
    with pytest.raises(ConfigError) as error:
        load_for_rig("pendulum-camera", settings(64, 6))
    (problem,) = error.value.problems
    assert (
        "policies with these images are refused by the shapes check: input 'observation' has shape [1, 8196]"
        in problem.message
    )
