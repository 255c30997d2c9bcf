"""Which ticks are worth a line in ``events.jsonl``: a rule of the shield begins to act, ticks were missed, a fault."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.record import Miss, Rule


class TickEvents:
    """Writes them; a rule that goes on acting is told of once."""

    def __init__(self, event: Callable[..., None]) -> None:
        self._event = event
        self._last_rule = int(Rule.NONE)

    def add(self, records: NDArray[np.void]) -> None:
        """Take the next records (dtype ``RecordLayout.dtype``, at least one)."""
        rules = records["rule"]
        before = np.concatenate([[self._last_rule], rules[:-1]])
        self._last_rule = int(rules[-1])
        begins = (rules != before) & (rules != Rule.NONE) & (rules != Rule.FALLBACK)
        for at in np.flatnonzero(begins | (records["missed"] > 0) | (records["fault"] > 0)).tolist():
            r = records[at]
            self._event(
                "tick",
                episode=int(r["episode"]),
                tick=int(r["tick"]),
                rule=Rule(r["rule"]).name.lower(),
                amount=round(float(r["amount"]), 6),
                missed=int(r["missed"]),
                cause=Miss(r["miss"]).name.lower(),
                fault=int(r["fault"]),
                policy=int(r["policy_id"]),
            )
