from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.soak import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes"),
        (["--minutes", "nan"], "--minutes"),
        (["--rate", "-1"], "--rate"),
        (["--rate", "inf"], "--rate"),
        (["--every", "0"], "--every"),
        (["--minutes", "1", "--every", "61"], "--every"),
        (["--seed", "-1"], "--seed"),
        (["--json", "nowhere/at/all.json"], "--json: no such folder 'nowhere/at'"),
        (["--plot", "x.foo"], "--plot: expected a file that ends in .png, .svg, .pdf, got 'x.foo'"),
        (["--keep", "/dev/null"], "--keep: '/dev/null' cannot be written: File exists"),
    ],
)
def test_bad_figures_are_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pendulum", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_dry_run_only_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pendulum", "--minutes", "1", "--every", "10", "--plan"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_an_impossible_rate_is_located(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pendulum", "--rate", "100000"]) == 2
    assert "rate_hz" in capsys.readouterr().err


def test_a_configuration_without_a_twin_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    port = ["--set", "device.twin=null", "--set", "device.port={path: /dev/ttyUSB0}"]
    assert main(["pendulum", *port]) == 2
    assert "names a port" in capsys.readouterr().err


def test_a_non_empty_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert main(["pendulum", "--keep", str(tmp_path)]) == 2
    assert "--keep" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
