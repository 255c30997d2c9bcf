"""The laboratory's commands: each target of `make` exists and explains itself."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.lab.command import execute, program

ROOT = Path(__file__).parents[2]
TARGETS = re.findall(r"^LABORATORY := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_of_make_is_a_command_on_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"tests.lab.{name}").main(["--help"])
    assert left.value.code == 0
    assert f"usage: {program(name)} " in capsys.readouterr().out
    assert f"| `{name} " in (ROOT / "tests/lab/README.md").read_text(encoding="utf-8")


def test_a_command_ends_with_its_exit_code_and_an_interrupt_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["attack", "--quick"])
    for main, code in ((lambda arguments: 70 if arguments == ["--quick"] else 0, 70), (interrupted, 130)):
        with pytest.raises(SystemExit) as left:
            execute(main)
        assert left.value.code == code
