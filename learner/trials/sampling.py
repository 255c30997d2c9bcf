"""Sampling for S trials: one sampler per trial, as on the rig, or one for all trials if that is much faster.

Rank-based prioritised replay, KLPER, and the learned samplers serve all trials at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.sampler_settings import KlperSettings
from onrig.learner.samplers import Draw, ReplayView, Sampler, SamplerContext, State, sampler_class, sampler_for
from onrig.learner.samplers.fis import Fis
from onrig.learner.samplers.klper import Klper, select_closest
from onrig.learner.samplers.multi_trial import MultiTrialSampler
from onrig.learner.samplers.rank_per import RankDraws
from onrig.learner.samplers.uniform import Uniform
from onrig.runtime import registry
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.strategy import SamplingParts, Strategy, parse_sampling, sampling_class
from onrig.runtime.random_streams import Role, stream


class Sampling(Protocol):
    """Samplers of S trials; each trial draws the same slots as with a sampler of its own from
    ``onrig.learner.samplers``."""

    @property
    def required_signals(self) -> frozenset[Signal]:
        """Signals on which draws depend; unless it is empty, each draw requires the previous update."""
        ...

    def begin_episode(self, episode: int) -> None:
        """Set the training episode, for schedules over episodes."""
        return

    def on_write(self, slots: Sequence[Slots]) -> None:
        """Receive each trial's slots that have received new experiences, in order."""
        ...

    def draw(self, updates: int) -> Draw:
        """Draw minibatches: slots (updates, S, batch), and weights of the same shape or None."""
        ...

    def on_update(self, slots: Slots, signals: Signals) -> None:
        """Receive the signals of the last draw, slots (updates, S, batch)."""
        return

    def on_episode_end(self, returns: NDArray[np.float64], has_ended: NDArray[np.bool_]) -> None:
        """Receive the returns (S,) of the trials whose training episode ``has_ended`` (S,), before the updates that
        follow it."""
        return


class SeparateSampling:
    """One sampler per trial."""

    def __init__(self, samplers: Sequence[Sampler], batch: int) -> None:
        self._samplers: Final = samplers
        self._batch: Final = batch
        self.required_signals: Final = samplers[0].required_signals

    def begin_episode(self, episode: int) -> None:
        for sampler in self._samplers:
            sampler.begin_episode(episode)

    def on_write(self, slots: Sequence[Slots]) -> None:
        for sampler, trial_slots in zip(self._samplers, slots, strict=True):
            sampler.on_write(trial_slots)

    def draw(self, updates: int) -> Draw:
        draws = [sampler.draw(self._batch, updates) for sampler in self._samplers]
        slots = np.stack([draw.slots for draw in draws], axis=1)
        weights = [draw.weights for draw in draws if draw.weights is not None]
        return Draw(slots, np.stack(weights, axis=1) if weights else None)

    def on_update(self, slots: Slots, signals: Signals) -> None:
        if not self.required_signals:
            return
        for trial, sampler in enumerate(self._samplers):
            sampler.on_update(slots[:, trial].reshape(-1), signals.of_trial(trial))

    def on_episode_end(self, returns: NDArray[np.float64], has_ended: NDArray[np.bool_]) -> None:
        for trial in np.flatnonzero(has_ended).tolist():
            self._samplers[trial].on_episode_end(float(returns[trial]))


class KlperSampling(Sampling):
    """KLPER for all trials at once: the policies evaluate all candidates together."""

    required_signals: Final = Klper.required_signals

    def __init__(self, uniform: SeparateSampling, n_candidates: int, view: ReplayView, variance: float) -> None:
        self._uniform: Final = uniform
        self._n_candidates: Final = n_candidates
        self._view: Final = view
        self._variance: Final = variance

    def on_write(self, slots: Sequence[Slots]) -> None:
        self._uniform.on_write(slots)

    def draw(self, updates: int) -> Draw:
        """Draw one minibatch for each trial; raise ValueError unless ``updates`` is 1, because policies change between
        updates."""
        if updates != 1:
            raise ValueError(f"expected one update per draw, since draws depend on the policy, got {updates}")
        candidates = self._uniform.draw(self._n_candidates).slots
        return Draw(select_closest(candidates, self._view, self._variance)[None], None)


class RankPerSampling(Sampling):
    """Rank-based PER for all trials at once, with or without full importance sampling."""

    required_signals: Final = frozenset({Signal.TD_ERROR})

    def __init__(self, per: RankDraws, batch: int, fis: Sequence[tuple[Fis, PresetSlots]]) -> None:
        self._per: Final = per
        self._batch: Final = batch
        self._fis: Final = fis

    def begin_episode(self, episode: int) -> None:
        self._per.begin_episode(episode)
        for fis, _ in self._fis:
            fis.begin_episode(episode)

    def on_write(self, slots: Sequence[Slots]) -> None:
        for trial, trial_slots in enumerate(slots):
            self._per.on_write(trial, trial_slots)
        for (fis, _), trial_slots in zip(self._fis, slots, strict=False):
            fis.on_write(trial_slots)

    def draw(self, updates: int) -> Draw:
        """Draw one minibatch for each trial; raise ValueError unless ``updates`` is 1, because draws depend on the last
        errors."""
        if updates != 1:
            raise ValueError(f"expected one update per draw, since each depends on the previous update, got {updates}")
        draw = self._per.draw(self._batch)
        if not self._fis:
            return draw
        weights = np.empty(draw.slots.shape, np.float32)
        for (fis, preset_slots), slots, trial_slots in zip(self._fis, draw.slots[0], weights[0], strict=True):
            preset_slots.slots = slots[None]
            trial_slots[:] = fis.draw(self._batch).weights
        return Draw(draw.slots, weights)

    def on_update(self, slots: Slots, signals: Signals) -> None:
        self._per.on_update(slots, signals.priority)


class PresetSlots:
    """Sampler that ``Fis`` wraps, and that returns slots drawn elsewhere."""

    required_signals: Final = frozenset({Signal.TD_ERROR})

    def __init__(self) -> None:
        self.slots: Slots = np.zeros((0, 0), np.int64)
        """(1, batch): drawn slots."""

    def begin_episode(self, episode: int) -> None:
        """Do nothing."""

    def on_write(self, slots: Slots) -> None:
        """Do nothing."""

    def on_update(self, slots: Slots, signals: Signals) -> None:
        """Do nothing."""

    def on_episode_end(self, episode_return: float) -> None:
        """Do nothing."""

    def draw(self, batch: int, updates: int = 1) -> Draw:
        return Draw(self.slots, None)

    def state(self) -> State:
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Do nothing: the state is empty."""

    def learned_state(self) -> State:
        return {}


def sampling_for(strategy: Strategy, seeds: Sequence[int], context: SamplerContext) -> Sampling:
    """Build the sampling part of ``strategy`` for trials with ``seeds``, as ``sampler_for`` does for one trial."""
    streams = [stream(seed, Role.SAMPLER) for seed in seeds]
    if context.capacity < context.batch:
        raise ValueError(f"a memory of {context.capacity} experiences is smaller than a minibatch of {context.batch}")
    parts = parse_sampling(strategy.sampling)
    description = sampling_class(parts.name)
    if description.trials_home:
        build: TrialsSamplingFactory = registry.import_home(description, description.trials_home)
        return build(parts, context, streams)
    sampler: type = sampler_class(parts.name)
    if issubclass(sampler, MultiTrialSampler):
        return sampler(context, streams)
    return SeparateSampling([sampler_for(strategy, s, context) for s in streams], context.batch)


TrialsSamplingFactory = Callable[[SamplingParts, SamplerContext, Sequence[np.random.Generator]], Sampling]
"""Function that builds one ``Sampling`` for all trials."""


def build_klper_sampling(
    parts: SamplingParts, context: SamplerContext, streams: Sequence[np.random.Generator]
) -> Sampling:
    """Build KLPER; raise ValueError if ``context`` has no view of the policy."""
    if context.view is None or parts.argument is None:
        raise ValueError(f"{parts} needs a view of the policy")
    uniform = SeparateSampling([Uniform(s) for s in streams], context.batch)
    variance = context.options.sampler_section(KlperSettings).variance
    return KlperSampling(uniform, int(parts.argument), context.view, variance)


def build_rank_per_sampling(
    parts: SamplingParts, context: SamplerContext, streams: Sequence[np.random.Generator]
) -> Sampling:
    """Build rank-based PER."""
    beta = context.beta if parts.correction == "IS" else None
    preset_slots = [PresetSlots() for _ in streams] if parts.correction == "FIS" else []
    fis = [(Fis(slots, context.capacity, beta=context.beta, replays=context.replays), slots) for slots in preset_slots]
    per = RankDraws(context.capacity, streams, alpha=context.options.per_alpha, beta=beta)
    return RankPerSampling(per, context.batch, fis)
