"""Memories of S trials: a keeper and a sampler each, with all rows in one array, so that one gather serves all.

Keepers and samplers are those of a rig; generations, mirrors and checkpoints are not needed.
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
from onrig.learner.trajectories import Trajectories, keys_of
from onrig.learner.trials.rows import Altered, Columns, Kept, Rows
from onrig.learner.trials.sampling import sampling_for
from onrig.learner.trials.worlds import Policy
from onrig.runtime.memory.keepers.keeper import FEEDBACK, Keeper
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.strategy import Strategy, keeper_for
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.random_streams import Role, stream

_BEFORE: Final = 0xFFFFFFFF
"""Training steps before an experience that no step of this run made."""


class _Feedback:
    """Feedback of replayed experiences that the keepers of S trials require, passed on in one call for speed."""

    def __init__(self, strategy: Strategy, keepers: Sequence[Keeper]) -> None:
        self._keepers = keepers
        self._kinds = tuple(signal for signal in FEEDBACK.values() if signal in strategy.keeper.required_signals)
        self._pending: list[tuple[Slots, NDArray[np.float32]]] = []

    def take(self, slots: Slots, signals: Signals) -> None:
        """Take the signals of the minibatches drawn in ``slots`` (K, S, B)."""
        if self._kinds:
            self._pending.append((slots, np.array([signals.of(kind) for kind in self._kinds], np.float32)))

    def send(self) -> None:
        """Pass all that was taken since the last call to the keepers."""
        if not self._pending:
            return
        slots = np.concatenate([drawn for drawn, _ in self._pending])
        values = np.concatenate([each for _, each in self._pending], axis=1)
        self._pending.clear()
        for trial, keeper in enumerate(self._keepers):
            for kind, signal in enumerate(self._kinds):
                of_trial = values[kind, :, trial].reshape(-1)
                # Feedback of a diverged trial is NaN and does not count.
                finite = np.isfinite(of_trial)
                keeper.learned(signal, slots[:, trial].reshape(-1)[finite], of_trial[finite])


class Memories:
    """The memories of S trials."""

    def __init__(self, kept: Kept, seeds: Sequence[int], *, policy: Policy | None = None) -> None:
        """Memories of one trial per seed; ``policy`` is for samplers that use it."""
        strategy = kept.strategy
        self.columns: Final = Columns.of(kept)
        self.width: Final = self.columns.noise.stop
        """Floats in a row."""
        self._kept = kept
        self._capacity = kept.setting.capacity
        self.offered = 0
        """Experiences that each trial has offered to its memory."""
        reserved = kept.reserved
        self._keepers: list[Keeper] = [
            keeper_for(
                strategy,
                self._capacity,
                stream(seed, Role.KEEPER),
                write_probability=kept.write_probability,
                reserved=reserved,
            )
            for seed in seeds
        ]
        view = None if policy is None else ReplayView(self.gather, policy, self._age, kept.n, kept.m)
        self._sampling = sampling_for(
            strategy,
            seeds,
            kept.setting._replace(view=view, reserved=reserved),
        )
        self.feedback = bool(self._sampling.required_signals)
        """True where each draw depends on the update before it."""
        self._keeper_feedback = _Feedback(strategy, self._keepers)
        # Untouched pages cost nothing: FULL fills its memory over the experiment.
        self.rows: Rows = np.zeros((len(seeds), self._capacity, self.width), np.float32)
        """(S, capacity, width)"""
        self._made: NDArray[np.uint32] = np.zeros((len(seeds), self._capacity), np.uint32)
        """(S, capacity): training steps before the experience."""
        self._synthetic = np.zeros((len(seeds), self._capacity), np.bool_)
        self._trials: Final = np.arange(len(seeds))
        self._stored: NDArray[np.int64] = np.zeros(len(seeds), np.int64)
        self.slots: Slots = np.zeros((0, 0, 0), np.int64)
        """(K, S, B): slots of the minibatches drawn last."""
        self.notes: Final = Notes(len(seeds), self._capacity)
        """The algorithm's notes per slot."""
        self._selected = kept.setting.options.selected
        links = self._selected.needs_links
        self._trajectories = Trajectories(len(seeds), self._capacity, self._continues) if links else None
        self._next_key: NDArray[np.int64] = np.zeros(len(seeds), np.int64)
        """(S,): counts up by one with each experience offered, and once more between episodes."""
        self._episode = [0] * len(seeds)
        """Episodes of each trial that have ended."""
        if kept.prior is not None:
            self._begin_with(kept.prior)

    def _begin_with(self, prior: Transitions) -> None:
        """Insert the experiences that every memory begins with; they do not count as offered."""
        rows, episodes = self.columns.rows_of(prior), prior.episode.tolist()
        keys = keys_of(prior.episode, prior.step)
        written = []
        for trial, keeper in enumerate(self._keepers):
            slots = []
            for i, (exploration, episode) in enumerate(zip(prior.exploration.tolist(), episodes, strict=True)):
                slot = keeper.place()
                if slot >= 0:
                    keeper.written(slot, exploration, episode)
                    self.rows[trial, slot] = rows[i]
                    self._made[trial, slot] = _BEFORE
                    self._stored[trial] = max(self._stored[trial], slot + 1)
                    if self._trajectories is not None:
                        self._trajectories.written(trial, np.array([slot]), keys[[i]])
                slots.append(slot)
            placed = np.array(slots, np.int64)
            written.append(placed[placed >= 0])
            self.notes.written(trial, written[-1])
        self._sampling.written(written)

    @property
    def ready(self) -> bool:
        """Whether every memory holds at least one minibatch.

        If experiences are dropped at random, this waits until it is practically certain for any trial: checking the
        actual counts would make the start of one trial depend on the others.
        """
        probability = self._kept.write_probability
        batch = self._kept.setting.batch
        surely = batch if probability == 1.0 else 4 * batch + 40
        return self.offered * probability + self._kept.reserved >= surely

    def begin_episode(self, episode: int) -> None:
        """Set the samplers' training episode (environment step, where trials advance step by step)."""
        self._sampling.begin_episode(episode)

    def episode_closed(self, returns: NDArray[np.float64], ended: NDArray[np.bool_]) -> None:
        """Tell the samplers the undiscounted returns (S,), raw units, of the trials whose training episode ended (S,).

        Comes before the updates that follow the episode.
        """
        self._next_key += ended
        for trial in np.flatnonzero(ended).tolist():
            self._episode[trial] += 1
        self._sampling.episode_closed(returns, ended)

    def insert(self, measured: Rows, altered: Altered | None = None) -> None:
        """Offer an episode, or any T steps, of every trial to its keeper, (S, T, width), in order."""
        self._keeper_feedback.send()
        before = self.offered
        self.offered += measured.shape[1]
        if altered is not None:
            written = [self._insert_altered(trial, rows, altered) for trial, rows in enumerate(measured)]
        elif measured.shape[1] == 1:
            written = self._insert_one(measured[:, 0], before)
        else:
            written = [self._insert_many(trial, rows, before) for trial, rows in enumerate(measured)]
        self._next_key += measured.shape[1]
        for trial, slots in enumerate(written):
            self.notes.written(trial, slots)
        self._sampling.written(written)

    def _insert_one(self, rows: Rows, before: int) -> list[Slots]:
        """Insert one step of every trial, (S, width)."""
        exploration = rows[:, self.columns.exploration].tolist()
        slots = [self._placed(trial, magnitude) for trial, magnitude in enumerate(exploration)]
        placed = np.array(slots)
        trials = self._trials
        if min(slots) < 0:
            trials = np.flatnonzero(placed >= 0)
            rows, placed = rows[trials], placed[trials]
        self.rows[trials, placed] = rows
        self._made[trials, placed] = before
        self._stored[trials] = np.maximum(self._stored[trials], placed + 1)
        written = [np.array([slot] if slot >= 0 else [], np.int64) for slot in slots]
        if self._trajectories is not None:
            for trial in trials.tolist():
                self._trajectories.written(trial, written[trial], self._next_key[[trial]])
        return written

    def _insert_many(self, trial: int, rows: Rows, before: int) -> Slots:
        """Insert the steps of one trial, (T, width)."""
        exploration = rows[:, self.columns.exploration]
        written = self._keepers[trial].place_all(exploration, self._episode[trial])
        steps = np.flatnonzero(written >= 0)
        written = slots = written[steps]
        if len(set(slots.tolist())) < len(slots):
            # The last row written to a slot wins.
            slots, last = np.unique(slots[::-1], return_index=True)
            steps = steps[::-1][last]
        self.rows[trial, slots] = rows[steps]
        self._made[trial, slots] = before + steps
        self._stored[trial] = max(self._stored[trial], slots.max(initial=-1) + 1)
        if self._trajectories is not None:
            self._trajectories.written(trial, slots, self._next_key[trial] + steps)
        return written

    def _continues(self, trial: int, first: Slots, second: Slots) -> NDArray[np.bool_]:
        rows, at = self.rows[trial].view(np.uint32), self.columns
        ends = rows[first, at.next_observation]
        together: NDArray[np.bool_] = (ends == rows[second, at.observation]).all(axis=1)
        return together

    def _placed(self, trial: int, exploration: float) -> int:
        """Have the trial's keeper choose the slot of an experience; negative if it is not kept."""
        keeper = self._keepers[trial]
        slot = keeper.place()
        if slot >= 0:
            keeper.written(slot, exploration, self._episode[trial])
        return slot

    def _insert_altered(self, trial: int, measured: Rows, altered: Altered) -> Slots:
        """Keep experiences by the law of ``onrig.sim.synthetic.experiences``; unchanged ones count as written, as in
        ``onrig.runtime.replay.experiences``."""
        keeper, synthetic, at = self._keepers[trial], self._synthetic[trial], self.columns.exploration
        episode = self._episode[trial]
        kept, offered = self.rows[trial], altered.rows[trial]
        renews, made = altered.renews[trial].tolist(), altered.synthetic[trial].tolist()
        slots = []
        for i in range(len(measured)):
            slot = keeper.place()
            slots.append(slot)
            if slot < 0:
                continue
            renewed = renews[i] or slot >= self._stored[trial]
            if renewed:
                kept[slot], synthetic[slot] = offered[i], made[i]
                self._stored[trial] = max(self._stored[trial], slot + 1)
            elif not synthetic[slot]:
                kept[slot] = measured[i]
            if renewed or not synthetic[slot]:
                self._made[trial, slot] = self.offered - len(measured) + i
            keeper.written(slot, float(kept[slot, at]), episode)
        placed = np.array(slots, np.int64)
        return placed[placed >= 0]

    def draw(self, updates: int) -> tuple[Minibatches, NDArray[np.float64] | None]:
        """Draw ``updates`` minibatches of every trial, and the mean |noise| in those of each trial, (S, n + m)."""
        self.slots, weights = self._sampling.draw(updates)
        rows = self._taken(self.slots)
        noise = None
        if self._kept.noises:
            noise = np.abs(rows[..., self.columns.noise]).mean(axis=(0, 2), dtype=np.float64)
        minibatches = self._with_window(replace(self._fields(rows, weights), slots=self.slots), self.slots)
        if self._trajectories is not None and self._selected.successors > 1:
            minibatches = self._with_successors(minibatches, self._trajectories)
        return minibatches, noise

    def _with_successors(self, drawn: Minibatches, trajectories: Trajectories) -> Minibatches:
        chain = trajectories.follow(self.slots, self._selected.successors)
        last = self._fields(self._taken(chain.last))
        trial = self._trials[:, None, None]
        rewards = self.rows[trial, chain.slots, self.columns.reward]
        return replace(
            drawn,
            next_observation=last.next_observation,
            terminated=last.terminated,
            rewards=np.where(chain.present, rewards, 0.0),
            lengths=chain.present.sum(axis=-1),
        )

    def _with_window(self, taken: Minibatches, slots: Slots) -> Minibatches:
        if self._trajectories is None or self._selected.window == 1:
            return taken
        chain = self._trajectories.before(slots, self._selected.window)
        trial = self._trials[:, None, None]
        return replace(
            taken, window=Window(chain.slots, self.rows[trial, chain.slots, self.columns.observation], chain.present)
        )

    def _taken(self, slots: Slots) -> Rows:
        """Rows in slots (..., S, B)."""
        return self.rows.reshape(-1, self.width).take(slots + self._trials[:, None] * self._capacity, axis=0)

    def _fields(self, rows: Rows, weights: NDArray[np.floating] | None = None) -> Minibatches:
        at, behaviour = self.columns, None
        if at.behaviour is not None:
            mean, std, drawn = np.split(rows[..., at.behaviour], 3, axis=-1)
            behaviour = Behaviour(mean, std, drawn, rows[..., at.deviates] > 0.0)
        return Minibatches(
            observation=rows[..., at.observation],
            action=rows[..., at.action],
            reward=rows[..., at.reward],
            next_observation=rows[..., at.next_observation],
            terminated=np.zeros(rows.shape[:-1], np.bool_) if at.terminated is None else rows[..., at.terminated] > 0.0,
            weights=weights,
            behaviour=behaviour,
        )

    def slots_of_steps(self, trial: int, first: int, end: int) -> Slots:
        """Slots of the stored experiences that training steps ``first`` to ``end`` - 1 made, counted from 0."""
        made = self._made[trial, : self._stored[trial]]
        return np.flatnonzero((made >= first) & (made < end))

    def stored_view(self) -> MemoryAccess:
        """The algorithm's access to the memories."""
        trajectories = self._trajectories or Trajectories(len(self.rows), 0, self._continues)
        return MemoryAccess(self.notes, self.gather, trajectories.after, trajectories.around)

    def gather(self, slots: Slots) -> Minibatches:
        """Experiences in slots (S, n): fields (S, n, ...)."""
        return self._with_window(self._fields(self._taken(slots)), slots)

    def _age(self, slots: Slots) -> NDArray[np.float64]:
        made = self._made[self._trials[:, None], slots]
        age: NDArray[np.float64] = made / max(self._kept.setting.steps, 1)
        return age

    def updated(self, signals: Signals) -> None:
        """Pass the signals of the minibatches drawn last to samplers and keepers."""
        self._sampling.updated(self.slots, signals)
        self._keeper_feedback.take(self.slots, signals)
