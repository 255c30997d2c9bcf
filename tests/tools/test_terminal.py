"""Output of the verbs with arbitrary text."""

from __future__ import annotations

import io
import sys

import pytest

from onrig.runtime.run_state.report import Report
from onrig.tools import cli
from onrig.tools.cli import main
from onrig.tools.display import PlainDisplay, RichDisplay
from onrig.tools.load import load
from onrig.tools.terminal import PrintableStream, drawing_stream, printable_streams

MARKUP_AND_ESCAPES = "[/x] [bold]onrig[log][/] \x1b[2J\u202e"


def test_within_a_verb_only_printable_text_gets_through(capsys: pytest.CaptureFixture[str]) -> None:
    streams_before = sys.stdout, sys.stderr
    with printable_streams():
        print(MARKUP_AND_ESCAPES)
        print("a\x07", file=sys.stderr)
        drawing_stream(sys.stdout).write("\rdrawn")
    assert (sys.stdout, sys.stderr) == streams_before
    assert capsys.readouterr() == ("[/x] [bold]onrig[log][/] \\x1b[2J\\u202e\n\rdrawn", "a\\x07\n")


def test_an_ascii_terminal_causes_no_error() -> None:
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    PrintableStream(ascii_stream).write("20 °C")
    ascii_stream.seek(0)
    assert ascii_stream.read() == "20 \\xb0C"


def test_the_command_line_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["\x1b[31mcheck"]) == 2
    assert cli.main(["check", "\x1b[31m\u202e"]) == 2
    assert cli.main(["policy", "check", "/\x1b[31m", "pendulum"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\u202e" not in err
    assert err.count("\\x1b[31m") >= 3


@pytest.mark.parametrize("kind", ["ready", "warning", "error", "fault"])
def test_no_display_interprets_markup_in_external_text(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    config = load("pendulum")
    for display in (RichDisplay(config), PlainDisplay(config)):
        with printable_streams():
            display.show(Report("replay [/]", kind, f"pip install 'onrig[log]' {MARKUP_AND_ESCAPES}"))
            display.show(Report("replay", "progress", "", {"policy": "[/x]\x1b", "episode": 1}))
            display.close()
    output = "".join(capsys.readouterr()).replace("\n", "")
    assert output.count("pip install 'onrig[log]'") == 2
    assert output.count("[/x] [bold]onrig[log][/]") == 2
    assert "\x1b[2J" not in output
    assert "\u202e" not in output


def test_the_screen_of_a_watched_run_shows_events_as_text() -> None:
    rich = pytest.importorskip("rich.console")
    from onrig.tools.watching.screen import _event_lines, _panel
    from onrig.tools.watching.snapshot import EventLine

    console = rich.Console(file=io.StringIO(), width=120)
    console.print(_event_lines([EventLine("12:00:00", MARKUP_AND_ESCAPES, "bad")]))
    console.print(_panel("rig", [MARKUP_AND_ESCAPES]))
    output = console.file.getvalue()
    assert output.count("[/x] [bold]onrig[log][/] \\x1b[2J\\u202e") == 2


@pytest.mark.parametrize(
    "line",
    [
        *("run", "run a b", "run pendulum --nonsense", "web --listen", "watch --nonsense", "doctor --nonsense"),
        *("service", "safety", "safety pendulum --steps many", "replay"),
    ],
)
def test_problems_with_the_arguments_are_reported_in_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: str | int | None = main(line.split())
    except SystemExit as left:  # by the parser
        code = left.code
    captured = capsys.readouterr()
    assert (code, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert captured.err.startswith(f"onrig {line.split()[0]}: ")
    assert captured.err.endswith(f"see onrig {line.split()[0]} --help\n")
