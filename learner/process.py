"""Main loop of a learner attached to one rig: mirror its memory, train, offer policies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from msgspec import UNSET

from onrig.learner.agent import Agent
from onrig.learner.attachment import Attachment, Connection, LearnerMismatchError, LeaseLost, PolicyOffers
from onrig.learner.backlog import Backlog
from onrig.learner.pace import Lockstep, Pace, RealTime
from onrig.learner.screening import SCREENING, Screening, read_screening_plants
from onrig.learner.settings import learner_settings
from onrig.learner.states import States
from onrig.learner.work import Heartbeat, UpdateRunner
from onrig.runtime.link.client import LinkClient
from onrig.runtime.link.messages import Attached, Done, Leave, Rows
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.report import report
from onrig.runtime.task import episode_steps

NAME: Final = "learner"
"""Source name in this process's reports."""
_SAVE_INTERVAL_S: Final = 2.0
_PULL_WAIT_MS: Final = 200
_TURN_REQUEST_INTERVAL_S: Final = 1.0
"""Interval at which a waiting learner requests its turn."""


def _warn(line: str) -> None:
    report(NAME, "warning", line)


class LearnerProcess:
    """State machine of a learner attached to one rig."""

    def __init__(
        self,
        config: RunConfig,
        connection: Connection,
        state: Path,
        stop_flag: list[bool],
        initial_networks: Path | None = None,
    ) -> None:
        """``initial_networks``: file with the networks from which a learner without a saved state starts; if a
        screening is configured, its plants are in the same folder."""
        self._role, self._initial_networks = connection.role, initial_networks
        self._settings = learner_settings(config.learner)
        self._heartbeat = Heartbeat(NAME)

        def is_stopping() -> bool:
            self._heartbeat.send_if_due()  # called repeatedly while the rig is silent
            return stop_flag[0]

        self._client = LinkClient(connection.endpoint, is_stopping, connection.keys, connection.patience_s, _warn)
        self._link = Attachment(
            config, self._client, connection.role, _warn, lambda ruling: self._offers.record(ruling)
        )
        self._offers = PolicyOffers(self._link, NAME)
        self._states = States(state, _warn)
        # Experiences stored before the first update do not count as backlog.
        learning_starts = 0 if self._settings.learning_starts is UNSET else self._settings.learning_starts
        self._backlog = Backlog(
            self._settings.updates_per_transition or 0.0, self._settings.backlog + learning_starts, _warn
        )
        self._update_runner = UpdateRunner(self._link, self._backlog, self._heartbeat)
        self._pace: Pace = RealTime(self._states, self._backlog, self._offers, self._settings.backlog)
        self._agent: Agent | None = None
        self._notifies_agent = False
        """Whether the agent is notified of every write."""
        self._checkpoint_episode = -1
        """Episode of the rig's newest checkpoint (lockstep); -1 before the first pull."""
        self._last_episode_at_start = 0
        """Last episode that was already complete when the learner attached."""
        self._has_finished_episode = False

    def run(self) -> None:
        """Attach, then learn until the run ends; while another learner pushes, only mirror.

        Raises StatesConflictError if the state folder belongs to another run.
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
                next_attached = self._await_turn(attached)
                if next_attached is None:
                    break
                attached = next_attached
                continue
            try:
                self._take_over(attached)
                while not rows.ending:  # a rig that is shutting down no longer answers
                    self._learn(rows)
                    rows = self._pull(last_closed_episode=self.agent.last_completed_episode, wait_ms=self._wait_ms)
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
        if self._agent is not None and self._settings.algorithm_config.batch_steps:
            batches = self._agent.batches
            message = (
                f"learned from {batches.n_learned} batches; in {batches.n_deviating} of their steps the policy's own "
                f"action was not applied; {batches.n_dropped} experiences belong to no batch"
            )
            report(
                NAME,
                "event",
                message,
                batches=batches.n_learned,
                deviating=batches.n_deviating,
                experiences_left_out=batches.n_dropped,
            )
        if n_dropped_updates := round(self._backlog.n_dropped_updates):
            _warn(f"the learner could not keep up: {n_dropped_updates} updates beyond learner.backlog were dropped")
        self._offers.report_totals()

    def _catch_up(self, attached: Attached) -> Rows:
        rows = self._pull(last_closed_episode=0, wait_ms=0)  # includes the returns of all recent episodes
        while rows.upto < rows.inserted:
            rows = self._pull(last_closed_episode=attached.closed, wait_ms=0)
        return rows

    def _await_turn(self, attached: Attached) -> Attached | None:
        """Mirror until this learner may push; return None if the run ends first."""
        report(NAME, "ready", "watching" if self._role == "watch" else f"waiting for its turn: {attached.why}")
        last_closed_episode = attached.closed
        last_request_s = time.monotonic()
        while True:
            rows = self._pull(last_closed_episode=last_closed_episode, wait_ms=_PULL_WAIT_MS)
            last_closed_episode = rows.closed
            if rows.ending:
                return None
            now_s = time.monotonic()
            if self._role == "push" and now_s - last_request_s > _TURN_REQUEST_INTERVAL_S:
                last_request_s = now_s
                attached = self._link.attach()
                if attached.pushes:
                    return attached

    def _take_over(self, attached: Attached) -> None:
        """Start pushing with the current or saved networks, once the mirror is complete."""
        agent, resumes = self._agent, True
        if agent is None:
            assert self._link.mirror is not None
            try:
                agent = Agent(self._link.config, self._settings, self._link.mirror)
                if self._initial_networks is not None:
                    agent.load_initial(self._initial_networks)
                    self._offers.screening = self._read_screening(self._initial_networks)
            except (OSError, ValueError) as error:
                raise LearnerMismatchError(str(error)) from None
            self._agent = agent
            resumes = self._states.restore(agent, self._pace.last_restorable_episode(attached))
        n_seen_before = agent.n_seen_writes
        agent.attach_memory(attached.memory, {ancestor.memory: ancestor.writes for ancestor in attached.lineage})
        if agent.sampler_was_reset:
            _warn("the sampler's notes on experiences belonged to a different memory and were reset")
            agent.sampler_was_reset = False
        # If the sampler starts over, the experiences already counted are still stored and need no further updates.
        self._backlog.n_counted_writes = max(agent.n_seen_writes, min(n_seen_before, attached.restored))
        self._notifies_agent = self._pace.prepare_agent(agent)
        if attached.next_policy_id <= 1 and not resumes:
            if self._initial_networks is None:
                self._learn_from_seeds()
            self._offer()
            self._finish_episode(0)
        else:
            self._resume(attached, resumes)
        report(NAME, "ready", "restored" if resumes else "from scratch")

    def _read_screening(self, initial_networks: Path) -> Screening | None:
        if not self._settings.screening:
            return None
        try:
            plants = read_screening_plants(initial_networks.with_name(Path(SCREENING).name))
            return Screening(self._link.config, plants, self._stay_attached)
        except (OSError, ValueError) as error:  # for example, a file that describes the plant has changed since
            _warn(f"policies are not tested before they are offered: {error}")
            return None

    def _stay_attached(self) -> None:
        """Send a heartbeat, in real time also to the rig, because this learner's lease would expire during a long
        screening."""
        if self._heartbeat.send_if_due() and self._pace.uses_clock:
            self._report_completion(self.agent.last_completed_episode)

    def _learn_from_seeds(self) -> None:
        """Learn from the initial experiences in a new run's memory, before the first policy is offered."""
        agent, config = self.agent, self._link.config
        assert self._link.mirror is not None
        steps = episode_steps(config.task, config.rate_hz)
        n_seeded_episodes = round(self._link.mirror.storage.stored / steps)
        if not n_seeded_episodes or self._settings.algorithm_config.batch_steps:
            return
        agent.catch_up()
        self._backlog.n_counted_writes = agent.n_seen_writes
        if agent.has_minibatch:
            self._update_runner.update(agent, self._updates_to_catch_up(n_seeded_episodes), self._pace)
            agent.mark_run_start()

    def _updates_to_catch_up(self, episodes: int) -> int:
        """Return the number of updates that new networks need to catch up on the experiences of earlier episodes."""
        return min((self._settings.updates_per_episode or 100) * episodes, 10 * self._settings.backlog)

    @property
    def _wait_ms(self) -> int:
        """How long, in ms, the rig may delay its answer to wait for experiences; 0 while updates are pending."""
        return 0 if self._backlog.n_due and self.agent.has_minibatch else _PULL_WAIT_MS

    @property
    def agent(self) -> Agent:
        assert self._agent is not None
        return self._agent

    def _resume(self, attached: Attached, resumes: bool) -> None:
        agent, uses_clock = self.agent, self._pace.uses_clock
        learns_from_batches = bool(self._settings.algorithm_config.batch_steps) and uses_clock
        has_other_policies = learns_from_batches and attached.next_policy_id - 1 > agent.newest_policy_id
        self._last_episode_at_start = last_finished = self._pace.last_finished_episode(attached)
        if uses_clock or not resumes:  # otherwise the episode is repeated from its start
            agent.newest_policy_id = attached.next_policy_id - 1
        agent.last_completed_episode = min(agent.last_completed_episode, last_finished)
        if resumes:
            if attached.next_policy_id <= 1:  # no policy of this learner remains on the rig
                agent.newest_policy_id = 0
                self._offer()
            elif has_other_policies:  # other policies gathered the stored experiences
                agent.batches.skip_stored()
                self._offer()
            elif learns_from_batches and agent.updates > agent.updates_when_offered:
                self._offer()
            self._report_completion(agent.last_completed_episode)
        else:
            agent.last_completed_episode = max(0, last_finished)
            if self._settings.algorithm_config.batch_steps:
                report(NAME, "warning", "no saved state: the policy starts from scratch")
                agent.batches.skip_stored()
                self._offer()
                self._finish_episode(agent.last_completed_episode)
                return
            # New networks must catch up on the stored experiences before they act.
            updates = self._updates_to_catch_up(attached.closed)
            report(NAME, "warning", f"no saved state: making {updates} updates on the rig's memory first")
            agent.catch_up()
            self._backlog.n_counted_writes = agent.n_seen_writes
            if agent.has_minibatch:
                self._update_runner.update(agent, updates, self._pace)
                self._offer()
            self._finish_episode(agent.last_completed_episode)

    def _learn(self, rows: Rows) -> None:
        if rows.upto < rows.inserted:
            return  # still catching up
        agent, settings = self.agent, self._settings
        if self._offers.is_due:
            self._offer()
        if settings.algorithm_config.batch_steps:
            self._learn_from_batches(rows)
            return
        if settings.updates_per_transition is not None and self._pace.uses_clock:
            self._learn_continuously(rows)
            return
        while agent.last_completed_episode < rows.closed:
            episode = agent.last_completed_episode + 1
            n_waiting = rows.closed - episode
            self._pace.begin_episode(agent, episode)
            agent.begin_episode(episode, self._link.episode_return(episode))
            updates = self._pace.limit_updates(self._updates_after_episode(), n_waiting)
            if agent.has_minibatch and updates:
                self._update_runner.update(agent, updates, self._pace)
                if self._pace.offers_policy(n_waiting):
                    self._offer()
            self._finish_episode(episode)

    def _updates_after_episode(self) -> int:
        """Return the number of updates that follow an episode; if it is set per experience, all that are still due."""
        settings, agent = self._settings, self.agent
        if settings.updates_per_transition is None:
            return settings.updates_per_episode or 0
        seeds = self._link.config.selection.seeds
        n_seeds = 0 if seeds is None or seeds.most is UNSET else seeds.most
        n_written = agent.n_seen_writes - n_seeds
        return max(0, int(settings.updates_per_transition * n_written) - agent.updates)

    def _learn_continuously(self, rows: Rows) -> None:
        agent, backlog = self.agent, self._backlog
        backlog.add_writes(rows.inserted)
        for episode in range(agent.last_completed_episode + 1, rows.closed + 1):
            agent.begin_episode(episode, self._link.episode_return(episode))
        if agent.has_minibatch and (updates := backlog.n_due):
            self._update_runner.update(agent, updates, self._pace)
            backlog.record_updates(updates)
            self.save(min_interval_s=_SAVE_INTERVAL_S)
        if rows.closed > agent.last_completed_episode:
            self._offer()
            self._finish_episode(rows.closed)

    def _learn_from_batches(self, rows: Rows) -> None:
        """Learn from each complete batch; in lockstep only at the end of an episode, where policies change."""
        agent = self.agent
        for episode in self._pace.episodes_to_learn_after(agent.last_completed_episode, rows.closed):
            self._pace.begin_episode(agent, episode)
            if self._update_runner.learn_from_batches(
                agent, self._pace, lambda: self._report_completion(agent.last_completed_episode)
            ):
                self._offer()
                self.save(min_interval_s=_SAVE_INTERVAL_S)
            if episode > agent.last_completed_episode:
                self._finish_episode(episode)

    def _offer(self) -> None:
        self._offers.offer(self.agent, self._run_id, retries=self._pace.uses_clock)

    def _finish_episode(self, episode: int) -> None:
        """Save the state after an episode before reporting the episode as done, because the rig may then depend on that
        state."""
        self.agent.last_completed_episode = episode
        self._pace.finish_episode(self.agent, self._checkpoint_episode)
        self._report_completion(episode)
        self.save(min_interval_s=_SAVE_INTERVAL_S)

    def _report_completion(self, episode: int) -> None:
        self._link.ask(
            Done(episode, self.agent.updates, self._update_runner.updates_per_s, not self._states.has_save_failed)
        )
        self._has_finished_episode |= episode > self._last_episode_at_start

    @property
    def result_accepted(self) -> bool:
        """Whether the rig has accepted any result based on its memory."""
        return self._has_finished_episode or self._update_runner.feedback_accepted

    def _pull(self, last_closed_episode: int, wait_ms: int) -> Rows:
        rows, slots = self._link.pull(last_closed_episode, wait_ms)
        self._checkpoint_episode = rows.settled
        self._heartbeat.send_if_due()
        if slots is not None and self._notifies_agent:
            self.agent.on_write(slots)
        return rows

    def save(self, min_interval_s: float = 0.0) -> None:
        """Save the state as the pace requires between episodes."""
        if self._agent is not None:
            self._pace.save(self._agent, min_interval_s)

    def close(self) -> None:
        self._client.post(Leave())
        self._client.close()
