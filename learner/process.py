"""Main loop of a learner attached to one rig: mirror its memory, train, offer policies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from onrig.learner.agent import Agent
from onrig.learner.attachment import Attachment, Connection, LearnerMismatchError, LeaseLost, PolicyOffers
from onrig.learner.backlog import Backlog
from onrig.learner.pace import Lockstep, Pace, RealTime
from onrig.learner.settings import learner_settings
from onrig.learner.states import States
from onrig.learner.work import Heartbeat, Work
from onrig.runtime.link.client import LinkClient
from onrig.runtime.link.messages import Attached, Done, Leave, Rows
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.report import report
from onrig.runtime.task import episode_steps

NAME: Final = "learner"
"""Source name in this process's reports."""
_SAVE_S: Final = 2.0
_WAIT_MS: Final = 200
_TURN_S: Final = 1.0
"""Interval at which a waiting learner requests its turn."""


def _warn(line: str) -> None:
    report(NAME, "warning", line)


class LearnerProcess:
    """State machine of a learner attached to one rig."""

    def __init__(
        self, config: RunConfig, connection: Connection, state: Path, stop: list[bool], start: Path | None = None
    ) -> None:
        """``start``: file with the initial networks of a learner without a saved state."""
        self._role, self._start = connection.role, start
        self._settings = learner_settings(config.learner)
        self._heartbeat = Heartbeat(NAME)

        def stopping() -> bool:
            self._heartbeat.beat()  # called repeatedly while the rig is silent
            return stop[0]

        self._client = LinkClient(connection.endpoint, stopping, connection.keys, connection.patience_s, _warn)
        self._link = Attachment(
            config, self._client, connection.role, _warn, lambda ruling: self._offers.record(ruling)
        )
        self._offers = PolicyOffers(self._link, NAME)
        self._states = States(state, _warn)
        self._backlog = Backlog(self._settings.updates_per_transition or 0.0, self._settings.backlog, _warn)
        self._work = Work(self._link, self._backlog, self._heartbeat)
        self._pace: Pace = RealTime(self._states, self._backlog, self._offers, self._settings.backlog)
        self._agent: Agent | None = None
        self._notifies_agent = False
        """Whether the agent is notified of every write."""
        self._settled = -1
        """Episode of the rig's newest checkpoint (lockstep)."""
        self._episode_at_join = 0
        """Last complete episode when the learner joined."""
        self._has_concluded = False

    def run(self) -> None:
        """Attach, then learn until the run ends; while another learner pushes, only mirror.

        Raises ForeignStatesError if the state folder belongs to another run.
        """
        attached = self._link.attach()
        self._run_id = attached.run_id
        if attached.lockstep:
            self._pace = Lockstep(self._link, self._states)
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
                while not rows.ending:  # an ending rig no longer answers
                    self._learn(rows)
                    rows = self._pull(closed=self.agent.handled, wait_ms=self._wait_ms)
                break
            except LeaseLost as loss:
                self._notifies_agent = False
                self.save()
                report(NAME, "warning", f"no longer pushing: {loss}")
                attached = self._link.attach()
        self.save()
        self._report_totals()

    def _report_totals(self) -> None:
        if self._link.mirror is not None:
            storage = self._link.mirror.storage
            report(NAME, "event", f"mirrored {storage.inserted} writes, hash {storage.digest().hex()}")
        if self._agent is not None and self._settings.selected.batch_steps:
            taken = self._agent.batches
            message = (
                f"learned from {taken.learned} batches; other actions were applied in {taken.deviating} of their steps"
            )
            message += f"; {taken.dropped} experiences belong to no batch"
            report(
                NAME,
                "event",
                message,
                batches=taken.learned,
                deviating=taken.deviating,
                experiences_left_out=taken.dropped,
            )
        if dropped := round(self._backlog.dropped):
            _warn(f"the learner could not keep up: {dropped} updates beyond learner.backlog were dropped")
        self._offers.report_totals()

    def _catch_up(self, attached: Attached) -> Rows:
        rows = self._pull(closed=0, wait_ms=0)  # includes the returns of all recent episodes
        while rows.upto < rows.inserted:
            rows = self._pull(closed=attached.closed, wait_ms=0)
        return rows

    def _await_turn(self, attached: Attached) -> Attached | None:
        """Mirror until this learner may push; returns None if the run ends first."""
        report(NAME, "ready", "watching" if self._role == "watch" else f"waiting for its turn: {attached.why}")
        closed = attached.closed
        last_request_s = time.monotonic()
        while True:
            rows = self._pull(closed=closed, wait_ms=_WAIT_MS)
            closed = rows.closed
            if rows.ending:
                return None
            now_s = time.monotonic()
            if self._role == "push" and now_s - last_request_s > _TURN_S:
                last_request_s = now_s
                attached = self._link.attach()
                if attached.pushes:
                    return attached

    def _take_over(self, attached: Attached) -> None:
        """Start pushing with the current or saved networks, on a complete mirror."""
        agent, resumes = self._agent, True
        if agent is None:
            assert self._link.mirror is not None
            try:
                agent = Agent(self._link.config, self._settings, self._link.mirror)
                if self._start is not None:
                    agent.load_initial(self._start)
            except (OSError, ValueError) as error:
                raise LearnerMismatchError(str(error)) from None
            self._agent = agent
            resumes = self._states.restore(agent, self._pace.last_restorable_episode(attached))
        seen = agent.seen
        agent.join(attached.memory, {one.memory: one.writes for one in attached.lineage})
        if agent.sampler_was_reset:
            _warn("the sampler's notes on experiences belonged to another memory; they were reset")
            agent.sampler_was_reset = False
        # If the sampler starts over, the experiences already counted are still stored and need no further updates.
        self._backlog.counted = max(agent.seen, min(seen, attached.restored))
        self._notifies_agent = self._pace.join(agent)
        if attached.next_policy_id <= 1 and not resumes:
            if self._start is None:
                self._learn_from_seeds()
            self._offer()
            self._conclude(0)
        else:
            self._rejoin(attached, resumes)
        report(NAME, "ready", "restored" if resumes else "from scratch")

    def _learn_from_seeds(self) -> None:
        """Learn from the initial experiences in the memory of a new run, before the first policy."""
        agent, config = self.agent, self._link.config
        assert self._link.mirror is not None
        steps = episode_steps(config.task, config.rate_hz)
        n_seeded_episodes = round(self._link.mirror.storage.stored / steps)
        if not n_seeded_episodes or self._settings.selected.batch_steps:
            return
        agent.catch_up()
        self._backlog.counted = agent.seen
        if agent.ready:
            self._work.update(agent, self._updates_to_catch_up(n_seeded_episodes), self._pace)
            agent.mark_run_start()

    def _updates_to_catch_up(self, episodes: int) -> int:
        """Updates for the stored experiences of earlier episodes, which new networks must catch up on."""
        return min((self._settings.updates_per_episode or 100) * episodes, 10 * self._settings.backlog)

    @property
    def _wait_ms(self) -> int:
        """Time that the rig may wait for experiences before it answers; 0 while updates are pending."""
        return 0 if self._backlog.due and self.agent.ready else _WAIT_MS

    @property
    def agent(self) -> Agent:
        assert self._agent is not None
        return self._agent

    def _rejoin(self, attached: Attached, resumes: bool) -> None:
        agent, uses_clock = self.agent, self._pace.uses_clock
        learns_from_batches = bool(self._settings.selected.batch_steps) and uses_clock
        has_other_policies = learns_from_batches and attached.next_policy_id - 1 > agent.newest_policy_id
        self._episode_at_join = finished = self._pace.last_finished_episode(attached)
        if uses_clock or not resumes:  # otherwise the episode is repeated from its start
            agent.newest_policy_id = attached.next_policy_id - 1
        agent.handled = min(agent.handled, finished)
        if resumes:
            if attached.next_policy_id <= 1:  # no policy of this learner remains on the rig
                agent.newest_policy_id = 0
                self._offer()
            elif has_other_policies:  # other policies gathered the stored experiences
                agent.batches.skip_stored()
                self._offer()
            elif learns_from_batches and agent.updates > agent.updates_when_offered:
                self._offer()
            self._report_done(agent.handled)
        else:
            agent.handled = max(0, finished)
            if self._settings.selected.batch_steps:
                report(NAME, "warning", "no saved state: the policy starts from scratch")
                agent.batches.skip_stored()
                self._offer()
                self._conclude(agent.handled)
                return
            # New networks must catch up on the stored experiences before they act.
            updates = self._updates_to_catch_up(attached.closed)
            report(NAME, "warning", f"no saved state: {updates} updates on the rig's memory precede the first policy")
            agent.catch_up()
            self._backlog.counted = agent.seen
            if agent.ready:
                self._work.update(agent, updates, self._pace)
                self._offer()
            self._conclude(agent.handled)

    def _learn(self, rows: Rows) -> None:
        if rows.upto < rows.inserted:
            return  # still catching up
        agent, settings = self.agent, self._settings
        if self._offers.due:
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
            self._pace.begin_episode(agent, episode)
            agent.begin_episode(episode, self._link.episode_return(episode))
            updates = self._pace.affordable(settings.updates_per_episode or 0, behind)
            if agent.ready and updates:
                self._work.update(agent, updates, self._pace)
                if self._pace.offers_policy(behind):
                    self._offer()
            self._conclude(episode)

    def _learn_continuously(self, rows: Rows) -> None:
        agent, backlog = self.agent, self._backlog
        backlog.take(rows.inserted)
        for episode in range(agent.handled + 1, rows.closed + 1):
            agent.begin_episode(episode, self._link.episode_return(episode))
        if agent.ready and (updates := backlog.due):
            self._work.update(agent, updates, self._pace)
            backlog.record_updates(updates)
            self.save(at_most_every_s=_SAVE_S)
        if rows.closed > agent.handled:
            self._offer()
            self._conclude(rows.closed)

    def _learn_from_batches(self, rows: Rows) -> None:
        """Learn from each complete batch; in lockstep only at the end of an episode, where policies change."""
        agent = self.agent
        for episode in self._pace.episodes_to_learn_after(agent.handled, rows.closed):
            self._pace.begin_episode(agent, episode)
            if self._work.learn_from_batches(agent, self._pace, lambda: self._report_done(agent.handled)):
                self._offer()
                self.save(at_most_every_s=_SAVE_S)
            if episode > agent.handled:
                self._conclude(episode)

    def _offer(self) -> None:
        self._offers.offer(self.agent, self._run_id, retries=self._pace.uses_clock)

    def _conclude(self, episode: int) -> None:
        """Finish an episode: save the state before the rig may depend on it, then acknowledge."""
        self.agent.handled = episode
        self._pace.conclude(self.agent, self._settled)
        self._report_done(episode)
        self.save(at_most_every_s=_SAVE_S)

    def _report_done(self, episode: int) -> None:
        self._link.ask(Done(episode, self.agent.updates, self._work.updates_per_s, not self._states.save_failed))
        self._has_concluded |= episode > self._episode_at_join

    @property
    def result_accepted(self) -> bool:
        """Whether the rig has accepted any result based on its memory."""
        return self._has_concluded or self._work.feedback_accepted

    def _pull(self, closed: int, wait_ms: int) -> Rows:
        rows, slots = self._link.pull(closed, wait_ms)
        self._settled = rows.settled
        self._heartbeat.beat()
        if slots is not None and self._notifies_agent:
            self.agent.on_write(slots)
        return rows

    def save(self, at_most_every_s: float = 0.0) -> None:
        """Save the state if the pace saves between episodes."""
        if self._agent is not None:
            self._pace.save(self._agent, at_most_every_s)

    def close(self) -> None:
        self._client.post(Leave())
        self._client.close()
