"""Options that would spoil the end of a long command, or have no effect, are refused at its beginning."""

from __future__ import annotations

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "loop", "--plot", "x.foo"], "--plot: expected a file that ends in .png, .svg, .pdf, got 'x.foo'"),
        (["identify", "pendulum", "--seed", "-1"], "--seed: expected 0 or more"),
        (["identify", "pendulum", "--policies"], "only a study compares policies: omit --policies"),
        (["identify", "pendulum", "--study", "2", "--effort", "0.5", "--out", "x"], "omit --effort, --out"),
        (["identify", "pendulum", "--study", "2", "--device", "x"], "a study drives no device and writes no file"),
        (["identify", "pendulum", "--device", "x", "--seed", "0"], "a device has its own noise"),
        (
            ["experiment", "figure-3", "--costs", "--chunk", "4"],
            "--costs measures one trial of each cell on this machine: omit",
        ),
        (["report", "runs", "--out", "x.html", "--tensorboard", "x"], "--tensorboard cannot be combined with --out"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(__file__.rpartition("/tests/")[0])
    try:
        code: str | int | None = main(arguments)
    except SystemExit as left:  # by the parser
        code = left.code
    assert code == ExitCode.CONFIGURATION
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
