"""Tables in the documentation match the code."""

from __future__ import annotations

import re

from onrig.runtime.run_state.episodes import COLUMNS
from onrig.runtime.run_state.faults import FAULTS, Rearm
from tests.docs.commands import ROOT
from tests.docs.commands_page import page

_WHO = {Rearm.RUN: "the run itself", Rearm.PERSON: "a person", Rearm.NEVER: "nobody"}


def test_every_fault_is_listed_as_in_the_code() -> None:
    rows = [
        f"| `{fault}` | {entry.cause} | {entry.hint} | {_WHO[entry.rearm]} | {entry.code.value} |"
        for fault, entry in FAULTS.items()
    ]
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| `")] == rows


def test_every_column_of_episodes_csv_is_explained() -> None:
    text = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
    table = text[text.index("| column of `episodes.csv`") :]
    cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert tuple(re.findall(r"`(\w+)`", cells)) == COLUMNS


def test_the_commands_page_matches_the_help_of_the_verbs() -> None:
    command = "python -m tests.docs.commands_page > docs/commands.md"
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == page(), command


def test_the_readme_is_short_and_the_index_lists_every_page() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8000
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"({name}" not in index} == set()
