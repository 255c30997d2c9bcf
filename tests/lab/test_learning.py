from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.bench.report import Check
from tests.lab import learning
from tests.lab.learners.cases import ONRIG, PEER
from tests.lab.learners.learners import CASES, Case, random_returns

PENDULUM = CASES[0]


def _curve(case: Case, level: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.concatenate((np.full(case.run.points - 2, -1400.0), np.full(2, level)))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Record the runs; Onrig reaches -150 plus its seed, the peer -140."""
    done: list[tuple[str, str, int]] = []
    levels = {ONRIG: -150.0, PEER: -140.0}

    def learner(subject: str) -> learning.Learner:
        def learn(case: Case, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            done.append((case.name, subject, seed))
            if len(done) == 5:
                raise KeyboardInterrupt
            return _curve(case, levels[subject] - (seed if subject == ONRIG else 0))

        return learn

    monkeypatch.setattr(learning, "LEARNERS", {subject: learner(subject) for subject in levels})
    monkeypatch.setattr(learning, "installed_version", lambda package: "1.0")
    return done


def test_an_interrupted_comparison_is_resumed_and_checked(
    runs: list[tuple[str, str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path / "new" / "learning.csv"), "--seeds", "6", "--case", "Pendulum-v1-td3"]
    assert learning.main([*arguments, "--dry-run"]) == ExitCode.OK
    assert "12 trials to run" in capsys.readouterr().out
    assert not runs
    assert learning.main(arguments) == ExitCode.INTERRUPTED
    file = tmp_path / "report.json"
    assert learning.main([*arguments, "--json", str(file)]) == ExitCode.OK
    assert len(runs) == 13  # the interrupted trial counts twice
    assert len(set(runs)) == 12
    checks = msgspec.json.decode(file.read_bytes())["checks"]
    (check,) = msgspec.convert(checks, list[Check])
    by_chance = float(random_returns(PENDULUM).mean())
    assert by_chance < -1000.0
    assert check.bound == pytest.approx(-0.1 * (-140.0 - by_chance), abs=1e-3)
    assert -15.0 <= check.value <= -14.0  # lower bound of -10, -11, ... -15
    assert check.holds
    assert "-12.5 [-14.6, -10.4], p = 0.031" in capsys.readouterr().out


def test_incomplete_trials_count_as_missing_and_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, result = tmp_path / "learning.csv", learning.TrialResult(_curve(PENDULUM, -100.0 / 3.0), 3.5)
    for seed in (4, 5):
        learning.write(path, PENDULUM, ONRIG, seed, result)
    read = learning.read(path)
    assert list(read) == [(PENDULUM.name, ONRIG, 4), (PENDULUM.name, ONRIG, 5)]
    assert (read[PENDULUM.name, ONRIG, 4].returns == result.returns).all()
    assert read[PENDULUM.name, ONRIG, 5].final == -100.0 / 3.0
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([rows[0], *rows[:-1]]))
    assert list(learning.read(path)) == [(PENDULUM.name, ONRIG, 4)]
    learning.write(path, PENDULUM, ONRIG, 5, result)
    assert len(learning.read(path)) == 2
    for text, message in (
        ("".join([*rows[:3], "x,1\n"]), "line 4 is damaged: delete it"),
        ("a,b\n", "the columns case"),
    ):
        path.write_text(text)
        assert learning.main(["--out", str(path), "--dry-run"]) == ExitCode.CONFIGURATION
        assert message in capsys.readouterr().err


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert learning.main(["--case", "Hopper"]) == ExitCode.CONFIGURATION
    assert "Pendulum-v1-sac" in capsys.readouterr().err


def test_trials_with_changed_settings_are_repeated(tmp_path: Path) -> None:
    path, result = tmp_path / "learning.csv", learning.TrialResult(_curve(PENDULUM, -100.0), 3.5)
    for seed in range(3):
        learning.write(path, PENDULUM, ONRIG, seed, result)
    lines = path.read_text().splitlines()
    n = PENDULUM.run.points
    by = learning.settings_digest(PENDULUM, ONRIG)
    other = [line.replace(by, "0123456789ab") for line in lines[1 : 1 + n]]
    unknown = [line.replace(by, "") for line in lines[1 + n : 1 + 2 * n]]
    path.write_text("\n".join([lines[0], *other, *unknown, *lines[1 + 2 * n :]]) + "\n")
    assert [seed for _, _, seed in learning.read(path)] == [1, 2]
