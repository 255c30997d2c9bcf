"""The lockstep rule: same configuration and seed, same episodes, same memory, same policy, bit for bit.

And the log of such a run replays to the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.tools import cli
from tests.processes.observer import digest_of
from tests.processes.rig import Run

SETTINGS = ("task.episode_s=1", "learner.updates_per_episode=20")
EPISODES = {"pendulum": 6, "magman": 3}


class Outcome(NamedTuple):
    """What a run leaves behind that must be equal."""

    episodes: bytes
    memory: object
    policy: bytes


class Three(NamedTuple):
    """Two equal runs and one with another seed and without a log, at once; then their outcomes."""

    config: str
    runs: tuple[Run, Run, Run]
    outcomes: list[Outcome]


def outcome(run: Run) -> Outcome:
    assert run.ended() == ExitCode.OK
    assert run.leftovers() == []
    policy = run.folder / "policies" / f"{run.policies()[-1]}.onnx"
    return Outcome((run.folder / "episodes.csv").read_bytes(), digest_of(run), policy.read_bytes())


@pytest.fixture(scope="module", params=["pendulum", pytest.param("magman", marks=pytest.mark.study)])
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    config: str = request.param
    folder = tmp_path_factory.mktemp(config)
    settings = (*SETTINGS, f"episodes={EPISODES[config]}")
    with (
        Run(folder / "first", config, *settings) as first,
        Run(folder / "again", config, *settings) as again,
        Run(folder / "other", config, *settings, "seed=1", "log.mcap=false") as other,
    ):
        runs = (first, again, other)
        yield Three(config, runs, [outcome(run) for run in runs])


def test_equal_runs_are_equal_bit_for_bit_and_another_seed_is_another_run(three: Three) -> None:
    first, again, other = three.outcomes
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_a_lockstep_run_replays_without_a_difference(three: Three, capsys: pytest.CaptureFixture[str]) -> None:
    run, steps = three.runs[0], EPISODES[three.config] * 51
    [closed] = run.events("log_closed")
    assert closed["steps"] == run.summary()["ticks"] == 2 * steps
    assert cli.main(["replay", str(run.folder)]) == ExitCode.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ticks", "compared", str(2 * steps), f"({steps}", "train,", f"{steps}", "eval)"] in lines


def test_without_a_log_there_is_no_file(three: Three) -> None:
    first, _, other = three.runs
    assert list(first.folder.glob("*.mcap"))
    assert list(other.folder.glob("*.mcap")) == []
