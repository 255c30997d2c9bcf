"""Plants and configuration of a pretraining, derived from an identification."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.exit_codes import Failure
from onrig.runtime.run_config import RunConfig
from onrig.sim.identification.result import Result
from onrig.sim.twin.main import twin_options
from onrig.sim.twin.options import draw_options
from onrig.tools.load import load, load_for_rig, rig_findings
from onrig.tools.pretrained import N_HELD_OUT_PLANTS
from onrig.tools.pretraining.configuration import (
    exploration_end_episode,
    piece_episodes,
    pretraining_config,
    split_samples,
)
from tests.tools.pretraining.posterior import STD, pendulum_result, write_pendulum_result


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load_for_rig(
        "pendulum", [f"identified={write_pendulum_result(tmp_path)}", "exploration.budgets.hour.trips=5"]
    )


def test_held_out_plants_are_not_used_for_learning(config: RunConfig) -> None:
    plants = split_samples(pendulum_result(), config, "FILE")
    gains_of = [set(part["gain_per_v_s2"]) for part in (plants.training_samples, plants.held_out)]
    assert [len(g) for g in gains_of] == [200 - N_HELD_OUT_PLANTS - plants.n_uncovered, N_HELD_OUT_PLANTS]
    assert not gains_of[0] & gains_of[1]


def test_parameters_are_drawn_together_with_noise_within_its_interval(config: RunConfig) -> None:
    result = pendulum_result()
    plants = split_samples(result, config, "FILE")
    assert set(plants.training_samples) == {*(p.name for p in result.parameters), "noise_angle"}
    rows = {row[:3] for row in result.samples}
    assert set(zip(*[plants.training_samples[p.name] for p in result.parameters[:3]], strict=True)) <= rows
    noise = np.array(plants.training_samples["noise_angle"])
    assert noise.mean() == pytest.approx(0.002, rel=0.01)
    assert np.std(np.log(noise)) == pytest.approx(np.log(0.0066 / 0.0063) / 1.96, rel=0.3)


def test_each_episode_of_the_twin_has_a_plant_of_the_posterior(config: RunConfig) -> None:
    result = pendulum_result()
    plants = split_samples(result, config, "FILE")
    first_config = pretraining_config(config, result, plants.training_samples, 10)
    assert not [*rig_findings(first_config)]
    options = twin_options(first_config)
    gains = [draw_options(options, seed).plant.lumped["gain_per_v_s2"] for seed in range(300)]
    assert np.std(np.log(gains)) == pytest.approx(STD, rel=0.2)
    assert set(np.round(gains, 9)) <= set(np.round(plants.training_samples["gain_per_v_s2"], 9))


def test_limits_and_task_are_the_rigs_but_wear_budgets_are_not(config: RunConfig) -> None:
    result = pendulum_result()
    first_config = pretraining_config(config, result, split_samples(result, config, "FILE").training_samples, 10)
    assert (first_config.limits, first_config.task, first_config.rig, first_config.probation) == (
        config.limits,
        config.task,
        config.rig,
        config.probation,
    )
    assert config.exploration.budgets.hour.trips == 5
    assert first_config.exploration.budgets.hour.trips is None
    assert first_config.lockstep
    assert first_config.identified == config.identified


def test_a_rig_on_a_port_is_pretrained_on_its_identified_twin(config: RunConfig) -> None:
    result = pendulum_result()
    config_on_port = msgspec.structs.replace(config, device=msgspec.structs.replace(config.device, twin=None))
    plants = split_samples(result, config_on_port, "FILE")
    assert (
        twin_options(pretraining_config(config_on_port, result, plants.training_samples, 1)).plant.dry_friction == 0.5
    )


def test_plants_not_covered_by_the_shield_are_left_out(config: RunConfig) -> None:
    wide_result = pendulum_result(0.03)
    plants = split_samples(wide_result, config, "FILE")
    assert plants.n_uncovered > 20
    nominal_gain = config.limits.predicted.nominal["gain_per_v_s2"]  # type: ignore[union-attr]
    for part in (plants.training_samples, plants.held_out):
        assert np.all(np.abs(np.array(part["gain_per_v_s2"]) / nominal_gain - 1) <= 0.05 + 1e-9)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (pendulum_result(samples=0), "contains 0 samples, but at least 100 are needed: identify the rig again"),
        (pendulum_result(widths=False), "gain_per_v_s2 was not identified: all samples are equal: identify"),
        (
            pendulum_result(0.3),
            "the shield covers .* plants, but at least 100 are needed: identify again with more motion",
        ),
    ],
)
def test_a_useless_posterior_is_refused_in_one_line(config: RunConfig, result: Result, message: str) -> None:
    with pytest.raises(Failure, match=message) as error:
        split_samples(result, config, "FILE")
    assert "\n" not in str(error.value)


def test_a_piece_has_about_the_same_number_of_steps_for_every_task(config: RunConfig) -> None:
    assert piece_episodes(config) == 25
    long_task = msgspec.structs.replace(config.task, episode_s=300.0)
    assert piece_episodes(msgspec.structs.replace(config, task=long_task)) == 1


@pytest.mark.parametrize(
    ("exploration", "expected"),
    [
        ("{process: ou, amplitude: [[1, 1.0], [350, 0.1]]}", 350.0),
        ("{process: ou, over: steps, amplitude: [[0, 1.0], [30000, 0.1]]}", 150.0),
        ("{process: ou, over: seconds, amplitude: {voltage: [[0, 1.0], [400, 0.1]]}}", 100.0),
        ("{process: ou, amplitude: [[1, 1.0], [500, 0.1], [5000, 0.05]]}", 500.0),
        ("{process: ou, amplitude: [[1, 0.5]]}", 1.0),
        ("{process: none}", 0.0),
    ],
)
def test_the_exploration_ends_with_the_last_point_of_its_schedule(exploration: str, expected: float) -> None:
    config = load("pendulum", [f"exploration={exploration}"])
    assert exploration_end_episode(config) == pytest.approx(expected)
