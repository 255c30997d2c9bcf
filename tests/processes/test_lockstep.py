"""The lockstep rule: same configuration and seed, same episodes, memory and policies, bit for bit.

All other runs are compared with one undisturbed run: one that was killed, one that was extended to more episodes
later, one with another seed; its log replays to the same decisions.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.episodes import read_rows
from onrig.tools import cli
from tests.lab.rig.processes import PATIENCE_S
from tests.lab.rig.run import PoweredRun, Run
from tests.processes.power_cut import complete_run, last_episode, outcome_of, resumptions_of

EPISODES = 9
SETTINGS = (
    "task.episode_s=0.6",
    "learner.updates_per_episode=5",
    "checkpoint_s=1.2",  # after every second episode
    "selection={strategy: 'TDE(1.0)[PER]', capacity: 100}",  # independent of the number of episodes
)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the undisturbed run."""
    return complete_run(tmp_path_factory.mktemp("lockstep") / "whole", "pendulum", *SETTINGS, f"episodes={EPISODES}")


@pytest.mark.parametrize("kills", [(5,), pytest.param((3, 6), marks=pytest.mark.study)], ids=["once", "twice"])
def test_a_killed_run_ends_like_the_undisturbed_one(
    kills: tuple[int, ...], undisturbed_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    for kill, goal in enumerate(kills):
        settings = () if kill else (*SETTINGS, f"episodes={EPISODES}")
        with Run(folder, "pendulum", *settings, resume=kill > 0) as run:
            run.until(lambda goal=goal: last_episode(folder) >= goal, "the next kill")  # type: ignore[misc]
            run.cut()
        last_recorded = last_episode(folder)
    complete_run(folder, "pendulum", resume=True)
    assert outcome_of(folder) == outcome_of(undisturbed_run)
    resumptions = resumptions_of(folder)
    assert len(resumptions) == len(kills)
    assert all(event["policy"] for event in resumptions)
    assert last_recorded - int(str(resumptions[-1]["episode"])) <= 2


def test_a_finished_run_extended_to_more_episodes_equals_one_that_was_that_long_from_the_start(
    undisturbed_run: Path, tmp_path: Path
) -> None:
    folder = complete_run(tmp_path / "twice", "pendulum", *SETTINGS, "episodes=3")
    complete_run(folder, "pendulum", f"episodes={EPISODES}", resume=True)
    once, twice = outcome_of(undisturbed_run), outcome_of(folder)
    assert (once.episodes, once.memory, once.counts) == (twice.episodes, twice.memory, twice.counts)
    newest = f"{EPISODES + 1}.onnx"
    assert once.policies[newest] == twice.policies[newest]

    # An unusable checkpoint is reported in one line, and nothing has changed.
    before = tmp_path / "before"
    for manifest in (folder / "buffer").glob("manifest-*.json"):
        manifest.write_bytes(manifest.read_bytes()[:-3])
    shutil.copytree(folder, before)
    with PoweredRun(tmp_path / "out", "--resume", folder, "--set", f"episodes={EPISODES + 1}") as run:
        assert run.ended(2 * PATIENCE_S) == ExitCode.CONFIGURATION
        assert "no checkpoint is left" in run.output
    assert content(folder) == content(before)


def test_updates_per_experience_follow_episodes_of_any_length_even_after_a_kill(tmp_path: Path) -> None:
    """Episodes end early, so that the first minibatch and ``learning_starts`` take several of them."""
    settings = (
        *(setting for setting in SETTINGS if not setting.startswith("learner")),
        "learner.updates_per_episode=null",
        "learner.updates_per_transition=0.4",
        "learner.learning_starts=40",
        "task.terminations={far: {kind: outside, observation: angle, low: -0.1, high: 0.1}}",
        f"episodes={EPISODES}",
    )
    undisturbed, folder = complete_run(tmp_path / "whole", "pendulum", *settings), tmp_path / "killed"
    with Run(folder, "pendulum", *settings) as run:
        run.until(lambda: last_episode(folder) >= 6, "the kill")
        run.cut()
    complete_run(folder, "pendulum", resume=True)
    outcome = outcome_of(undisturbed)
    assert outcome_of(folder) == outcome
    written = msgspec.convert(outcome.counts["transitions"], int)
    assert 40 < written < EPISODES * 30
    assert outcome.counts["updates"] == int(0.4 * written)
    idle = [row.policy_id for row in read_rows(undisturbed / "episodes.csv").rows if row.kind == "train"]
    assert idle[0] == idle[1], "no update before 40 experiences"


def test_another_seed_gives_another_run_and_without_a_log_there_is_no_file(
    undisturbed_run: Path, tmp_path: Path
) -> None:
    other = complete_run(tmp_path / "other", "pendulum", *SETTINGS, "episodes=2", "seed=1", "log.mcap=false")
    rows, others = (read_rows(folder / "episodes.csv").rows for folder in (undisturbed_run, other))
    assert all(row != of_other for row, of_other in zip(rows[: len(others)], others, strict=True))
    assert outcome_of(undisturbed_run).policies["2.onnx"] != outcome_of(other).policies["2.onnx"]
    assert list(undisturbed_run.glob("*.mcap"))
    assert list(other.glob("*.mcap")) == []


def test_a_lockstep_run_replays_without_differences(undisturbed_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ticks = outcome_of(undisturbed_run).counts["ticks"]
    assert cli.main(["replay", str(undisturbed_run)]) == ExitCode.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(line[:3] == ["ticks", "compared", str(ticks)] for line in lines)


@pytest.mark.study
def test_equal_runs_of_the_magman_are_equal(tmp_path: Path) -> None:
    settings = ("task.episode_s=1", "learner.updates_per_episode=20", "episodes=3")
    first, again = (outcome_of(complete_run(tmp_path / name, "magman", *settings)) for name in ("first", "again"))
    assert first == again


@pytest.mark.study
@pytest.mark.parametrize(
    ("config", "learner"),
    [
        ("pendulum", "{algorithm: vracer, vracer: {batch: 16, hidden: [16]}, refer: {}, updates_per_episode: 25}"),
        ("pendulum", "{algorithm: acer, acer: {batch: 4, segment: 50, hidden: [16]}, updates_per_episode: 6}"),
        (
            "pendulum-hidden",
            "{algorithm: vracer, vracer: {batch: 16, recurrent: {units: [8, 8], window: 8}}, refer: {}, "
            "updates_per_episode: 25}",
        ),
        # A batch is complete after every third episode, a checkpoint follows every second one.
        ("pendulum", "{algorithm: ppo, ppo: {steps: 64, batch: 16, hidden: [16], depth: 2, draw: uniform}}"),
    ],
    ids=["vracer", "acer", "recurrent", "half a batch"],
)
def test_a_run_whose_learner_keeps_notes_along_episodes_also_survives_a_kill(
    tmp_path: Path, config: str, learner: str
) -> None:
    more = (
        f"learner={learner}",
        "exploration={process: own}",
        "selection={strategy: 'FIFO[Uniform]', capacity: 100}",
        "episodes=7",
    )
    settings = (SETTINGS[0], SETTINGS[2], *more)
    undisturbed, folder = complete_run(tmp_path / "whole", config, *settings), tmp_path / "killed"
    with Run(folder, config, *settings) as run:
        run.until(lambda: last_episode(folder) >= 5, "the kill")
        run.cut()
    complete_run(folder, config, resume=True)
    assert outcome_of(folder) == outcome_of(undisturbed)
    assert cli.main(["replay", str(folder)]) == ExitCode.OK
