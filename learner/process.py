"""Main loop of a learner attached to one rig: mirror its memory, train, offer policies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import numpy as np

from onrig.learner.agent import REPLAYED_AT_ONCE, Agent, Replayed
from onrig.learner.attachment import Attachment, Connection, LeaseLost, MemoryChanged, Offering, Unfit
from onrig.learner.backlog import Backlog
from onrig.learner.settings import learner_settings
from onrig.learner.states import States
from onrig.runtime.link.client import LinkClient
from onrig.runtime.link.messages import Attached, Confirm, Done, Feedback, Leave, Rows
from onrig.runtime.replay.checkpoint.upkeep import is_due
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.report import report, show_life

NAME: Final = "learner"
"""Source name in this process's reports."""
_SAVE_S: Final = 2.0
_WAIT_MS: Final = 200
_TURN_S: Final = 1.0
"""Interval at which a waiting learner asks for its turn."""
_SIGN_S: Final = 1.0
"""Heartbeat interval to the supervisor, and in real time to the rig."""


def _warn(line: str) -> None:
    report(NAME, "warning", line)


class LearnerProcess:
    """State machine of a learner attached to one rig."""

    def __init__(self, config: RunConfig, connection: Connection, state: Path, stop: list[bool]) -> None:
        self._role = connection.role
        self._settings = learner_settings(config.learner)
        self._shown_s = 0.0

        def stopping() -> bool:
            self._send_heartbeat()  # called repeatedly while the rig is silent
            return stop[0]

        self._client = LinkClient(connection.endpoint, stopping, connection.keys, connection.patience_s, _warn)
        self._link = Attachment(
            config, self._client, connection.role, _warn, lambda ruling: self._offering.record(ruling)
        )
        self._offering = Offering(self._link, NAME)
        self._states = States(state, _warn)
        self._saved_s = time.monotonic()
        self._settled = -1
        self._busy_s = 0.0
        self._updates_done = 0
        self._backlog = Backlog(self._settings.updates_per_transition or 0.0, self._settings.backlog, _warn)
        self._agent: Agent | None = None
        self._follows = False
        """Whether the agent is notified of every write; in lockstep it catches up once per episode, since the
        content of a pull depends on the clock."""
        self._episode_at_join = 0
        """Last complete episode when the learner joined."""
        self._deferred_error: LeaseLost | MemoryChanged | None = None
        """Error raised by a heartbeat during a batch; re-raised when the batch is done."""
        self.result_accepted = False
        """Whether the rig has accepted any result based on its memory."""
        self._feedback_batch = time.time_ns()

    def run(self) -> None:
        """Attach, then learn until the run ends; while another learner pushes, only mirror.

        Raises ForeignStates where the state folder is that of another run.
        """
        attached = self._link.attach()
        self._run_id, self._lockstep = attached.run_id, attached.lockstep
        if self._role == "push":
            self._states.claim(attached.run)
        while True:
            rows = self._catch_up(attached)
            if not attached.pushes:
                turn = self._await_turn(attached)
                if turn is None:
                    break
                attached = turn
                continue
            try:
                self._take_over(attached)
                while not rows.ending:  # then the rig no longer answers
                    self._learn(rows)
                    rows = self._pull(closed=self.agent.handled, wait_ms=self._wait_ms)
                break
            except LeaseLost as loss:
                self._follows = False
                self.save()
                report(NAME, "warning", f"no longer pushing: {loss}")
                attached = self._link.attach()
        self.save()
        if self._link.mirror is not None:
            storage = self._link.mirror.storage
            report(NAME, "event", f"mirrored {storage.inserted} writes, hash {storage.digest().hex()}")
        if self._agent is not None and self._settings.selected.batch_steps:
            at = self._agent.batches
            message = f"learned from {at.learned} batches; other actions were applied in {at.deviating} of their steps"
            message += f"; {at.dropped} experiences left out"
            report(NAME, "event", message, batches=at.learned, deviating=at.deviating, experiences_left_out=at.dropped)
        if dropped := round(self._backlog.dropped):
            _warn(f"it did not keep up: {dropped} updates beyond learner.backlog were dropped")
        self._offering.report_totals()

    def _catch_up(self, attached: Attached) -> Rows:
        rows = self._pull(closed=0, wait_ms=0)  # the returns of all recent episodes, too
        while rows.upto < rows.inserted:
            rows = self._pull(closed=attached.closed, wait_ms=0)
        return rows

    def _await_turn(self, attached: Attached) -> Attached | None:
        """Mirror until this learner may push (None: until the run ends)."""
        report(NAME, "ready", "watching" if self._role == "watch" else f"waiting for its turn: {attached.why}")
        closed = attached.closed
        asked_s = time.monotonic()
        while True:
            rows = self._pull(closed=closed, wait_ms=_WAIT_MS)
            closed = rows.closed
            if rows.ending:
                return None
            now_s = time.monotonic()
            if self._role == "push" and now_s - asked_s > _TURN_S:
                asked_s = now_s
                attached = self._link.attach()
                if attached.pushes:
                    return attached

    def _take_over(self, attached: Attached) -> None:
        """Start pushing with the current or saved networks, on a complete mirror."""
        agent, resumes = self._agent, True
        if agent is None:
            assert self._link.mirror is not None
            try:
                agent = self._agent = Agent(self._link.config, self._settings, self._link.mirror)
            except ValueError as error:
                raise Unfit(str(error)) from None
            resumes = self._states.restore(agent, attached.done if self._lockstep else None)
        seen = agent.seen
        agent.join(attached.memory, {one.memory: one.writes for one in attached.lineage})
        if agent.sampler_lost:
            _warn("what the sampler had noted of experiences belongs to another memory; it was reset")
            agent.sampler_lost = False
        # If the sampler starts over, experiences already counted are still stored: they need no second updates.
        self._backlog.counted = max(agent.seen, min(seen, attached.restored))
        if not self._lockstep:
            agent.catch_up()
            self._follows = True
        if attached.next_policy_id <= 1 and not resumes:
            self._offer()
            self._conclude(0)
        else:
            self._rejoin(attached, resumes)
        report(NAME, "ready", "restored" if resumes else "from scratch")

    @property
    def _wait_ms(self) -> int:
        """Time that the rig may wait for experiences before it answers; 0 while updates are pending."""
        return 0 if self._backlog.due and self.agent.ready else _WAIT_MS

    @property
    def agent(self) -> Agent:
        assert self._agent is not None
        return self._agent

    def _rejoin(self, attached: Attached, resumes: bool) -> None:
        agent = self.agent
        of_batches = bool(self._settings.selected.batch_steps) and not self._lockstep
        others = of_batches and attached.next_policy_id - 1 > agent.policies
        self._episode_at_join = attached.done if self._lockstep else attached.closed
        if not (self._lockstep and resumes):  # else the episode is repeated from its start
            agent.policies = attached.next_policy_id - 1
        agent.handled = min(agent.handled, attached.done if self._lockstep else attached.closed)
        if resumes:
            if attached.next_policy_id <= 1:  # the rig has none of its policies left
                agent.policies = 0
                self._offer()
            elif others:  # they gathered the stored experiences
                agent.batches.skip_stored()
                self._offer()
            elif of_batches and agent.updates > agent.offered:
                self._offer()
            self._report_done(agent.handled)
        else:
            agent.handled = max(0, attached.done) if self._lockstep else attached.closed
            if self._settings.selected.batch_steps:
                report(NAME, "warning", "no saved state: the policy starts anew")
                agent.batches.skip_stored()
                self._offer()
                self._conclude(agent.handled)
                return
            # New networks must catch up on their predecessor's data before they act.
            owed = min((self._settings.updates_per_episode or 100) * attached.closed, 10 * self._settings.backlog)
            report(NAME, "warning", f"no saved state: {owed} updates on the rig's memory before the first policy")
            agent.catch_up()
            self._backlog.counted = agent.seen
            if agent.ready:
                self._update(owed)
                self._offer()
            self._conclude(agent.handled)

    def _learn(self, rows: Rows) -> None:
        if rows.upto < rows.inserted:
            return  # still catching up
        agent, settings = self.agent, self._settings
        if self._offering.due:
            self._offer()
        if settings.selected.batch_steps:
            self._learn_from_batches(rows)
            return
        if settings.updates_per_transition is not None:
            self._learn_continuously(rows)
            return
        while agent.handled < rows.closed:
            episode = agent.handled + 1
            behind = rows.closed - episode
            if self._lockstep:
                self._confirm(episode)
                agent.catch_up()
            agent.begin_episode(episode, self._link.episode_return(episode))
            updates = settings.updates_per_episode or 0
            if not self._lockstep and behind * updates > settings.backlog:
                self._backlog.drop(updates)
                updates = 0
            if agent.ready and updates:
                self._update(updates)
                if self._lockstep or not behind or self._offering.retry_interval_passed:
                    self._offer()
            self._conclude(episode)

    def _learn_continuously(self, rows: Rows) -> None:
        agent, backlog = self.agent, self._backlog
        backlog.take(rows.inserted)
        for episode in range(agent.handled + 1, rows.closed + 1):
            agent.begin_episode(episode, self._link.episode_return(episode))
        if agent.ready and (updates := backlog.due):
            self._update(updates)
            backlog.done(updates)
            self.save(at_most_every_s=_SAVE_S)
        if rows.closed > agent.handled:
            self._offer()
            self._conclude(rows.closed)

    def _learn_from_batches(self, rows: Rows) -> None:
        """Learn from each batch once complete; in lockstep at the end of an episode, where policies change."""
        agent = self.agent
        for episode in range(agent.handled + 1, rows.closed + 1) if self._lockstep else ():
            self._confirm(episode)
            agent.catch_up()
            self._take_batches()
            self._conclude(episode)
        if not self._lockstep:
            self._take_batches()
            if rows.closed > agent.handled:
                self._conclude(rows.closed)

    def _take_batches(self) -> None:
        agent = self.agent
        before, start = agent.updates, time.perf_counter()
        agent.learn_from_batches(self._beat)
        if agent.updates > before:
            self._busy_s += time.perf_counter() - start
            self._updates_done += agent.updates - before
            if self._deferred_error is not None:
                parted, self._deferred_error = self._deferred_error, None
                raise parted
            self._offer()
            self.save(at_most_every_s=_SAVE_S)

    def _confirm(self, episode: int) -> None:
        assert self._link.mirror is not None
        self._link.ask(Confirm(episode, self._link.mirror.storage.digest()))

    def _update(self, updates: int) -> None:
        """Do updates and send their feedback; in real time in portions that bound the interval between heartbeats."""
        while updates > 0:
            portion = updates if self._lockstep else self._backlog.portion(updates)
            updates -= portion
            before_s = self._busy_s
            self._update_at_once(portion)
            self._backlog.record_duration(portion, self._busy_s - before_s)

    def _update_at_once(self, updates: int) -> None:
        waiting: list[Replayed] = []
        count = 0
        start = time.perf_counter()
        for piece in self.agent.learn(updates):
            due = (
                self._send_heartbeat() and not self._lockstep
            )  # there what a message holds must not depend on the clock
            waiting.append(piece)
            count += len(piece.slots)
            if due or count >= REPLAYED_AT_ONCE:
                self._busy_s += time.perf_counter() - start
                self._send_feedback(waiting)
                waiting, count = [], 0
                start = time.perf_counter()
        self._busy_s += time.perf_counter() - start
        self._updates_done += updates
        self._send_feedback(waiting)

    def _send_feedback(self, pieces: list[Replayed]) -> None:
        """Send feedback to the rig, at most 1 MB per message; it doubles as a heartbeat during long updates."""
        if not pieces:
            return
        self._feedback_batch += 1
        self._link.ask(
            Feedback(self._feedback_batch, tuple(self.agent.feedback)),
            np.concatenate([p.slots for p in pieces]).astype("<i8").tobytes(),
            np.concatenate([p.generations for p in pieces]).astype("<u4").tobytes(),
            np.concatenate([p.values for p in pieces], axis=1).astype("<f4").tobytes(),
        )
        self.result_accepted = True

    def _offer(self) -> None:
        self._offering.offer(self.agent, self._run_id, lockstep=self._lockstep)

    def _conclude(self, episode: int) -> None:
        """Finish an episode: save the state before the rig may depend on it, then acknowledge."""
        self.agent.handled = episode
        if self._lockstep and is_due(self._link.config, episode):
            self._write()
        self._report_done(episode)
        self.save(at_most_every_s=_SAVE_S)

    def _report_done(self, episode: int) -> None:
        rate = self._updates_done / self._busy_s if self._busy_s else 0.0
        self._link.ask(Done(episode, self.agent.updates, rate, not self._states.save_failed))
        self.result_accepted |= episode > self._episode_at_join

    def _pull(self, closed: int, wait_ms: int) -> Rows:
        rows, slots = self._link.pull(closed, wait_ms)
        self._settled = rows.settled
        self._send_heartbeat()
        if slots is not None and self._follows:
            self.agent.written(slots)
        return rows

    def _beat(self) -> None:
        """Send heartbeats during the work on a batch."""
        if self._send_heartbeat() and not self._lockstep and self._deferred_error is None:
            try:
                self._report_done(self.agent.handled)
            except (LeaseLost, MemoryChanged) as parted:
                self._deferred_error = parted

    def _send_heartbeat(self) -> bool:
        """Send a rate-limited heartbeat, without which the supervisor restarts the learner; returns whether sent."""
        now_s = time.monotonic()
        due = now_s - self._shown_s > _SIGN_S
        if due:
            self._shown_s = now_s
            show_life(NAME)
        return due

    def save(self, at_most_every_s: float = 0.0) -> None:
        """Save the state; in lockstep only where the rig writes a checkpoint."""
        if self._agent is None or self._lockstep:
            return
        if time.monotonic() - self._saved_s >= at_most_every_s:
            self._saved_s = time.monotonic()
            self._write()

    def _write(self) -> None:
        self._states.save(self.agent, self._settled if self._lockstep else None)

    def close(self) -> None:
        self._client.tell(Leave())
        self._client.close()
