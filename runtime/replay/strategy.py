"""The notation of 000 for how experiences are kept and drawn: ``RETENTION[SAMPLING]``, as in ``Expl(1.0)[PER]``."""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

PLAIN_RETENTIONS: Final = ("FIFO", "FULL", "Resv")
RANKED_RETENTIONS: Final = ("TDE", "Expl")
SAMPLINGS: Final = ("Uniform", "Uniform+FIS", "PER", "PER+IS", "PER+FIS", "PropPER", "PropPER+IS")

MAX_EXPONENT: Final = 100.0
"""Of a rank law: beyond, the second rank is never drawn, nor could the law's integral be computed."""
_KNOWN: Final = (
    f"known retentions: {', '.join(PLAIN_RETENTIONS)}, {', '.join(f'{r}(ALPHA)' for r in RANKED_RETENTIONS)}; "
    f"known samplings: {', '.join(SAMPLINGS)}"
)
_NOTATION: Final = re.compile(r"\s*([A-Za-z]+)\s*(?:\(\s*([^()\[\]]*?)\s*\))?\s*\[\s*([^\[\]]*?)\s*\]\s*")


class Strategy(msgspec.Struct, frozen=True):
    """Which experiences are kept, and which of them make a batch."""

    retention: str
    sampling: str
    alpha: float | None = None
    """Exponent of the rank law for TDE and Expl; None for the others."""

    def __str__(self) -> str:
        alpha = "" if self.alpha is None else f"({self.alpha!r})"
        return f"{self.retention}{alpha}[{self.sampling}]"


def parse_strategy(text: str) -> Strategy:
    """Read ``RETENTION[SAMPLING]``; raises ValueError that says what is wrong and lists the known names.

    ``TDE`` and ``Expl`` take the exponent of their rank law in round brackets, a number of 0 to ``MAX_EXPONENT``.
    """
    match = _NOTATION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not of the form RETENTION[SAMPLING], such as FIFO[Uniform]; {_KNOWN}")
    retention, exponent, sampling = match.groups()
    if retention not in PLAIN_RETENTIONS and retention not in RANKED_RETENTIONS:
        raise ValueError(f"unknown retention '{retention}'; {_KNOWN}")
    if sampling not in SAMPLINGS:
        raise ValueError(f"unknown sampling '{sampling}'; {_KNOWN}")
    if retention in PLAIN_RETENTIONS:
        if exponent is not None:
            raise ValueError(f"{retention} takes no exponent, got '({exponent})'")
        return Strategy(retention, sampling)
    if exponent is None:
        raise ValueError(f"{retention} needs the exponent of its rank law, such as {retention}(1.0)")
    try:
        alpha = float(exponent)
    except ValueError:
        alpha = math.nan
    if not 0 <= alpha <= MAX_EXPONENT:
        raise ValueError(f"the exponent of {retention} must be a number of 0 to {MAX_EXPONENT:g}, got '{exponent}'")
    return Strategy(retention, sampling, alpha)
