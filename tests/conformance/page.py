"""Content of the protocol's page for the tests."""

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
