"""Content of the protocol's page: numbers of the rules with their sentences, bytes that must be refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from onrig import hw

PAGE: Final = (Path(hw.__file__).parent / "PROTOCOL.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The page's only block of a language."""
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"one block of {language} on the page"
    return str(found[0])


def refused_chunks() -> list[bytes]:
    """Bytes between two zeros that a receiver must refuse."""
    return [bytes.fromhex("".join(line.split()[1:])) for line in block("refused").splitlines()]


def rules() -> list[str]:
    """Numbers of the rules, in the page's order: P of the device, H of the host."""
    return re.findall(r"\[([PH]\d{3})\]", PAGE)


def sentences() -> dict[str, str]:
    """What each rule says, by its number: the sentence or the row of a table that ends with it."""
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:\* |\d\. |\|))", PAGE):
        rest = " ".join(paragraph.split())
        while (match := re.search(r"\[([PH]\d{3})\]", rest)) is not None:
            found[match[1]] = _plain(rest[: match.start()])
            rest = rest[match.end() :]
    return found


def _plain(text: str) -> str:
    """A sentence without the marks of its page."""
    if text.startswith("|"):
        return " | ".join(cell for raw in text.strip("| ").split("|") if (cell := raw.strip()))
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z*`(])", text.strip())[-1]
    return re.sub(r"\*\*|^\s*(?:\* |\d\. )", "", sentence).strip()
