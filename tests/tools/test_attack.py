from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.attack import main
from onrig.tools.faultlab.attack import NAMES


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "-1"], "--seed"),
        (["--only", "garbage,nonsense"], "'nonsense'"),
        (["--json", "nowhere/at/all.json"], "nowhere/at/all.json"),
    ],
)
def test_bad_arguments_are_told_in_a_line_and_nothing_is_started(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_its_parts_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--out", str(tmp_path / "out")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(NAMES)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_attack_or_of_somebody_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("x")
    assert main(["--out", str(tmp_path)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "mine").unlink()
    (tmp_path / "attack.json").write_text('{"seed": 3, "quick": true}')
    capsys.readouterr()
    assert main(["--out", str(tmp_path)]) == 2
    assert "--seed 3 --quick" in capsys.readouterr().err


def test_what_is_filed_is_not_done_again_and_decides_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attack.json").write_text('{"seed": 0, "quick": true}')
    (tmp_path / "models.jsonl").write_text('{"number": 0, "cases": 80, "counts": {"refused": 80}}\n')
    again = ["--quick", "--only", "models", "--out", str(tmp_path), "--markdown", str(tmp_path / "table.md")]
    assert main([*again, "--json", str(tmp_path / "attack-figures.json")]) == 0
    assert "everything holds" in capsys.readouterr().out
    assert "| models |" in (tmp_path / "table.md").read_text()
    assert '"holds": true' in (tmp_path / "attack-figures.json").read_text()
    (tmp_path / "models.jsonl").write_text('{"number": 0, "cases": 80, "findings": ["models 0: a row is missing"]}\n')
    assert main(again) == 70
    assert "models 0: a row is missing" in capsys.readouterr().out
