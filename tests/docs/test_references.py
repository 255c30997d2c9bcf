"""Pages, paths and papers that the repository refers to exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import ROOT

TEXTS = (".py", ".md", ".toml", ".yaml")
FOLDERS = ("runtime", "hw", "sim", "learner", "configs", "tools", "tests", "docs")
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")))
    if path.name != "CHANGELOG.md"
)
NUMBERED_PAPER_REFERENCE = re.compile(r"(?<!\d )(?<![\w.,#:\-/=])00[0-4](?=(?:'s)?(?: |$|[,.;:)](?:\s|$|§)))")
"""Reference to a paper by its number in a list; thousands and colours do not match."""
PAGES_ELSEWHERE = re.compile(r"\b(?:METHODS|ARCHITECTURE|TRAPS|SEAMS|HOUSE|INTERFACE)\b")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
NAMED_PATH = re.compile(
    r"`((?:runtime|hw|sim|learner|configs|tools|tests|docs)/[\w/.-]+\.(?:py|md|yaml|json|xml|png))`"
)


def texts() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.suffix in TEXTS and path.name != "CHANGELOG.md")
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS and path != Path(__file__))


@pytest.mark.parametrize(
    "pattern", [NUMBERED_PAPER_REFERENCE, PAGES_ELSEWHERE], ids=["papers by number", "pages elsewhere"]
)
def test_no_text_refers_to_what_its_readers_cannot_see(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_on_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = {target: page.parent / target for target in LINK.findall(text)}
    named = NAMED_PATH.findall(text)
    missing = [target for target, path in linked.items() if not path.exists()]
    missing += [path for path in named if not ((ROOT / path).exists() or (ROOT / "tests" / path).exists())]
    assert missing == []


@pytest.mark.parametrize(
    ("line", "refers"),
    [
        ("(000 App. A.1)", True),
        ("as in 000.", True),
        ("000's baselines", True),
        ("the PER of 001 and 003", True),
        ("10 000 experiences", False),
        ("colour #000", False),
        ("0x000 and 1.000 and 2,000", False),
        ("001-loop_killed", False),
        ("learner-000.npz", False),
    ],
)
def test_paper_numbers_are_distinguished_from_other_numbers(line: str, refers: bool) -> None:
    assert bool(NUMBERED_PAPER_REFERENCE.search(line)) is refers
