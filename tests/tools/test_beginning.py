"""Runs that start with an earlier run's experiences or networks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

import onrig
from onrig.hw.rig import Observation
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.memory.settings import SeedFrom
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.policy.contract import METADATA_KEY, decode_contract
from onrig.runtime.policy.onnx_wire import read_model
from onrig.runtime.replay.seeds import FIRST_EPISODE, digest, read_seeds
from onrig.runtime.run_changes import compare_configs
from onrig.runtime.run_config import RunConfig
from onrig.tools import cli
from onrig.tools.api.run_data import RunData
from onrig.tools.beginning import CannotBegin, mismatch, read_beginning, with_resolved_origins
from onrig.tools.exporting.export import Format, export
from onrig.tools.load import load_for_learner, load_for_rig, replace_device
from onrig.tools.plugins import Plugin, plugin_records
from tests.tools.api import whole_runs
from tests.tools.api.whole_runs import SETTINGS


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return onrig.open_run(whole_runs.make_finished_run(tmp_path_factory.mktemp("runs") / "source"))


def run_check(*settings: str, config: str = "pendulum") -> int:
    return cli.main(["check", config, *(word for s in (*SETTINGS, *settings) for word in ("--set", s))])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rate_hz=100", "rate is 50.0 Hz; this run is at 100.0 Hz"),
        ("device.twin.plant.mass=0.056", "plant.mass is 0.055; this run has 0.056"),
        ("task.reward.weights.velocity=2", "reward.weights.velocity is 1.0; this run has 2.0"),
        ("task.terminate={velocity: [-25, 25]}", "terminate.velocity is null; this run has [-25.0,25.0]"),
        (
            "task.terminations={fast: {kind: outside, observation: velocity, low: -20, high: 20, reward: -9}}",
            'terminations is null; this run has {"fast":{"kind":"outside","observation":"velocity"',
        ),
    ],
)
def test_a_foreign_rate_plant_or_reward_is_refused_with_both_values(
    source: RunData, setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_check(f"selection.seed_from={source.folder}", setting) == ExitCode.CONFIGURATION
    [error] = [line for line in capsys.readouterr().err.splitlines() if "is incompatible" in line]
    assert f"'{source.folder}' is incompatible with this run: {message}" in error
    assert error.endswith(" at selection.seed_from")


def test_a_reward_of_another_version_of_its_package_is_refused(
    source: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(source.folder, tmp_path / "run")
    meta = json.loads((tmp_path / "run/meta.json").read_text())
    old_plugins = [Plugin(group, "mine", "lab", "1.0", "a" * 64) for group in ("onrig.rewards", "onrig.samplers")]
    (tmp_path / "run/meta.json").write_text(json.dumps({**meta, **plugin_records(old_plugins)}))
    settings = [*SETTINGS, f"selection.seed_from={tmp_path / 'run'}"]
    new_plugins = [msgspec.structs.replace(plugin, version="1.1", sha256="b" * 64) for plugin in old_plugins]
    monkeypatch.setattr("onrig.tools.beginning.third_party_plugins", lambda config: new_plugins)
    with pytest.raises(ConfigError, match=r"'mine' of rewards was lab 1\.0 \(sha256 a+\) and is lab 1\.1"):
        load_for_rig("pendulum", settings)
    monkeypatch.setattr("onrig.tools.beginning.third_party_plugins", lambda config: [old_plugins[0], new_plugins[1]])
    load_for_rig("pendulum", settings)


def test_foreign_units_ranges_and_orders_are_refused_with_both_values(source: RunData) -> None:
    def with_observations(*observations: Observation) -> RunConfig:
        rig = msgspec.structs.replace(source.config.rig, observations=observations)
        return msgspec.structs.replace(source.config, rig=rig)

    angle, velocity = source.config.rig.observations
    degrees = msgspec.structs.replace(velocity, unit="deg/s")
    wider_velocity = msgspec.structs.replace(velocity, high=40.0)
    for foreign_config, message in (
        ((angle, degrees), "observations 'velocity' is [-30.0, 30.0] deg/s; this run has [-30.0, 30.0] rad/s"),
        ((angle, wider_velocity), "observations 'velocity' is [-30.0, 40.0] rad/s; this run has [-30.0, 30.0] rad/s"),
        ((velocity, angle), "observations are ['velocity', 'angle']; this run has ['angle', 'velocity']"),
    ):
        assert mismatch(with_observations(*foreign_config), source.config, takes_experiences=True) == message
        assert mismatch(with_observations(*foreign_config), source.config, takes_experiences=False) == message
    assert mismatch(source.config, source.config, takes_experiences=True) is None


def test_a_twin_may_seed_its_rig(source: RunData) -> None:
    port_config = replace_device(source.config, "/dev/ttyACM0")
    assert mismatch(source.config, port_config, takes_experiences=True) is None
    assert mismatch(source.config, port_config, takes_experiences=False) is None


def test_another_rig_and_another_algorithm_are_refused(source: RunData, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "magman", "--set", f"selection.seed_from={source.folder}"]
    assert cli.main(words) == ExitCode.CONFIGURATION
    assert "rig is 'pendulum'; this run has 'magman'" in capsys.readouterr().err
    assert (
        run_check(f"learner.start_from={source.folder}", "learner.algorithm=td3", "learner.td3.batch=16")
        == ExitCode.CONFIGURATION
    )
    assert "algorithm is ddpg; this run has td3" in capsys.readouterr().err


def test_seeds_are_the_newest_experiences_in_their_own_episodes(source: RunData) -> None:
    config = load_for_rig("pendulum", [*SETTINGS, "selection.strategy=FIFO[Uniform]"])
    max_experiences = 50
    seed_settings = SeedFrom(str(source.folder), max_experiences)
    config = _config_with_seeds(config, seed_settings)
    beginning = read_beginning(config)
    experiences = source.experiences
    seeds = _read_seeds(beginning.files, source.folder.parent)
    assert np.array_equal(seeds.observation, experiences["observation"][-max_experiences:])
    assert np.array_equal(seeds.reward, experiences["reward"][-max_experiences:])
    assert (seeds.episode >= FIRST_EPISODE).all()
    assert (seeds.policy_id == 0).all()
    assert beginning.config.selection.seeds == SeedFrom(str(source.folder), max_experiences, digest(seeds._asdict()))
    other = SeedFrom(str(source.folder), max_experiences - 1, digest(seeds._asdict()))
    with pytest.raises(CannotBegin, match=r"has changed: its content has the SHA-256 \w{64}, expected \w{64}"):
        read_beginning(_config_with_seeds(config, other))


@pytest.mark.parametrize(("export_format", "library"), [("parquet", "pyarrow"), ("minari", "minari")])
def test_an_export_seeds_like_its_run(source: RunData, tmp_path: Path, export_format: Format, library: str) -> None:
    pytest.importorskip(library)
    export(source, export_format, tmp_path / "out")
    assert run_check(f"selection.seed_from={tmp_path / 'out'}", "rate_hz=100") == ExitCode.CONFIGURATION
    config = load_for_rig("pendulum", [*SETTINGS, f"selection.seed_from={source.folder}"])
    config_of_export = load_for_rig("pendulum", [*SETTINGS, f"selection.seed_from={tmp_path / 'out'}"])
    (run_seeds, run_facts), (exported_seeds, export_facts) = (
        (b.config.selection.seeds, b.facts["start"]) for b in map(read_beginning, (config, config_of_export))
    )
    assert run_seeds is not None
    assert exported_seeds is not None
    assert run_seeds.sha256 == exported_seeds.sha256
    assert run_facts["experiences"]["run"] == export_facts["experiences"]["run"]  # type: ignore[index]


def test_a_run_starts_with_them_reproducibly_even_when_resumed(source: RunData, tmp_path: Path) -> None:
    settings = (f"selection.seed_from={source.folder}", f"learner.start_from={source.folder}", "checkpoint_s=3600")
    complete_run = onrig.open_run(whole_runs.make_finished_run(tmp_path / "whole", *settings))
    n = source.experiences.rows
    for name in ("observation", "action", "reward", "next_observation", "step", "terminated", "exploration"):
        assert np.array_equal(complete_run.experiences[name][:n], source.experiences[name]), name
    assert complete_run.experiences.rows == 2 * n
    assert complete_run.summary["transitions"] == n
    assert complete_run.summary["whole"]["reproducible"] is True
    assert complete_run.meta["start"]["experiences"]["experiences"] == n
    assert complete_run.meta["start"]["networks"]["episode"] == whole_runs.EPISODES
    assert cli.main(["replay", str(complete_run.folder)]) == ExitCode.OK

    folder = tmp_path / "killed"
    with whole_runs.start(folder, *settings) as process:
        while not (folder / "episodes.csv").exists() and process.poll() is None:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    resume_command = [sys.executable, "-m", "onrig.tools.cli", "run", "--resume", str(folder)]
    completed_process = subprocess.run(resume_command, capture_output=True, text=True, check=False)
    assert completed_process.returncode in (ExitCode.OK, ExitCode.INCOMPLETE), completed_process.stderr
    rows = [
        [line.rsplit(",", 1)[0] for line in (f / "episodes.csv").read_text().splitlines()]
        for f in (complete_run.folder, folder)
    ]
    assert rows[0] == rows[1]
    assert json.loads((folder / "meta.json").read_text())["start"] == complete_run.meta["start"]


def test_symmetric_sampling_needs_seeds_and_keeps_them(
    source: RunData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy, capacity = "selection.strategy=FIFO[Prior(0.5)[PER]]", 160
    assert run_check(strategy) == ExitCode.CONFIGURATION
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith("samples experiences of an earlier run: set selection.seed_from at selection.strategy")
    )
    settings = (strategy, f"selection.seed_from={source.folder}", f"selection.capacity={capacity}")
    run_seeds = onrig.open_run(whole_runs.make_finished_run(tmp_path / "run", *settings))
    seeds, n = run_seeds.config.selection.seeds, source.experiences.rows
    assert seeds is not None
    assert seeds.most == capacity // 2 < n < capacity, "half of the memory remains for the run, which fills it"
    observation = run_seeds.experiences["observation"]
    assert np.array_equal(observation[: seeds.most], source.experiences["observation"][-seeds.most :])
    assert len(observation) == capacity
    assert (run_seeds.experiences["episode"][seeds.most :] < FIRST_EPISODE).all()
    assert run_seeds.summary["whole"]["reproducible"] is True


def test_new_networks_learn_from_the_seeds_before_their_first_policy(source: RunData, tmp_path: Path) -> None:
    settings = (f"selection.seed_from={source.folder}", "episodes=1")
    runs = [onrig.open_run(whole_runs.make_finished_run(tmp_path / name, *settings)) for name in "ab"]
    contract = decode_contract(read_model(runs[0].policy(1)).metadata[METADATA_KEY])
    assert contract.training_step == 5 * whole_runs.EPISODES
    assert runs[0].summary["learner"]["updates"] == 5, "those of its own episode"
    assert runs[0].policies["crc32"].tolist() == runs[1].policies["crc32"].tolist()
    assert runs[0].summary["whole"]["reproducible"] is True


def test_a_run_resumes_under_the_configuration_that_it_was_started_with(source: RunData) -> None:
    words = [*SETTINGS, f"selection.seed_from={source.folder}", f"learner.start_from={source.folder}"]
    config = load_for_rig("pendulum", words)
    run_seeds = read_beginning(config).config
    assert compare_configs(run_seeds, with_resolved_origins(config, run_seeds)) == ([], [])
    assert compare_configs(run_seeds, with_resolved_origins(run_seeds, run_seeds)) == ([], [])
    other = load_for_rig("pendulum", [*words, f"selection.seed_from={{path: {source.folder}, most: 9}}"])
    [refusal_message] = [
        d
        for d in compare_configs(run_seeds, with_resolved_origins(other, run_seeds)).refused
        if d.path[:2] == ("selection", "seed_from")
    ][:1]
    assert "selection.seed_from" in str(refusal_message)


def test_a_remote_learner_starts_without_seeds(source: RunData, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(f"learner.start_from={source.folder}", "local_learner=false") == ExitCode.CONFIGURATION
    assert "only a local learner can start from networks" in capsys.readouterr().err
    with pytest.raises(onrig.ConfigError, match="only a local learner"):
        load_for_learner("pendulum", [*SETTINGS, f"learner.start_from={source.folder}"])


def _config_with_seeds(config: RunConfig, seeds: SeedFrom) -> RunConfig:
    return msgspec.structs.replace(config, selection=msgspec.structs.replace(config.selection, seed_from=seeds))


def _read_seeds(files: Mapping[str, bytes], folder: Path) -> Transitions:
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return read_seeds(folder)
