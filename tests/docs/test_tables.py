"""Tables in the documentation list what the code has."""

from __future__ import annotations

import re

from onrig.runtime.run_state.episodes import COLUMNS
from onrig.runtime.run_state.faults import FAULTS, Rearm
from tests.docs.commands import ROOT

_WHO = {Rearm.RUN: "the run itself", Rearm.PERSON: "a person", Rearm.NOBODY: "nobody"}


def test_every_fault_is_listed_as_the_program_knows_it() -> None:
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
