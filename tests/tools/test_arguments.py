from __future__ import annotations

import pytest

from onrig.tools.cli import main


@pytest.mark.parametrize(
    "line",
    [
        *("run", "run a b", "run pendulum --nonsense", "web --listen", "watch --nonsense", "doctor --nonsense"),
        *("service", "soak", "soak pendulum --minutes many", "replay"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said_in_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(line.split())
    said = capsys.readouterr()
    assert (left.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"onrig {line.split()[0]}: ")
    assert said.err.endswith(f"see onrig {line.split()[0]} --help\n")
