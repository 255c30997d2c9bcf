"""A learner's session with a rig, which survives reconnects, mirrors the memory and may offer policies."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from onrig.hw.rig import Rig
from onrig.learner.agent import Agent
from onrig.learner.mirror import Mirror
from onrig.learner.screening import Screening
from onrig.learner.settings import learner_settings
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import parse_document
from onrig.runtime.link.client import PATIENCE_S, LinkClient, RequestRejected
from onrig.runtime.link.keys import LearnerKeys
from onrig.runtime.link.messages import (
    LEASE,
    LINK_VERSION,
    MAX_CLOSED_EPISODES,
    RATE,
    UNKNOWN,
    VERSION,
    Attach,
    Attached,
    Offer,
    Pull,
    ReplyMessage,
    RequestMessage,
    Rows,
    Ruling,
    Verdict,
)
from onrig.runtime.memory.layout import Layout, Slots
from onrig.runtime.memory.settings import Weighted
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.report import report
from onrig.runtime.task import Task
from onrig.runtime.tracking import tracking_rig

Role = Literal["push", "watch"]
_RETRY_DELAY_S: Final = 1.0
"""Delay before repeating an offer that was rejected as too soon, and minimum interval between offers from a learner
that has fallen behind."""

_MAX_WITHHELD: Final = 5
"""Number of consecutive withheld policies after which the screening ends, because the rig to which the learner adapts
may differ from the plants."""


class Connection(NamedTuple):
    """The rig's endpoint, with the keys, patience and role for connecting to it."""

    endpoint: str
    keys: LearnerKeys | None = None
    patience_s: float = PATIENCE_S
    """How long the rig may stay silent; ``math.inf`` for no limit."""
    role: Role = "push"


class LearnerMismatchError(Exception):
    """Raised if a learner cannot serve the rig; the message states the reason."""


class LinkVersionError(Exception):
    """Raised if the two ends use different versions of the link protocol."""


class MemoryChanged(Exception):
    """Raised if the rig's memory is no longer the one mirrored here."""


class LeaseLost(Exception):
    """Raised if the lease to push has passed to another learner."""


class Attachment:
    """A session with one rig, which reattaches and repeats unanswered requests after an outage.

    ``on_outage`` is called with a line of text after each outage, and ``on_ruling`` with the probation result of each
    admitted policy.
    """

    def __init__(
        self,
        config: RunConfig,
        client: LinkClient,
        role: Role,
        on_outage: Callable[[str], object] = lambda line: None,
        on_ruling: Callable[[Ruling], object] = lambda ruling: None,
    ) -> None:
        self.config = config
        """Configuration of this learner.  ``attach`` sets ``episodes`` and ``checkpoint_s`` to the values in the rig's
        run, because schedules depend on the former, and the times at which states are saved in lockstep depend on the
        latter."""
        self._client, self._role, self._on_outage, self._on_ruling = client, role, on_outage, on_ruling
        self._last_ruling = 0
        self._session: Final = os.urandom(16)
        self._memory = b""
        self._episode_returns: dict[int, float] = {}
        self.mirror: Mirror | None = None

    def attach(self) -> Attached:
        """Attach or reattach this learner, and request its turn to push.

        Raises LearnerMismatchError if the rig is not the configured one, LinkVersionError if the versions of the link
        differ, and MemoryChanged if a mirror exists and the rig now has a different memory.
        """
        try:
            attached, _ = self._client.ask(Attach(LINK_VERSION, self._session, self._role, self._memory))
        except RequestRejected as refusal:
            if refusal.code == VERSION:
                raise LinkVersionError(str(refusal)) from None
            raise
        if not isinstance(attached, Attached):
            raise LearnerMismatchError(f"the rig sent an unexpected reply to attach: {type(attached).__name__}")
        if attached.version != LINK_VERSION:
            raise LinkVersionError(f"link versions differ: {attached.version} on the rig, {LINK_VERSION} here")
        if self.mirror is None:
            self._create_mirror(attached)
        elif attached.memory != self._memory:
            raise MemoryChanged("the rig now has a different memory")
        return attached

    def _create_mirror(self, attached: Attached) -> None:
        document = parse_document(attached.config.decode(), "the rig's configuration")
        task = convert(document, ("task",), Task)
        rig, inputs = tracking_rig(task, convert(document, ("rig",), Rig)), task.inputs
        if rig != self.config.rig:
            raise LearnerMismatchError(f"the connected rig, '{rig.name}', differs from this configuration")
        if inputs != self.config.task.inputs:
            raise LearnerMismatchError("the connected rig's policies have different inputs (task.inputs)")
        rig_settings = {
            name: convert(document, (name,), kind) for name, kind in (("episodes", int), ("checkpoint_s", float))
        }
        self.config = msgspec.structs.replace(self.config, **rig_settings)
        intervened_rule = self.config.selection.intervened
        algorithm = learner_settings(self.config.learner).algorithm_config
        self.mirror = Mirror(
            attached.capacity,
            Layout(len(self.config.signals), len(rig.actuators), attached.behaviour),
            cyclic=attached.cyclic,
            intervened_weight=intervened_rule.weight if isinstance(intervened_rule, Weighted) else 1.0,
            successors=algorithm.successors,
            window=algorithm.window,
            needs_episodes=algorithm.needs_episodes,
        )
        self._memory = attached.memory

    def ask(self, request: RequestMessage, *payloads: bytes) -> ReplyMessage:
        """Send a request and return the reply, reconnecting as needed.

        Raises LeaseLost, MemoryChanged, and the client's errors.
        """
        return self._ask(request, *payloads)[0]

    def pull(self, last_closed_episode: int, wait_ms: int) -> tuple[Rows, Slots | None]:
        """Mirror some or all of the missing writes; return the rig's reply, and the slots written, in order, or None.

        As in ``Pull``, the rig may wait up to ``wait_ms`` for a write, or for a training episode after
        ``last_closed_episode`` to end.
        """
        mirror = self._attached_mirror()
        rows, payloads = self._ask(Pull(mirror.storage.inserted, last_closed_episode, wait_ms, heard=self._last_ruling))
        if not isinstance(rows, Rows) or len(payloads) != 1:
            raise LearnerMismatchError("the rig sent an unexpected reply to a pull")
        self._episode_returns |= {closed.episode: closed.episode_return for closed in rows.episodes}
        for old_episode in sorted(self._episode_returns)[:-MAX_CLOSED_EPISODES]:
            del self._episode_returns[old_episode]
        for ruling in rows.rulings:
            if ruling.number > self._last_ruling:
                self._last_ruling = ruling.number
                self._on_ruling(ruling)
        try:
            return rows, mirror.apply(payloads[0], rows.upto) if payloads[0] else None
        except ValueError as error:
            raise LearnerMismatchError(f"the rig sent rows that do not continue the mirror: {error}") from None

    def episode_return(self, episode: int) -> float:
        """Return the undiscounted return of a training episode; NaN if unknown or too old."""
        return self._episode_returns.get(episode, math.nan)

    def _attached_mirror(self) -> Mirror:
        if self.mirror is None:
            self.attach()
        assert self.mirror is not None
        return self.mirror

    def _ask(self, request: RequestMessage, *payloads: bytes) -> tuple[ReplyMessage, list[bytes]]:
        while True:
            try:
                return self._client.ask(request, *payloads)
            except RequestRejected as refusal:
                if refusal.code == LEASE:
                    raise LeaseLost(str(refusal)) from None
                if refusal.code != UNKNOWN:
                    raise
            attached = self.attach()
            n_inserted = self._attached_mirror().storage.inserted
            self._on_outage(f"reconnected; continuing from write {n_inserted} of {attached.inserted}")
            if self._role == "push" and not attached.pushes and not isinstance(request, Pull):
                raise LeaseLost(attached.why)


class PolicyOffers:
    """Offers policies over ``link`` unless they fail the screening, counts their probation results, and reports as
    ``name``."""

    def __init__(self, link: Attachment, name: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._link, self._name, self._clock_s = link, name, clock_s
        self._ruling_counts: Counter[str] = Counter()
        self._n_rate_limited = 0
        self._retry_time_s: float | None = None
        self._last_offer_s = -math.inf
        self.screening: Screening | None = None
        self._passed_updates = -1
        """Value of ``updates`` for the last policy that passed the screening."""
        self._n_withheld = 0

    def offer(self, agent: Agent, run_id: str, *, retries: bool) -> None:
        """Offer the agent's current policy, and record its id if the rig admits it.

        ``retries``: whether an offer that is rejected as too soon will be repeated after a delay; if not, only later
        policies are offered.
        """
        model = agent.export(run_id)
        if self._is_withheld(agent, model):
            return
        verdict = self._link.ask(Offer(agent.updates), model)
        if not isinstance(verdict, Verdict):
            raise LearnerMismatchError("the rig sent an unexpected reply to an offer")
        self._retry_time_s, self._last_offer_s = None, self._clock_s()
        if verdict.accepted or verdict.stage != RATE:
            agent.updates_when_offered = agent.updates
        if verdict.accepted:
            agent.newest_policy_id = verdict.policy_id
        elif verdict.stage == RATE:
            self._n_rate_limited += 1
            if retries:
                self._retry_time_s = self._last_offer_s + _RETRY_DELAY_S
        else:
            refusal = f"was refused by the {verdict.stage} check: {verdict.reason}"
            report(self._name, "warning", f"policy offered after {agent.updates} updates {refusal}")

    def _is_withheld(self, agent: Agent, model: bytes) -> bool:
        """Test a policy, if a screening is configured, and return whether it must be withheld."""
        is_first = not agent.newest_policy_id  # the rig does not begin without a policy
        if self.screening is None or is_first or agent.n_withheld >= _MAX_WITHHELD:
            return False
        if agent.updates == self._passed_updates:  # offered again after the rig's rate limit
            return False
        failure = self.screening.failure(model)
        if not failure:
            self._passed_updates = agent.updates
            agent.n_withheld = 0
            return False
        agent.n_withheld += 1
        agent.updates_when_offered = agent.updates
        self._n_withheld += 1
        self._retry_time_s, self._last_offer_s = None, self._clock_s()
        report(self._name, "policy_withheld", f"policy withheld after {agent.updates} updates: {failure}")
        if agent.n_withheld == _MAX_WITHHELD:
            reason = (
                f"{_MAX_WITHHELD} consecutive policies failed: the rig may differ from the plants of the pretraining"
            )
            report(self._name, "warning", f"policies are no longer tested before they are offered, because {reason}")
        return True

    @property
    def is_due(self) -> bool:
        """Whether an offer that was rejected as too soon is now due again."""
        return self._retry_time_s is not None and self._clock_s() >= self._retry_time_s

    @property
    def has_retry_interval_passed(self) -> bool:
        """Whether the last offer was made long enough ago to make another while further episodes wait to be learned
        from."""
        return self._clock_s() - self._last_offer_s >= _RETRY_DELAY_S

    def record(self, ruling: Ruling) -> None:
        """Count the result of a policy's probation, and report a failure."""
        self._ruling_counts[ruling.verdict] += 1
        if ruling.verdict == "rolled_back":
            report(self._name, "warning", f"policy {ruling.policy_id} was rolled back by the rig: {ruling.reason}")
        elif ruling.verdict == "failed":
            report(self._name, "warning", f"policy {ruling.policy_id} failed its probation: {ruling.reason}")

    def report_totals(self) -> None:
        if self._ruling_counts:
            message = ", ".join(
                f"{n} {verdict.replace('_', ' ')}" for verdict, n in sorted(self._ruling_counts.items())
            )
            report(self._name, "event", f"results of the policies' probation: {message}", **self._ruling_counts)
        if self._n_withheld:
            report(self._name, "event", f"policies that failed the screening: {self._n_withheld}")
        if self._n_rate_limited:
            report(self._name, "event", f"policies rejected by the rig's rate limit: {self._n_rate_limited}")
