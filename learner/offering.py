"""What a learner does with its policies: it offers them, and heeds what the rig says of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from onrig.learner.agent import Agent
from onrig.learner.attachment import Attachment, Unfit
from onrig.runtime.link.messages import RATE, Offer, Ruling, Verdict
from onrig.runtime.run_state.report import report

_AGAIN_S: Final = 1.0
"""After an offer that came too soon for a rig that may be waiting for one."""


class Offering:
    """Offers over ``link`` for as long as the learner lives; ``name`` is as whom it reports."""

    def __init__(self, link: Attachment, name: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._link, self._name, self._clock_s = link, name, clock_s
        self._rulings: Counter[str] = Counter()
        self._too_soon = 0
        self._again_s: float | None = None

    def offer(self, agent: Agent, run_id: str, *, lockstep: bool) -> None:
        """Offer what the agent has learned so far; the rig says under which id it took it, if it did."""
        verdict = self._link.ask(Offer(agent.updates), agent.export(run_id))
        if not isinstance(verdict, Verdict):
            raise Unfit("the rig answered an offer with something else")
        self._again_s = None
        if verdict.accepted:
            agent.policies = verdict.policy_id
        elif verdict.stage == RATE:
            self._too_soon += 1
            if not lockstep:  # there no clock may matter, and the next barrier is time enough
                self._again_s = self._clock_s() + _AGAIN_S
        else:
            said = f"after {agent.updates} updates refused at {verdict.stage}: {verdict.reason}"
            report(self._name, "warning", f"policy {said}")

    @property
    def due(self) -> bool:
        """Whether the last offer came too soon, and it is time for a newer one."""
        return self._again_s is not None and self._clock_s() >= self._again_s

    def heed(self, ruling: Ruling) -> None:
        """Tell of a policy that failed its probation; those that passed are counted."""
        self._rulings[ruling.verdict] += 1
        if ruling.verdict == "rolled_back":
            report(self._name, "warning", f"policy {ruling.policy_id} was rolled back by the rig: {ruling.reason}")
        elif ruling.verdict == "failed":
            report(self._name, "warning", f"policy {ruling.policy_id} failed its probation: {ruling.reason}")

    def sum_up(self) -> None:
        """Report what became of all of them."""
        if self._rulings:
            said = ", ".join(f"{n} {verdict.replace('_', ' ')}" for verdict, n in sorted(self._rulings.items()))
            report(self._name, "event", f"policies on probation: {said}", **self._rulings)
        if self._too_soon:
            report(self._name, "event", f"policies offered sooner than the rig judges them: {self._too_soon}")
