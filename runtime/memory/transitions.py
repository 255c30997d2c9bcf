"""Transitions from pairs of consecutive step records, never across a gap; some may be replaced with synthetic ones.

The record of tick k holds s_k, the applied action ū_k and r(s_{k+1}, ū_k); the next record holds s_{k+1}.
Transitions are in normalised units: the ranges of observations and actions map to [-1, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Observation, Rig
from onrig.runtime.memory.layout import Flag
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.record import Flag as RecordFlag
from onrig.runtime.record import Kind, Rule

DEVIATION_TOLERANCE: Final = 0.05
"""Difference between the applied and the chosen normalised action above which a transition ``DEVIATES``.  It is larger
than the effect of rounding to counts, and smaller than that of a command delayed by a noticeable part of the period."""


class Transitions(NamedTuple):
    """A batch of n transitions in tick order."""

    observation: NDArray[np.float32]
    action: NDArray[np.float32]
    reward: NDArray[np.float32]
    next_observation: NDArray[np.float32]
    flags: NDArray[np.uint32]
    policy_id: NDArray[np.uint32]
    exploration: NDArray[np.float32]
    episode: NDArray[np.uint32]
    step: NDArray[np.uint32]
    """Index of the transition within its episode, from 0: ticks since the first record received of the episode."""
    behaviour: NDArray[np.float32]
    """(n, n_behaviour): mean, standard deviation and drawn action of a stochastic policy; otherwise no columns."""

    def select(self, mask: NDArray[np.bool_]) -> Transitions:
        """Return the selected transitions, in order."""
        return Transitions._make(column[mask] for column in self)

    def finite(self) -> NDArray[np.bool_]:
        """Return a mask (n,) of the transitions whose numbers are all finite."""
        return (
            np.isfinite(self.observation).all(axis=1)
            & np.isfinite(self.action).all(axis=1)
            & np.isfinite(self.reward)
            & np.isfinite(self.next_observation).all(axis=1)
            & np.isfinite(self.exploration)
            & np.isfinite(self.behaviour).all(axis=1)
        )


class ResynthesisedBatch(NamedTuple):
    """A batch of n measured transitions after resynthesis."""

    transitions: Transitions
    """The transitions, some of them replaced by synthetic ones (``Flag.SYNTHETIC``)."""
    may_overwrite: NDArray[np.bool_]
    """(n,): whether each transition overwrites its slot in any case.  If not, a synthetic experience in the slot is
    kept, and a measured one is overwritten with the measured transition.
    """


class Resynthesiser(Protocol):
    """Replaces some transitions with synthetic ones, regardless of how they are batched (``onrig.sim.synthetic``)."""

    def __call__(self, measured: Transitions) -> ResynthesisedBatch:
        """Return the transitions to offer to the memory, in the same order."""
        ...


def behaviour_values(records: NDArray[np.void]) -> NDArray[np.float32]:
    """Return mean, standard deviation and draw as columns (n, 3 m); (n, 0) for records of a deterministic policy."""
    if "drawn" not in (records.dtype.names or ()):
        return np.zeros((len(records), 0), np.float32)
    return np.concatenate([records["mean"], records["std"], records["drawn"]], axis=1)


def shares_episode(first: NDArray[np.void], second: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the pairs of successive records between which the same episode continues."""
    has_successor = first["flags"] & RecordFlag.NO_ACTION == 0
    in_episode: NDArray[np.bool_] = (
        (first["episode"] == second["episode"]) & (first["kind"] == second["kind"]) & has_successor
    )
    return in_episode


def is_consecutive(first: NDArray[np.void], second: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the pairs that form a transition: the first record is valid, and no frame is missing."""
    is_valid = first["flags"] & RecordFlag.INVALID == 0
    mask: NDArray[np.bool_] = is_valid & (second["tick"] == first["tick"] + 1) & (second["frame"] == first["frame"] + 1)
    return mask


class TransitionBuilder:
    """Builder of transitions from batches of records; the last record of a batch is paired with the first of the
    next."""

    def __init__(self, rig: Rig, signals: Sequence[Observation] | None = None) -> None:
        """``signals``: inputs of policies, by default the rig's observations."""
        signals = rig.signals if signals is None else signals
        self._observations, self._actions = (
            Normalisation.from_signals(signals),
            Normalisation.from_signals(rig.actuators),
        )
        self._last_record: NDArray[np.void] | None = None
        self.episode_start = (-1, -1, 0)
        """Episode and kind of the last record, and the tick of their first record received."""
        self.gaps = 0
        """Number of pairs within an episode that give no transition, because records are missing or values invalid."""

    def add(self, records: NDArray[np.void]) -> Transitions:
        """Process the next records of the ring (dtype ``RecordLayout.dtype``); return the transitions they complete."""
        if self._last_record is not None:
            joined_records = np.empty(1 + len(records), records.dtype)  # np.concatenate checks every field's type
            joined_records[:1], joined_records[1:] = self._last_record, records
            records = joined_records
        self._last_record = records[-1:].copy() if len(records) else None
        steps = self._step_numbers(records)
        first, second = records[:-1], records[1:]
        in_episode = shares_episode(first, second) & (first["kind"] == Kind.TRAIN)
        is_complete = in_episode & is_consecutive(first, second)
        self.gaps += int(np.count_nonzero(in_episode & ~is_complete))
        transitions = self._build(first[is_complete], second[is_complete], steps[:-1][is_complete])
        is_finite = transitions.finite()
        if is_finite.all():
            return transitions
        self.gaps += int(np.count_nonzero(~is_finite))
        return transitions.select(is_finite)

    def _build(self, first: NDArray[np.void], second: NDArray[np.void], steps: NDArray[np.int64]) -> Transitions:
        """Build transitions from n pairs of consecutive records; ``steps``: step number of each pair's first record
        within its episode."""
        input_field = "input" if "input" in (first.dtype.names or ()) else "observation"
        second_flags = second["flags"]
        action = self._actions.normalise(first["applied"])
        chosen_action = np.clip(self._actions.normalise(first["explored"]), -1.0, 1.0)
        intervened = first["rule"] != Rule.NONE
        is_restrained = first["flags"] & RecordFlag.RESTRAINED != 0
        # Written so that NaN, from a policy or from a rule's replacement, counts as a deviation.
        is_deviating = intervened | is_restrained | ~(np.abs(action - chosen_action).max(axis=1) <= DEVIATION_TOLERANCE)
        flags = (
            ((second_flags & RecordFlag.TERMINATED) != 0) * int(Flag.TERMINATED)
            + ((second_flags & RecordFlag.TRUNCATED) != 0) * int(Flag.TRUNCATED)
            + intervened * int(Flag.INTERVENED)
            + is_deviating * int(Flag.DEVIATES)
        )
        return Transitions(
            observation=self._normalise(first[input_field]),
            action=action.astype(np.float32),
            reward=first["reward"].astype(np.float32),
            next_observation=self._normalise(second[input_field]),
            flags=flags.astype(np.uint32),
            policy_id=first["policy_id"].astype(np.uint32),
            exploration=first["exploration"].astype(np.float32),
            episode=first["episode"].astype(np.uint32),
            step=steps.astype(np.uint32),
            behaviour=behaviour_values(first),
        )

    def _step_numbers(self, records: NDArray[np.void]) -> NDArray[np.int64]:
        """Return the number of ticks between each record and the first one of its episode."""
        ticks: NDArray[np.int64] = records["tick"].astype(np.int64)
        if not len(ticks):
            return ticks
        episode = np.concatenate(([self.episode_start[0]], records["episode"]))
        kind = np.concatenate(([self.episode_start[1]], records["kind"]))
        is_first = (episode[1:] != episode[:-1]) | (kind[1:] != kind[:-1])
        first_index = np.maximum.accumulate(np.where(is_first, np.arange(len(ticks)), -1))
        first_ticks: NDArray[np.int64] = np.where(first_index < 0, self.episode_start[2], ticks[first_index])
        self.episode_start = int(episode[-1]), int(kind[-1]), int(first_ticks[-1])
        return ticks - first_ticks

    def _normalise(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._observations.normalise(observation).astype(np.float32)
