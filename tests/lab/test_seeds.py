from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.episodes import COLUMNS as EPISODE_COLUMNS
from tests.lab import seeds

RUN = ["pendulum", "--set", "recipe=pendulum-vracer"]


def _episodes(scores: list[float]) -> str:
    """Return an ``episodes.csv`` with an evaluation of each score after every fifth training episode."""
    lines = [",".join(EPISODE_COLUMNS)]
    for k, score in enumerate(scores):
        for kind, value in (("train", -1.0), ("eval", score)):
            lines.append(f"{5 * (k + 1)},{kind},200,-1.0,-1.0,{value},0.0,0,0,1,1")
    return "\n".join(lines) + "\n"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands; seed s ends at 0.9 - s / 10, seed 1 fails the first time."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        (seed,) = (int(word.removeprefix("seed=")) for word in command if word.startswith("seed="))
        if seed == 1 and sum("seed=1" in c for c in commands) == 1:
            return subprocess.CompletedProcess(command, 4, stderr="onrig run: no frames\n")
        folder = Path(command[command.index("--run-dir") + 1])
        folder.mkdir()
        (folder / "episodes.csv").write_text(_episodes([0.0] * 10 + [0.9 - seed / 10] * 30))
        return subprocess.CompletedProcess(command, 0, stderr="")

    pipes = SimpleNamespace(run=run, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(seeds, "subprocess", pipes)
    return commands


def test_a_failed_comparison_continues_with_the_missing_seeds(
    runs: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, json = tmp_path / "new" / "seeds.csv", tmp_path / "seeds.json"
    arguments = [*RUN, "--out", str(out), "--seeds", "3"]
    assert seeds.main([*arguments, "--dry-run"]) == ExitCode.OK
    assert "3 of 3 seeds to run, 1500 episodes each" in capsys.readouterr().out
    assert not runs
    assert seeds.main(arguments) == ExitCode.HARDWARE
    assert "seed 1 ended with exit code 4: onrig run: no frames" in capsys.readouterr().err
    assert seeds.main([*arguments, "--json", str(json), "--at-once", "2"]) == ExitCode.OK
    assert sorted(_seed_of(command) for command in runs) == ["0", "1", "1", "2"]
    rows = {row.seed: row for row in seeds.rows_of(RUN, out)}
    assert {seed: (row.final, row.reached, row.episodes) for seed, row in rows.items()} == {
        0: (0.9, 140, 200),  # 18 of 20 at 0.9 average 0.81
        1: (0.8, 150, 200),
        2: (0.7, None, 200),
    }
    assert rows[0].run == "pendulum --set recipe=pendulum-vracer"
    output = capsys.readouterr().out
    assert "interval 0.800, lowest 0.700, mean 0.800; 2 of 3 (at least 14 %) end at 0.8 or more" in output
    assert msgspec.json.decode(json.read_bytes())["rows"][0]["p50"] == 0.8


def test_the_same_seeds_of_another_run_are_compared_in_pairs(
    runs: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "seeds.csv"
    other = "pendulum --set recipe=pendulum-ppo"
    arguments = [*RUN, "--out", str(out), "--seeds", "3"]
    assert seeds.main([*arguments, "--against", other]) == ExitCode.CONFIGURATION
    assert f"has no seeds of '{other}'" in capsys.readouterr().err
    out.write_text(
        f"{','.join(seeds.COLUMNS)}\n"
        f"{other},0,200,0.7,190,,\n{other},1,200,0.7,180,,\n{other},2,200,0.7,170,,\n{other},7,200,0.1,,,\n"
    )
    runs.append(["seed=1"])  # prevents this one from failing
    assert seeds.main([*arguments, "--against", other]) == ExitCode.OK
    message = capsys.readouterr().out
    assert f"Minus '{other}', 3 pairs of seeds, medians with 95 % intervals and p of a sign test: " in message
    assert "final +0.100, p = 1, " in message
    assert "episodes until 0.8 was reached -40, p = 0.5 (" in message
    assert "(in the 2 pairs in which both are known to have reached it)" in message


def test_seeds_of_a_run_whose_file_changed_are_not_mixed(
    runs: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = tmp_path / "mine.yaml", tmp_path / "seeds.csv"
    text = resources.files("onrig.configs").joinpath("pendulum.yaml").read_text()
    config.write_text(text)
    arguments = [str(config), "--set", "episodes=200", "--out", str(out), "--seeds", "1"]
    assert seeds.main(arguments) == ExitCode.OK
    config.write_text(f"# the same\n{text}")
    assert seeds.main([*arguments[:-1], "2", "--dry-run"]) == ExitCode.OK
    config.write_text(f"{text}\nevaluate_every: 10\n")
    capsys.readouterr()
    assert seeds.main(arguments) == ExitCode.CONFIGURATION
    assert f"has seeds of '{config} --set episodes=200' from before its settings changed" in capsys.readouterr().err


def test_a_seed_with_changing_settings_is_not_recorded(
    runs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, cells = tmp_path / "seeds.csv", iter("ab")
    monkeypatch.setattr(seeds, "cell_id", lambda config: next(cells))
    assert seeds.main([*RUN, "--out", str(out), "--seeds", "1"]) == ExitCode.CONFIGURATION
    assert "the settings changed while seed 0 ran" in capsys.readouterr().err
    assert not out.exists()


def _seed_of(command: list[str]) -> str:
    return next(word.removeprefix("seed=") for word in command if word.startswith("seed="))


@pytest.mark.parametrize(
    ("scores", "final", "reached"),
    [
        ([0.5] * 19, 0.5, None),  # fewer than the average needs
        ([1.0] * 20, 1.0, 100),
        ([1.0] * 20 + [0.0] * 20, 0.0, 100),
        ([0.0] * 4 + [1.0] * 16, 0.8, 100),
        ([0.0] * 5 + [1.0] * 15, 0.75, None),
    ],
)
def test_final_and_reached_are_means_of_twenty_evaluations(
    scores: list[float], final: float, reached: int | None
) -> None:
    found, at = seeds.performance([(5 * (k + 1), score) for k, score in enumerate(scores)])
    assert found == pytest.approx(final)
    assert at == reached


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*RUN, "--seeds", "0"], "--seeds: expected 1 to 1000, got 0"),
        ([*RUN, "--set", "evaluate_every=0"], "evaluate_every is 0"),
        ([*RUN, "--set", "episodes=4"], "evaluate_every is 5, episodes 4"),
        (["pendulun"], "did you mean 'pendulum'?"),
        ([*RUN, "--against", "it's"], "--against: No closing quotation"),
        ([*RUN, "--json", "nowhere/x.json"], "--json: no such folder 'nowhere'"),
    ],
)
def test_incomparable_runs_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert seeds.main(arguments) == ExitCode.CONFIGURATION
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "expected a file with the columns run, seed"),
        (f"{','.join(seeds.COLUMNS)}\nx,0,10,high,,,\n", "line 2 is damaged: delete it"),
        (f"{','.join(seeds.COLUMNS)}\nx,0\n", "line 2 is damaged: delete it"),
    ],
)
def test_other_files_are_not_changed(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "seeds.csv"
    out.write_text(text)
    assert seeds.main([*RUN, "--out", str(out)]) == ExitCode.CONFIGURATION
    assert message in capsys.readouterr().err
    assert out.read_text() == text


def test_rows_without_a_time_and_repeated_heads_are_read(tmp_path: Path) -> None:
    out, head = tmp_path / "seeds.csv", ",".join(seeds.COLUMNS)
    out.write_text(f"{head}\n{head}\n\"pendulum --set 'a={{b: 1, c: 2}}'\",3,500,0.977,,,\n")
    assert seeds.rows_of(["pendulum", "--set", "a={b: 1, c: 2}"], out) == [
        seeds.Seed("pendulum --set 'a={b: 1, c: 2}'", 3, 500, 0.977, None, None, "")
    ]
