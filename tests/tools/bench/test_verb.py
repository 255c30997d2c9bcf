"""Messages of ``onrig bench`` before any benchmark."""

from __future__ import annotations

import pytest

from onrig.hw.native import LibraryState, library
from onrig.tools.bench import policy
from onrig.tools.bench.report import describe_machine
from onrig.tools.cli import main


@pytest.fixture(autouse=True)
def replace_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the benchmark by one that does nothing."""
    monkeypatch.setattr(policy, "benchmark", lambda *arguments, **options: 0)


def test_a_missing_library_is_reported_with_its_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "onrig.hw.native.library_state", lambda: LibraryState(None, "none", "switched off by ONRIG_NATIVE=off")
    )
    assert main(["bench", "policy"]) == 0
    assert capsys.readouterr().err == (
        "onrig bench: no C library (switched off by ONRIG_NATIVE=off): Python and numpy are used instead: updates "
        "take 5 to 9 times as long, prioritised sampling 3 times as long, a tick a third longer; `onrig doctor` shows "
        "how to install it\n"
    )


@pytest.mark.skipif(library() is None, reason="needs the C library")
def test_with_the_library_nothing_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "policy"]) == 0
    assert capsys.readouterr().err == ""


def test_a_report_names_its_executor() -> None:
    executor_text = describe_machine()["executor"]
    assert executor_text == "numpy" if library() is None else str(executor_text).startswith("the C library (")
