"""Commands on the documentation pages: found in fenced blocks, split into words, and sorted by kind."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    [
        *(ROOT / name for name in ("README.md", "runtime/SAFETY.md", "tests/lab/README.md")),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*/README.md"),
    ]
)
_BLOCK: Final = re.compile(r"^```(sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"\s+#\s.*$")


class Command(NamedTuple):
    """One command line, with continuation lines joined."""

    page: Path
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """Words of the command, as a shell splits them."""
        return shlex.split(self.text)

    @property
    def name(self) -> str:
        """Location of the command, for the name of a test."""
        return f"{self.page.relative_to(ROOT)}:{self.line} {self.text[:60]}"


def commands_of(page: Path) -> list[Command]:
    """Return a page's commands in order: every line of a ``sh`` block, lines after ``$ `` of a ``console`` block."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(2)) + 1
        waiting, begun = "", 0
        for at, line in enumerate(block[2].splitlines(), first):
            if line.strip().removeprefix("$ ").startswith("#"):
                continue
            if not waiting:
                begun = at
                if block[1] == "console":
                    if not line.startswith("$ "):
                        continue
                    line = line[2:]
            waiting += _COMMENT.sub("", line)
            if waiting.endswith("\\"):
                waiting = waiting[:-1]
                continue
            if waiting.strip():
                found.append(Command(page, begun, waiting.strip()))
            waiting = ""
    return found


def every_command() -> list[Command]:
    """All of the documentation, page by page."""
    return [command for page in PAGES for command in commands_of(page)]
