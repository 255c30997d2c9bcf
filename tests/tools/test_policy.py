"""`onrig policy check` and `onrig policy eval`."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from onrig.hw.native import library
from onrig.runtime.policy.contract import DETERMINISTIC
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.run_state.episodes import EpisodeRow
from onrig.sim.evaluation import evaluate
from onrig.tools.cli import main
from onrig.tools.load import load
from onrig.tools.policy import column_statistics, evaluation_text
from tests.runtime.policy.models import recurrent, serialized, stochastic
from tests.tools import policies

NOISE = ("device.twin.sensor_noise=0.02", "device.twin.actuator_noise=0.02")


@pytest.fixture
def sound_policy(tmp_path: Path) -> Path:
    path = tmp_path / "sound.onnx"
    path.write_bytes(policies.sound_policy())
    return path


def error_output(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def rows_of(overrides: tuple[str, ...] = (), episodes: int = 1, seed: int = 0) -> list[EpisodeRow]:
    config = load("pendulum", overrides)
    return list(evaluate(config, PolicySession(policies.sound_policy()), 7, episodes, seed))


def test_a_valid_policy_is_accepted_with_its_latency(sound_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(sound_policy), "pendulum"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{sound_policy}: accepted: policy 7 of run 'earlier' after 100 training steps; p50 ")
    assert "us, p99 " in out
    assert "us (200 us allowed); 2752 parameters" in out


@pytest.mark.parametrize(
    ("kind", "settings"), [("squashed_gaussian", ["--set=exploration.process=own"]), ("recurrent (3 units)", [])]
)
def test_a_policys_ports_are_known_to_check_and_eval(
    kind: str, settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.onnx"
    behaviour, model = (kind, stochastic) if settings else (DETERMINISTIC, recurrent)
    contract = msgspec.structs.replace(policies.contract(), behaviour=behaviour, format=2)
    path.write_bytes(serialized(model(contract=contract)))
    short_arguments = [*settings, "--set=task.episode_s=0.2"]
    assert main(["policy", "check", str(path), "pendulum", *short_arguments]) == 0
    assert f"accepted: {kind} policy 7 of" in capsys.readouterr().out
    assert main(["policy", "eval", str(path), "pendulum", *short_arguments, "--episodes=1", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["episodes"][0]["exploration"] == 0.0


def test_the_budget_is_a_tenth_of_a_short_period(sound_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast_arguments = [f"--set={o}" for o in ("device.pace={scaled: 20}",)]
    assert main(["policy", "check", str(sound_policy), "pendulum", *fast_arguments]) == 0
    assert "us (100 us allowed);" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["check", "eval"])
@pytest.mark.parametrize("name", policies.BAD_POLICIES)
def test_a_bad_policy_is_refused_with_stage_and_reason(
    name: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = policies.write_bad_policy(name, tmp_path)
    _, stage, reason = policies.BAD_POLICIES[name]
    assert main(["policy", verb, str(path), "pendulum"]) == 2
    line = error_output(capsys)
    assert line.startswith(f"onrig policy: {path}: refused by the {stage} check: ")
    assert reason in line


def test_a_policy_for_another_rate_is_refused(sound_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(sound_policy), "pendulum", "--set", "rate_hz=100"]) == 2
    assert error_output(capsys).endswith("refused by the contract check: rate is 50.0 Hz; the rig runs at 100.0 Hz")


@pytest.mark.parametrize("verb", ["check", "eval"])
def test_a_missing_file_is_named(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.onnx"
    assert main(["policy", verb, str(path), "pendulum"]) == 2
    assert error_output(capsys) == f"onrig policy: {path}: cannot be read: No such file or directory"


def test_a_folder_is_not_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(tmp_path), "pendulum"]) == 2
    assert error_output(capsys) == f"onrig policy: {tmp_path}: cannot be read: a directory, not a regular file"


def test_an_invalid_configuration_is_reported_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(tmp_path / "none.onnx"), "pendulum", "--set", "rate_hz=0"]) == 2
    assert "at rate_hz" in error_output(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "0"], "--episodes: expected at least 1, got 0"),
        (["--seed", "-1"], "--seed: expected 0 to 2^63 - 1, got -1"),
        (
            ["--set", "device={port: {path: /dev/ttyACM0}}"],
            "pendulum uses a port; policy eval needs a twin ('device: {twin: ...}')",
        ),
    ],
)
def test_eval_refuses_unsupported_requests(
    arguments: list[str], message: str, sound_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "eval", str(sound_policy), "pendulum", *arguments]) == 2
    assert error_output(capsys) == f"onrig policy: {message}"


def test_eval_prints_equal_episodes_once_and_their_result(
    sound_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "eval", str(sound_policy), "pendulum", "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # On a machine busy with other tasks the policy may get a warning about its latency.
    accepted_line, header_line, episodes, _, summary, total, *_ = (
        line for line in lines if not line.startswith("  warning: ")
    )
    assert "accepted" in accepted_line
    assert header_line.split() == ["episode", "steps", "return", "mean", "reward", "normalized", "interventions"]
    row, _ = rows_of(episodes=2)
    expected = [f"{row.reward_sum:.6g}", f"{row.mean_reward:.4g}", f"{row.normalized:.4f}"]
    assert episodes.split() == ["1", "to", "2,", "identical", "200", *expected, str(row.interventions)]
    assert summary.split() == ["n", "=", "2", "mean", "spread", "lowest", "highest"]
    assert total.split() == ["return", expected[0], "0", expected[0], expected[0]]


def test_eval_gives_all_digits_as_json(sound_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "eval", str(sound_policy), "pendulum", "--episodes", "2", "--json"]) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    first_row, second_row = rows_of(episodes=2)
    assert [e["return"] for e in result["episodes"]] == [first_row.reward_sum, second_row.reward_sum]
    assert result["episodes"][1]["episode"] == 2
    assert result["summary"]["normalized"]["mean"] == pytest.approx(first_row.normalized)
    assert result["summary"]["reward_sum"]["spread"] == 0.0


def test_differing_episodes_have_a_line_each() -> None:
    row = EpisodeRow(1, "eval", 200, -10.0, -0.05, 0.5, 0.0, 0, 0, 7, 0)
    text = evaluation_text([row, row._replace(episode=2, reward_sum=-14.0)])
    assert [line.split()[:3] for line in text.splitlines()[1:3]] == [["1", "200", "-10"], ["2", "200", "-14"]]
    assert column_statistics([row, row._replace(reward_sum=-14.0)], "reward_sum") == pytest.approx(
        (-12.0, 8**0.5, -14.0, -10.0)
    )


def test_episodes_differ_by_their_noise_and_are_reproducible_by_their_seed() -> None:
    first_run, repeated_run, other_seed_run = rows_of(NOISE, 2, 3), rows_of(NOISE, 2, 3), rows_of(NOISE, 2, 4)
    assert first_run == repeated_run
    assert len({row.reward_sum for row in first_run + other_seed_run}) == 4


@pytest.mark.parametrize("policy_id", [0, -1, 1 << 40])
def test_a_policy_may_have_any_number(policy_id: int) -> None:
    (row,) = evaluate(load("pendulum"), PolicySession(policies.sound_policy()), policy_id, 1, 0)
    assert row == rows_of()[0]._replace(policy_id=policy_id)


def test_a_limit_enforced_by_the_shield_counts_as_an_intervention() -> None:
    unlimited, limited = rows_of()[0], rows_of(("limits.rate_per_s.voltage=1",))[0]
    assert (unlimited.interventions, limited.interventions > 100) == (0, True)
    assert unlimited.reward_sum != limited.reward_sum


def test_an_episode_in_which_the_sensor_fails_ends_there_and_the_next_one_runs() -> None:
    """A motor without resistance is too stiff for the step: the plant diverges, which is a sensor fault."""
    first_row, second_row = rows_of(("device.twin.plant.resistance=1.0e-4",), 2)
    assert (first_row.episode, second_row.episode) == (1, 2)
    assert first_row[2:] == second_row[2:]
    assert 0 < first_row.steps < 200


def test_eval_reproduces_the_evaluation_episodes_of_a_lockstep_run_bit_for_bit(tmp_path: Path) -> None:
    overrides = (*NOISE, "seed=5", "episodes=2", "task.episode_s=1", "learner.updates_per_episode=5")
    arguments = [word for o in overrides for word in ("--set", o)]
    process = subprocess.run(
        [sys.executable, "-m", "onrig.tools.cli", "run", "pendulum", "--run-dir", str(tmp_path / "run"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    with (tmp_path / "run" / "episodes.csv").open() as file:
        expected = [row for row in csv.DictReader(file) if row["kind"] == "eval"]
    assert [row["episode"] for row in expected] == ["1", "2"]
    config, is_native = load("pendulum", overrides), library() is not None
    for row in expected:
        number = int(row["policy_id"])
        model = (tmp_path / "run" / "policies" / f"{number}.onnx").read_bytes()
        *_, computed_row = evaluate(
            config, PolicySession(model, native=is_native), number, int(row["episode"]), config.seed
        )
        for name, value in zip(("return", "mean_reward", "normalized"), computed_row[3:6], strict=True):
            assert repr(value) == row[name], name
        assert [computed_row.steps, computed_row.kind, computed_row.interventions, computed_row.policy_id] == [
            50,
            "eval",
            0,
            number,
        ]


def test_without_references_eval_prints_no_normalised_reward(
    sound_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = ["--set", "task.normalization=null"]
    assert main(["policy", "eval", str(sound_policy), "pendulum", "--episodes", "1", *raw]) == 0
    out = capsys.readouterr().out
    assert "normalized" not in out.replace("task.normalization", "")
    assert "raw units, no task.normalization" in out
    assert main(["policy", "eval", str(sound_policy), "pendulum", "--episodes", "1", "--json", *raw]) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    assert result["episodes"][0]["normalized"] is None
    assert set(result["summary"]) == {"reward_sum", "mean_reward"}
