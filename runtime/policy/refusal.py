"""The refusal of a policy: at which step of admission, and why."""

from __future__ import annotations

from typing import Final, Literal

Stage = Literal["size", "format", "operators", "contract", "shapes", "finite", "bounds", "latency", "ids"]
"""The steps of admission, in order; last, whether there is an id left."""

MAX_REASON: Final = 300


def one_line(text: str) -> str:
    """Make untrusted text fit for a log line: its first line, printable characters only, at most 300 of them."""
    first = text.strip().split("\n", 1)[0]
    line = "".join(c if c.isprintable() else "?" for c in first[: MAX_REASON + 1])
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


class ModelRefused(ValueError):
    """A model that must not be run; ``reason`` is one line with the figures, ``stage`` the step that refused it."""

    def __init__(self, stage: Stage, reason: str) -> None:
        self.stage: Stage = stage
        self.reason = one_line(reason)
        super().__init__(f"{stage}: {self.reason}")
