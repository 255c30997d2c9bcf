"""Memories of S trials, each with a keeper and a sampler; all rows are in one array and are gathered at once.

Keepers and samplers are the same as on a rig; generations, mirrors and checkpoints are not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Behaviour, MemoryAccess, Minibatches, Signals, Window
from onrig.learner.notes import Notes
from onrig.learner.samplers import ReplayView
from onrig.learner.trajectories import Trajectories, experience_keys
from onrig.learner.trials.rows import AlteredEpisode, Columns, MemoryContents, Rows
from onrig.learner.trials.sampling import sampling_for
from onrig.learner.trials.worlds import Policy
from onrig.runtime.memory.keepers.keeper import FEEDBACK, Keeper
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.strategy import Strategy, build_keeper
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.random_streams import Role, stream

_BEFORE_ALL_STEPS: Final = 0xFFFFFFFF
"""Value of ``_created_at_step`` for prior experiences, which no step of this run created."""


class _KeeperFeedback:
    """Feedback on replayed experiences for the keepers of S trials, which is collected and passed in one call for
    speed."""

    def __init__(self, strategy: Strategy, keepers: Sequence[Keeper]) -> None:
        self._keepers = keepers
        required_signals = strategy.keeper.required_signals
        self._required_signals = tuple(signal for signal in FEEDBACK.values() if signal in required_signals)
        self._pending_signals: list[tuple[Slots, NDArray[np.float32]]] = []

    def add(self, slots: Slots, signals: Signals) -> None:
        """Add the signals of the minibatches drawn in ``slots`` (K, S, B)."""
        if self._required_signals:
            self._pending_signals.append(
                (slots, np.array([signals.feedback_values(kind) for kind in self._required_signals], np.float32))
            )

    def send(self) -> None:
        """Pass all signals since the last call to the keepers."""
        if not self._pending_signals:
            return
        slots = np.concatenate([drawn for drawn, _ in self._pending_signals])
        values = np.concatenate([values_by_kind for _, values_by_kind in self._pending_signals], axis=1)
        self._pending_signals.clear()
        for trial, keeper in enumerate(self._keepers):
            for kind, signal in enumerate(self._required_signals):
                trial_values = values[kind, :, trial].reshape(-1)
                # Feedback from a diverged trial is NaN and ignored.
                is_finite = np.isfinite(trial_values)
                keeper.on_feedback(signal, slots[:, trial].reshape(-1)[is_finite], trial_values[is_finite])


class Memories:
    """The memories of S trials."""

    def __init__(self, contents: MemoryContents, seeds: Sequence[int], *, policy: Policy | None = None) -> None:
        """Create memories for one trial per seed; ``policy`` is for samplers that evaluate it."""
        strategy = contents.strategy
        self.columns: Final = Columns.for_contents(contents)
        self.width: Final = self.columns.noise.stop
        """Number of floats in a row."""
        self._contents = contents
        self._capacity = contents.context.capacity
        self.n_offered = 0
        """Number of experiences that each trial has offered to its memory."""
        n_reserved = contents.reserved
        self._keepers: list[Keeper] = [
            build_keeper(
                strategy,
                self._capacity,
                stream(seed, Role.KEEPER),
                write_probability=contents.write_probability,
                reserved=n_reserved,
            )
            for seed in seeds
        ]
        view = None
        if policy is not None:
            view = ReplayView(self.gather, policy, self._age, contents.n, contents.m, contents.read_frames)
        self._sampling = sampling_for(
            strategy,
            seeds,
            contents.context._replace(view=view, reserved=n_reserved),
        )
        self.draws_depend_on_updates = bool(self._sampling.required_signals)
        """Whether each draw depends on the previous update."""
        self._keeper_feedback = _KeeperFeedback(strategy, self._keepers)
        # Unwritten pages use no memory; FULL fills them in the course of the experiment.
        self.rows: Rows = np.zeros((len(seeds), self._capacity, self.width), np.float32)
        """(S, capacity, width)"""
        self._created_at_step: NDArray[np.uint32] = np.zeros((len(seeds), self._capacity), np.uint32)
        """(S, capacity): number of training steps before the experience."""
        self._is_synthetic = np.zeros((len(seeds), self._capacity), np.bool_)
        self._trials: Final = np.arange(len(seeds))
        self._n_stored: NDArray[np.int64] = np.zeros(len(seeds), np.int64)
        self.slots: Slots = np.zeros((0, 0, 0), np.int64)
        """(K, S, B): slots of the last drawn minibatches."""
        self.notes: Final = Notes(len(seeds), self._capacity)
        """The algorithm's notes per slot."""
        self._algorithm_config = contents.context.options.algorithm_config
        needs_trajectories = self._algorithm_config.needs_links
        self._trajectories = (
            Trajectories(len(seeds), self._capacity, self._are_consecutive) if needs_trajectories else None
        )
        self._next_key: NDArray[np.int64] = np.zeros(len(seeds), np.int64)
        """(S,): key of the next experience; one key is skipped between episodes."""
        self._episode = [0] * len(seeds)
        """Number of completed episodes of each trial."""
        if contents.prior is not None:
            self._insert_prior(contents.prior)

    def _insert_prior(self, prior: Transitions) -> None:
        """Insert the initial experiences of every memory; they do not count as offered."""
        rows, episodes = self.columns.transition_rows(prior), prior.episode.tolist()
        keys = experience_keys(prior.episode, prior.step)
        written_slots = []
        for trial, keeper in enumerate(self._keepers):
            slots = []
            for i, (exploration, episode) in enumerate(zip(prior.exploration.tolist(), episodes, strict=True)):
                slot = keeper.place()
                if slot >= 0:
                    keeper.on_write(slot, exploration, episode)
                    self.rows[trial, slot] = rows[i]
                    self._created_at_step[trial, slot] = _BEFORE_ALL_STEPS
                    self._n_stored[trial] = max(self._n_stored[trial], slot + 1)
                    if self._trajectories is not None:
                        self._trajectories.on_write(trial, np.array([slot]), keys[[i]])
                slots.append(slot)
            used_slots = np.array(slots, np.int64)
            written_slots.append(used_slots[used_slots >= 0])
            self.notes.on_write(trial, written_slots[-1])
        self._sampling.on_write(written_slots)

    @property
    def have_minibatches(self) -> bool:
        """Whether every memory holds at least one minibatch.

        If experiences are dropped at random, this becomes true only once it is practically certain for every trial:
        with the actual counts, the start of one trial would depend on the others.
        """
        probability = self._contents.write_probability
        batch = self._contents.context.batch
        n_required = batch if probability == 1.0 else 4 * batch + 40
        return self.n_offered * probability + self._contents.reserved >= n_required

    def begin_episode(self, episode: int) -> None:
        """Set the samplers' training episode, or environment step for trials that advance step by step."""
        self._sampling.begin_episode(episode)

    def on_episode_end(self, returns: NDArray[np.float64], has_ended: NDArray[np.bool_]) -> None:
        """Pass the returns (S,) of the trials whose training episode ``has_ended`` (S,) to the samplers.

        Returns are undiscounted and in raw units.  Call this before the updates that follow the episode.
        """
        self._next_key += has_ended
        for trial in np.flatnonzero(has_ended).tolist():
            self._episode[trial] += 1
        self._sampling.on_episode_end(returns, has_ended)

    def insert(self, measured_rows: Rows, altered_episode: AlteredEpisode | None = None) -> None:
        """Offer T steps (S, T, width) of every trial to its keeper, in order."""
        self._keeper_feedback.send()
        n_before = self.n_offered
        self.n_offered += measured_rows.shape[1]
        if altered_episode is not None:
            written_slots = [
                self._insert_altered(trial, rows, altered_episode) for trial, rows in enumerate(measured_rows)
            ]
        elif measured_rows.shape[1] == 1:
            written_slots = self._insert_step(measured_rows[:, 0], n_before)
        else:
            written_slots = [self._insert_steps(trial, rows, n_before) for trial, rows in enumerate(measured_rows)]
        self._next_key += measured_rows.shape[1]
        for trial, slots in enumerate(written_slots):
            self.notes.on_write(trial, slots)
        self._sampling.on_write(written_slots)

    def _insert_step(self, rows: Rows, n_before: int) -> list[Slots]:
        """Insert one step of every trial, (S, width)."""
        exploration = rows[:, self.columns.exploration].tolist()
        slots = [self._place_and_notify(trial, magnitude) for trial, magnitude in enumerate(exploration)]
        used_slots = np.array(slots)
        trials = self._trials
        if min(slots) < 0:
            trials = np.flatnonzero(used_slots >= 0)
            rows, used_slots = rows[trials], used_slots[trials]
        self.rows[trials, used_slots] = rows
        self._created_at_step[trials, used_slots] = n_before
        self._n_stored[trials] = np.maximum(self._n_stored[trials], used_slots + 1)
        written_slots = [np.array([slot] if slot >= 0 else [], np.int64) for slot in slots]
        if self._trajectories is not None:
            for trial in trials.tolist():
                self._trajectories.on_write(trial, written_slots[trial], self._next_key[[trial]])
        return written_slots

    def _insert_steps(self, trial: int, rows: Rows, n_before: int) -> Slots:
        """Insert the steps of one trial, (T, width)."""
        exploration = rows[:, self.columns.exploration]
        written_slots = self._keepers[trial].place_all(exploration, self._episode[trial])
        steps = np.flatnonzero(written_slots >= 0)
        written_slots = slots = written_slots[steps]
        if len(set(slots.tolist())) < len(slots):
            # The last row written to a slot wins.
            slots, last_indices = np.unique(slots[::-1], return_index=True)
            steps = steps[::-1][last_indices]
        self.rows[trial, slots] = rows[steps]
        self._created_at_step[trial, slots] = n_before + steps
        self._n_stored[trial] = max(self._n_stored[trial], slots.max(initial=-1) + 1)
        if self._trajectories is not None:
            self._trajectories.on_write(trial, slots, self._next_key[trial] + steps)
        return written_slots

    def _are_consecutive(self, trial: int, first_slots: Slots, second_slots: Slots) -> NDArray[np.bool_]:
        rows, columns = self.rows[trial].view(np.uint32), self.columns
        end_states = rows[first_slots, columns.next_observation]
        is_continuous: NDArray[np.bool_] = (end_states == rows[second_slots, columns.observation]).all(axis=1)
        return is_continuous

    def _place_and_notify(self, trial: int, exploration: float) -> int:
        """Return the slot that the trial's keeper chooses for an experience, and notify the keeper; negative if it is
        rejected."""
        keeper = self._keepers[trial]
        slot = keeper.place()
        if slot >= 0:
            keeper.on_write(slot, exploration, self._episode[trial])
        return slot

    def _insert_altered(self, trial: int, measured_rows: Rows, altered_episode: AlteredEpisode) -> Slots:
        """Insert experiences as defined in ``onrig.sim.synthetic.experiences``.

        Slots whose content stays unchanged count as written, as in ``onrig.runtime.replay.experiences``.
        """
        keeper, is_synthetic_slot, exploration_column = (
            self._keepers[trial],
            self._is_synthetic[trial],
            self.columns.exploration,
        )
        episode = self._episode[trial]
        rows, offered_rows = self.rows[trial], altered_episode.rows[trial]
        may_overwrite, is_synthetic = (
            altered_episode.may_overwrite[trial].tolist(),
            altered_episode.is_synthetic[trial].tolist(),
        )
        slots = []
        for i in range(len(measured_rows)):
            slot = keeper.place()
            slots.append(slot)
            if slot < 0:
                continue
            is_replaced = may_overwrite[i] or slot >= self._n_stored[trial]
            if is_replaced:
                rows[slot], is_synthetic_slot[slot] = offered_rows[i], is_synthetic[i]
                self._n_stored[trial] = max(self._n_stored[trial], slot + 1)
            elif not is_synthetic_slot[slot]:
                rows[slot] = measured_rows[i]
            if is_replaced or not is_synthetic_slot[slot]:
                self._created_at_step[trial, slot] = self.n_offered - len(measured_rows) + i
            keeper.on_write(slot, float(rows[slot, exploration_column]), episode)
        used_slots = np.array(slots, np.int64)
        return used_slots[used_slots >= 0]

    def draw(self, updates: int) -> tuple[Minibatches, NDArray[np.float64] | None]:
        """Draw ``updates`` minibatches of every trial; return them, and the mean |noise| (S, n + m) in each trial's
        minibatches."""
        self.slots, weights = self._sampling.draw(updates)
        rows = self._rows_at(self.slots)
        noise = None
        if self._contents.noise_width:
            noise = np.abs(rows[..., self.columns.noise]).mean(axis=(0, 2), dtype=np.float64)
        minibatches = self._with_window(replace(self._fields(rows, weights), slots=self.slots), self.slots)
        if self._trajectories is not None and self._algorithm_config.successors > 1:
            minibatches = self._with_successors(minibatches, self._trajectories)
        return minibatches, noise

    def _with_successors(self, minibatches: Minibatches, trajectories: Trajectories) -> Minibatches:
        chain = trajectories.with_successors(self.slots, self._algorithm_config.successors)
        last_fields = self._fields(self._rows_at(chain.last_slots))
        trial = self._trials[:, None, None]
        rewards = self.rows[trial, chain.slots, self.columns.reward]
        return replace(
            minibatches,
            next_observation=last_fields.next_observation,
            terminated=last_fields.terminated,
            rewards=np.where(chain.is_present, rewards, 0.0),
            lengths=chain.is_present.sum(axis=-1),
        )

    def _with_window(self, minibatches: Minibatches, slots: Slots) -> Minibatches:
        if self._trajectories is None or self._algorithm_config.window == 1:
            return minibatches
        chain = self._trajectories.with_predecessors(slots, self._algorithm_config.window)
        trial = self._trials[:, None, None]
        return replace(
            minibatches,
            window=Window(chain.slots, self.rows[trial, chain.slots, self.columns.observation], chain.is_present),
        )

    def _rows_at(self, slots: Slots) -> Rows:
        """Return the rows in slots (..., S, B)."""
        return self.rows.reshape(-1, self.width).take(slots + self._trials[:, None] * self._capacity, axis=0)

    def _fields(self, rows: Rows, weights: NDArray[np.floating] | None = None) -> Minibatches:
        columns, behaviour = self.columns, None
        if columns.behaviour is not None:
            mean, std, drawn = np.split(rows[..., columns.behaviour], 3, axis=-1)
            behaviour = Behaviour(mean, std, drawn, rows[..., columns.overridden] > 0.0)
        return Minibatches(
            observation=rows[..., columns.observation],
            action=rows[..., columns.action],
            reward=rows[..., columns.reward],
            next_observation=rows[..., columns.next_observation],
            terminated=np.zeros(rows.shape[:-1], np.bool_)
            if columns.terminated is None
            else rows[..., columns.terminated] > 0.0,
            weights=weights,
            behaviour=behaviour,
        )

    def slots_of_steps(self, trial: int, first: int, end: int) -> Slots:
        """Return the slots of the stored experiences from training steps ``first`` to ``end`` - 1, counted from 0."""
        created_at_step = self._created_at_step[trial, : self._n_stored[trial]]
        return np.flatnonzero((created_at_step >= first) & (created_at_step < end))

    def memory_access(self) -> MemoryAccess:
        """Return the algorithm's access to the memories."""
        trajectories = self._trajectories or Trajectories(len(self.rows), 0, self._are_consecutive)
        return MemoryAccess(self.notes, self.gather, trajectories.next_slots, trajectories.segments_around)

    def observations(self) -> Rows:
        """Return all stored observations and next observations of every trial."""
        columns, rows = self.columns, self.rows[:, : self._n_stored.max()]
        observations = rows[..., columns.observation], rows[..., columns.next_observation]
        return np.concatenate(observations, axis=-1)

    def gather(self, slots: Slots) -> Minibatches:
        """Gather the experiences in slots (S, n), with fields (S, n, ...)."""
        return self._with_window(self._fields(self._rows_at(slots)), slots)

    def _age(self, slots: Slots) -> NDArray[np.float64]:
        created_at_step = self._created_at_step[self._trials[:, None], slots]
        age: NDArray[np.float64] = created_at_step / max(self._contents.context.steps, 1)
        return np.where(created_at_step == _BEFORE_ALL_STEPS, 0.0, age)

    def on_update(self, signals: Signals) -> None:
        """Pass the signals of the last drawn minibatches to samplers and keepers."""
        self._sampling.on_update(self.slots, signals)
        self._keeper_feedback.add(self.slots, signals)
