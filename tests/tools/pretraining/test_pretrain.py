"""`onrig pretrain` as a whole: pieces, evaluations, the end, a run started from it, and a continuation after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.learner.agent import read_networks
from onrig.learner.screening import SCREENING, Screening, ScreeningPlants
from onrig.learner.settings import learner_settings
from onrig.learner.states import States
from onrig.learner.trials.intervals import paired_difference
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.replay.seeds import digest
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from onrig.tools.api.run_data import RunData
from onrig.tools.beginning import read_beginning
from onrig.tools.cli import main
from onrig.tools.load import load_for_rig
from onrig.tools.pretrained import Pretraining, Scores, read_pretraining
from onrig.tools.pretraining.attempts import MIN_PIECES, is_stuck
from onrig.tools.pretraining.pretrain import _end_reason, pretrain, resume
from onrig.tools.pretraining.start import start_recipe, start_settings, write_start
from tests.tools.pretraining.posterior import pendulum_result, write_pendulum_result

SMALL_SETTINGS = ("task.episode_s=0.6", "learner.ddpg.network=small", "learner.updates_per_episode=5", "rate_hz=50")


class PretrainedFolders:
    """A pretraining of two pieces, and its folder as left by a kill after the first one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = write_pendulum_result(folder)
        self.settings = [f"identified={self.file}", *SMALL_SETTINGS]
        self.out, self.killed_folder = folder / "whole", folder / "killed"
        monkeypatch.setattr("onrig.tools.pretraining.pretrain.piece_episodes", lambda config: 3)

        def copy_folder(config: RunConfig, scores: Scores) -> None:
            if scores.episode == 3:
                shutil.copytree(self.out, self.killed_folder)

        self.record: Pretraining = pretrain(
            "pendulum", self.settings, out=self.out, episodes=6, on_evaluation=copy_folder
        )


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> PretrainedFolders:
    with pytest.MonkeyPatch.context() as patch:
        return PretrainedFolders(tmp_path_factory.mktemp("pretraining"), patch)


def networks(folder: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    states = States(folder / "learner", lambda line: None)
    return dict(read_networks(states.path(states.episodes()[0]), "ddpg"))


def test_it_is_evaluated_after_each_piece_and_reports_why_it_ended(pretrained: PretrainedFolders) -> None:
    assert [e.episode for e in pretrained.record.evaluations] == [0, 3, 6]
    assert pretrained.record.ended == "limit of 6 episodes"
    assert read_pretraining(pretrained.out) == pretrained.record
    assert len(set(pretrained.record.evaluations[-1].scores)) > 30, "the plants differ"


@pytest.mark.study  # with random kills: tests/studies/test_pretraining_killed.py
def test_a_killed_pretraining_continues_to_the_same_bits(pretrained: PretrainedFolders) -> None:
    assert not read_pretraining(pretrained.killed_folder).evaluations
    record = resume(pretrained.killed_folder)
    assert record.evaluations == pretrained.record.evaluations
    assert digest(networks(pretrained.out)) == digest(networks(pretrained.killed_folder))
    uninterrupted, continued = (
        RunData(folder, load_resolved(folder / "config.yaml")) for folder in (pretrained.out, pretrained.killed_folder)
    )
    assert all(
        np.array_equal(uninterrupted.experiences[name], continued.experiences[name])
        for name in ("observation", "action")
    )


def test_learning_that_fails_starts_again_with_another_seed_and_a_longer_horizon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onrig.tools.pretraining.pretrain.piece_episodes", lambda config: 3)
    monkeypatch.setattr("onrig.tools.pretraining.attempts.MIN_PIECES", 3)
    out, killed_folder = tmp_path / "whole", tmp_path / "killed"
    settings = (f"identified={write_pendulum_result(tmp_path)}", *SMALL_SETTINGS, "learner.ddpg.actor_lr=1e-18")
    record = pretrain(
        "pendulum",
        settings,
        out=out,
        episodes=12,
        on_failed_attempt=lambda record: shutil.copytree(out, killed_folder),
    )
    assert [e.episode for e in record.failed_attempts[0]] == [0, 3, 6, 9]
    assert [e.episode for e in record.evaluations] == [0, 3, 6, 9, 12]
    assert record.ended == "limit of 12 episodes"
    configs = [load_resolved(folder / "config.yaml") for folder in (out / "attempt-1", out)]
    assert configs[0].seed == 0 != configs[1].seed
    gammas = [learner_settings(config.learner).ddpg.gamma for config in configs]
    assert gammas[1] == pytest.approx(1 - (1 - gammas[0]) / 1.5)
    assert configs[1] == msgspec.structs.replace(
        configs[0], seed=configs[1].seed, episodes=12, learner=configs[1].learner
    )
    first_attempt = RunData(out / "attempt-1", configs[0])
    assert first_attempt.episodes["episode"].tolist() == list(range(1, 10))
    assert (out / "attempt-1" / "learner").is_dir()
    (killed_folder / "attempt-1").mkdir()  # as a kill during the move leaves it
    (killed_folder / "policies").rename(killed_folder / "attempt-1" / "policies")
    assert main(["pretrain", "--resume", str(killed_folder)]) == 0
    printed = capsys.readouterr().out
    assert "limit of 12 episodes after 12 episodes" in printed
    assert "the policy is no better than the first one" in printed
    assert "start a run from this pretraining" not in printed
    assert read_pretraining(killed_folder).evaluations == record.evaluations
    assert digest(networks(out)) == digest(networks(killed_folder))


@pytest.mark.parametrize(
    ("medians", "expected"), [((0.1, 0.2, 0.0, 0.1, 0.1), True), ((0.1, 0.0, 0.2, 0.1, 0.1), False)]
)
def test_an_attempt_is_stuck_without_a_better_policy_among_the_last(medians: tuple[float, ...], expected: bool) -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.001, (len(medians), 39))
    evaluations = [Scores(k, tuple(m + noise[k])) for k, m in enumerate(medians)]
    assert is_stuck([*evaluations[:1] * MIN_PIECES, *evaluations], 0) is expected
    assert not is_stuck([*evaluations[:1] * MIN_PIECES, *evaluations], 1)
    assert not is_stuck(evaluations[:3], 0)


def test_a_run_starts_with_its_networks_and_experiences(pretrained: PretrainedFolders) -> None:
    settings = [
        f"recipe={pretrained.out / 'start.yaml'}",
        f"identified={pretrained.out / 'identified.yaml'}",
        *SMALL_SETTINGS[:1],
    ]
    beginning = read_beginning(load_for_rig("pendulum", settings))
    start_facts = beginning.facts["start"]
    assert isinstance(start_facts, dict)
    assert start_facts["experiences"]["experiences"] == 6 * 30
    assert start_facts["networks"]["episode"] == 6
    expected = start_facts["networks"]["expected"]
    assert (expected["low"], expected["high"]) == pretrained.record.evaluations[-1].range


def test_a_run_tests_its_policies_on_held_out_plants(pretrained: PretrainedFolders) -> None:
    settings = [*start_settings(pretrained.out), *SMALL_SETTINGS[:1], "learner.screening=3"]
    beginning = read_beginning(load_for_rig("pendulum", settings))
    plants = msgspec.json.decode(beginning.files[SCREENING], type=ScreeningPlants)
    first, last = (e.scores for e in (pretrained.record.evaluations[0], pretrained.record.evaluations[-1]))
    learned = abs(paired_difference(np.array(last), np.array(first)).value)
    assert plants.min_scores == pytest.approx([score - 0.1 * learned for score in last[:3]])
    config = load_resolved(pretrained.out / "config.yaml")
    screening = Screening(config, plants, lambda: None)
    newest_policy = (pretrained.out / "policies" / "7.onnx").read_bytes()
    assert screening.failure(newest_policy) == "", "it scores what the pretraining recorded"
    stricter = msgspec.structs.replace(plants, min_scores=(*plants.min_scores[:2], last[2] + 1e-6))
    message = Screening(config, stricter, lambda: None).failure(newest_policy)
    assert message == f"score {last[2]:.3g} on plant 3 of 3, but {last[2]:.3g} is required"


@pytest.mark.parametrize(("score", "expected"), [(0.9, {"screening": 8}), (0.05, {})])
def test_only_a_successful_pretraining_screens_the_policies_of_a_run(
    pretrained: PretrainedFolders, score: float, expected: dict[str, int]
) -> None:
    rng = np.random.default_rng(0)
    evaluations = [Scores(k, tuple(rng.normal(level, 0.01, 39))) for k, level in ((0, 0.1), (6, score))]
    record = msgspec.structs.replace(pretrained.record, evaluations=tuple(evaluations))
    learner = start_recipe(pretrained.out, load_resolved(pretrained.out / "config.yaml"), record)["learner"]
    assert {name: value for name, value in learner.items() if name == "screening"} == expected


def test_only_the_plants_of_a_pretraining_can_screen(
    pretrained: PretrainedFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "pendulum", "--set", "learner.screening=8"]
    assert main(words) == 2
    assert "set learner.start_from, or omit this setting at learner.screening" in capsys.readouterr().err
    run_folder = tmp_path / "run"
    shutil.copytree(pretrained.out, run_folder, ignore=shutil.ignore_patterns("pretraining.json"))
    assert main([*words, "--set", f"learner.start_from={run_folder}", "--set", SMALL_SETTINGS[0]]) == 2
    assert f"'{run_folder}' contains no pretraining" in capsys.readouterr().err
    assert main(["check", "pendulum", "--set", "recipe=pendulum-ppo", "--set", "learner.screening=8"]) == 2
    assert "ppo learns only from its newest policy: remove this setting" in capsys.readouterr().err


def test_a_run_with_another_identification_is_refused_with_both_values(
    pretrained: PretrainedFolders, tmp_path: Path
) -> None:
    other = write_pendulum_result(tmp_path, pendulum_result(0.011))
    settings = [f"recipe={pretrained.out / 'start.yaml'}", f"identified={other}", *SMALL_SETTINGS[:1]]
    with pytest.raises(ConfigError) as error:
        load_for_rig("pendulum", settings)
    first_line = str(error.value).splitlines()[0]
    assert str(pretrained.record.identified) in first_line
    assert f'this run has "{load_for_rig("pendulum", settings[1:]).identified}"' in first_line


def test_run_accepts_it_by_its_folder(pretrained: PretrainedFolders, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "pendulum", "--pretrained", str(pretrained.out), "--set", SMALL_SETTINGS[0], "--dry-run"]) == 0
    assert "pendulum: valid" in capsys.readouterr().out


def test_a_finished_pretraining_is_neither_continued_nor_overwritten(
    pretrained: PretrainedFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pretrain", "--resume", str(pretrained.out)]) == 2
    assert "has ended: limit of 6 episodes" in capsys.readouterr().err
    arguments = ["pretrain", "pendulum", "--set", f"identified={pretrained.file}", "--out", str(pretrained.out)]
    assert main(arguments) == 2
    assert "already contains a pretraining; --resume continues it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["pendulum"],
            "pendulum names no identification from which to draw plants: onrig identify pendulum --out found",
        ),
        (["pendulum-camera"], "pendulum-camera has images among its inputs: pretraining supports no cameras"),
        (["pendulum", "--minutes", "0"], "--minutes: expected more than 0"),
        (["pendulum", "--episodes", "0"], "--episodes: expected 1 or more"),
        (["pendulum", "--resume", "x"], "--resume takes all settings from the folder"),
        (["--resume", "nowhere"], "'nowhere' contains no pretraining"),
        (["magman", "--set", "identified={file}"], "was identified on rig 'pendulum', not 'magman'"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_pendulum_result(tmp_path)
    assert main(["pretrain", *(a.replace("{file}", str(file)) for a in arguments)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_moved_folder_starts_with_its_own_networks(pretrained: PretrainedFolders, tmp_path: Path) -> None:
    moved_folder = tmp_path / "moved: aside"
    shutil.copytree(pretrained.out, moved_folder)
    config = load_for_rig("pendulum", [*start_settings(moved_folder), *SMALL_SETTINGS[:1]])
    start, seeds = learner_settings(config.learner).start, config.selection.seeds
    assert start is not None
    assert seeds is not None
    assert {start.path, seeds.path} == {str(moved_folder)}


def test_a_learner_from_its_own_policies_starts_without_experiences(
    pretrained: PretrainedFolders, tmp_path: Path
) -> None:
    config = load_for_rig("pendulum", ["recipe=pendulum-ppo"])
    write_start(tmp_path, config, pretrained.record)
    settings = start_settings(tmp_path)
    assert settings[2:] == (f'learner.start_from="{tmp_path}"',)
    assert "seed_from" not in start_recipe(tmp_path, config, pretrained.record)["selection"]


@pytest.mark.parametrize(("exploration_end", "expected"), [(1.0, "settled"), (6.0, "settled"), (7.0, "")])
def test_a_plateau_before_the_end_of_the_exploration_ends_nothing(
    pretrained: PretrainedFolders, exploration_end: float, expected: str
) -> None:
    noise = np.random.default_rng(0).normal(0.0, 1e-3, (7, 39))
    evaluations = tuple(Scores(k, tuple(min(k, 1) + noise[k])) for k in range(7))
    record = msgspec.structs.replace(pretrained.record, evaluations=evaluations, episodes=100, ended="")
    assert _end_reason(record, exploration_end) == expected
