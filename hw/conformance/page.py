"""Rules and examples read from the protocol page: rule numbers, rule texts, and chunks that must be refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from onrig import hw

PAGE: Final = (Path(hw.__file__).parent / "PROTOCOL.md").read_text(encoding="utf-8")


def code_block(language: str) -> str:
    """Return the content of the page's only code block in a language."""
    matches = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(matches) == 1, f"expected one code block in {language} on the page"
    return str(matches[0])


def refused_chunks() -> list[bytes]:
    """Return the page's examples of chunks (bytes between two zeros) that a receiver must refuse."""
    return [bytes.fromhex("".join(line.split()[1:])) for line in code_block("refused").splitlines()]


def rules() -> list[str]:
    """Return the rule numbers in page order; those of the device begin with P, those of the host with H."""
    return re.findall(r"\[([PH]\d{3})\]", PAGE)


def rule_texts() -> dict[str, str]:
    """Return each rule's text, keyed by its number: the sentence or table row that ends with the number."""
    matches: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:\* |\d\. |\|))", PAGE):
        remainder = " ".join(paragraph.split())
        while (match := re.search(r"\[([PH]\d{3})\]", remainder)) is not None:
            matches[match[1]] = _plain(remainder[: match.start()])
            remainder = remainder[match.end() :]
    return matches


def _plain(text: str) -> str:
    """Return the sentence or table row at the end of a text, without its Markdown."""
    if text.startswith("|"):
        return " | ".join(cell for raw in text.strip("| ").split("|") if (cell := raw.strip()))
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z*`(])", text.strip())[-1]
    return re.sub(r"\*\*|^\s*(?:\* |\d\. )", "", sentence).strip()
