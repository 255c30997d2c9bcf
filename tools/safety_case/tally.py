"""What a campaign of episodes came to, per policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from onrig.runtime.record import Rule


@dataclass
class Tally:
    """Counts of one policy; margins are shares of the envelope, negative beyond it."""

    episodes: int = 0
    ticks: int = 0
    rules: Counter[Rule] = field(default_factory=Counter)
    """Ticks in which each rule acted."""
    breaches: int = 0
    """Episodes in which the velocity left its envelope."""
    worst_margin: float = 1.0

    def add(self, margin: float) -> None:
        """Close an episode whose worst margin this was."""
        self.episodes += 1
        self.breaches += margin < 0
        self.worst_margin = min(self.worst_margin, margin)


Campaign = dict[str, Tally]


def table(campaign: Campaign) -> str:
    """Per policy and in all: episodes, ticks, breaches, worst margin, and how often each rule acted."""
    shown = [r for r in Rule if r is not Rule.NONE and any(t.rules[r] for t in campaign.values())]
    heads = ["policy", "episodes", "ticks", "breaches", "worst margin", *[r.name.lower() for r in shown]]
    total = Tally()
    for t in campaign.values():
        total.episodes += t.episodes
        total.ticks += t.ticks
        total.breaches += t.breaches
        total.worst_margin = min(total.worst_margin, t.worst_margin)
        total.rules.update(t.rules)
    rows = [heads]
    for name, t in [*campaign.items(), ("all", total)]:
        shares = [f"{t.rules[r] / max(t.ticks, 1):.2%}" for r in shown]
        rows.append([name, str(t.episodes), str(t.ticks), str(t.breaches), f"{t.worst_margin:.2%}", *shares])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *[c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]])
        for row in rows
    )
