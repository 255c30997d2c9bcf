"""The evidence named in the safety case exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onrig.runtime.run_state.states import State
from onrig.tools.cli import VERBS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "runtime" / "SAFETY.md").read_text(encoding="utf-8")
NAMED_TESTS = sorted(set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", PAGE)))


def test_every_hazard_line_cites_evidence() -> None:
    table = PAGE.split("## Hazards", 1)[1].split("## Layers", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 8
    for row in rows:
        assert "`" in row.split("|")[4], row


@pytest.mark.parametrize("name", NAMED_TESTS)
def test_cited_tests_exist(name: str) -> None:
    assert list((ROOT / "tests").glob(f"**/{name.removeprefix('tests/')}")), name


def test_cited_single_tests_exist() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name in set(re.findall(r"`(test_\w+)`", PAGE)):
        assert f"def {name}(" in sources, name


def test_every_state_is_described() -> None:
    states = PAGE.split("**States**", 1)[1].split(".**", 1)[0][:400]
    for state in State:
        assert state.name.lower() in states


def test_every_command_is_a_verb() -> None:
    assert set(re.findall(r"`onrig (\w+)", PAGE)) <= set(VERBS)
