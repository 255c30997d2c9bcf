"""Our plants as worlds, optionally varied, with delay, termination and the shield.

Noise is drawn per episode.  Where the shield acts, the experience holds its action, as on a rig.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.bounds import Quantity
from onrig.learner.settings import settings_type
from onrig.learner.trials.instruments import Instruments
from onrig.learner.trials.worlds import Bools, NoSuchTask, Spaces, Stepped, Values, actors_of
from onrig.learner.trials.worlds.actuation import DelayLine, Shields, States
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.random_streams import Role
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.scoring import lowest_cut_off_reward
from onrig.sim.plants import Plant
from onrig.sim.twin.options import TwinOptions


class PlantOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a plant's world."""

    set: dict[str, object] = {}
    """Dotted paths of the run's configuration, with their values."""
    shield: bool = False
    """Whether the run's limits hold."""
    end_outside: bool = False
    """Whether an episode terminates outside of the envelope of the limits, too."""
    counts: bool = False
    """Whether sensors and actuators have the rig's resolution."""
    cut_off: bool = False
    """Whether evaluations count the steps that a termination cuts off, as the scores of a run do."""
    plants: dict[str, Annotated[tuple[Quantity, ...], msgspec.Meta(min_length=1)]] = {}
    """Values of the plant's parameters, in place of the twin's: a trial of seed k has the entries with index k (modulo
    their number), from its first to its last step."""


def run_of(task: str, options: PlantOptions) -> RunConfig:
    """Load the run that a world is made of, by name or path; raises NoSuchTask."""
    assignments = [f"{path}={msgspec.json.encode(value).decode()}" for path, value in options.set.items()]
    try:
        config = load_run(task, assignments, lambda: {("device", "twin"): TwinOptions, ("learner",): settings_type()})
    except ConfigError as error:
        raise NoSuchTask("; ".join(str(problem) for problem in error.problems)) from None
    return as_world(config, task)


def as_world(config: RunConfig, task: str) -> RunConfig:
    """Return a configuration, called ``task``, of which a world can be made; raises NoSuchTask for others."""
    if config.device.twin is None:
        raise NoSuchTask(f"'{task}' has no twin: give device.twin")
    if config.rig.previous_command:
        raise NoSuchTask(f"worlds do not observe the previous command: rig.previous_command of '{task}' must be false")
    return config


def plants_of(config: RunConfig, options: PlantOptions, seeds: Sequence[int], actors: int) -> Plant | None:
    """The drawn plants as one, with an entry for each of the ``actors`` of each trial; None if none are drawn.

    Raises NoSuchTask for parameters that the plant does not have, or values out of bounds.
    """
    if not options.plants:
        return None
    lengths = {len(values) for values in options.plants.values()}
    if len(lengths) > 1:
        raise NoSuchTask("options.plants: expected as many values of each parameter, because plants are drawn jointly")
    at = np.repeat([seed % max(lengths) for seed in seeds], actors)
    values = {name: np.array(values)[at] for name, values in options.plants.items()}
    plant = msgspec.convert(config.device.twin, TwinOptions).plant
    lumped = {name: np.full(len(at), value) for name, value in plant.lumped.items()}
    try:
        return plant.with_identifiable(lumped | values) if lumped.keys() & values.keys() else plant.varied(values)
    except KeyError as error:
        raise NoSuchTask(f"options.plants: the plant has no parameter {error}") from None
    except ValueError as error:
        raise NoSuchTask(f"options.plants: {error}") from None


class PlantWorld:
    """A plant for every actor of every trial, all advanced as one batch and computed element by element."""

    def __init__(
        self,
        config: RunConfig,
        seeds: Sequence[int],
        roles: Sequence[Role],
        *,
        horizon: int | None = None,
        options: PlantOptions | None = None,
        plant: Plant | None = None,
        whole: bool = False,
    ) -> None:
        """``options`` but for ``set``, which ``config`` has.

        ``plant`` takes the place of the twin's; its parameters may be arrays (S * E,), one for each actor.
        ``whole``: all actors play episodes of fixed length side by side.  Rewards are then views, which are filled when
        the episode has ended, and policies see float64 (those that standardise it give other bits than for the float32
        that a memory stores).  Raises ValueError for limits under which no shield can be built.
        """
        options = options or PlantOptions()
        instruments = Instruments(config, plant, counts=options.counts)
        self._instruments: Final = instruments
        self.spaces: Final = Spaces(instruments.k, instruments.m, None, horizon or instruments.steps)
        self._actors: Final = actors_of(seeds, roles)
        self._shape: Final = (len(seeds), len(roles))
        A = len(self._actors)
        self._at: Final = np.arange(A)
        self._dtype: Final = np.float64 if whole else np.float32
        self._rewards = _EpisodeRewards(instruments, self.spaces.horizon, A) if whole else None
        self._in_force: Final = np.zeros((A, instruments.m))
        """Commands before the present ones, SI."""
        self._nothing: Final = np.zeros(self._shape, np.bool_)
        self._everything: Final = np.ones(self._shape, np.bool_)
        self._shields = Shields(config, instruments, A) if options.shield else None
        self._delay_line: Final = DelayLine(config, instruments, A, self.spaces.horizon)
        at = {o.name: i for i, o in enumerate(config.rig.observations)}
        envelope = config.limits.envelope if options.end_outside else {}
        self._ends = [(at[name], e.low, e.high) for name, e in envelope.items()]
        self._terminates: Final = bool(config.task.terminates or self._ends)
        references = config.task.normalization if options.cut_off else None
        self._cut_off = None if references is None else lowest_cut_off_reward(config.task, references.random_reward)
        """Reward that evaluations count for each step after a termination."""
        self._is_evaluated: Final = np.array([actor.role is Role.PLANT_EVAL for actor in self._actors])
        self._episodes: Final = np.zeros(A, np.int64)
        self._step: Final = np.zeros(A, np.int64)
        noise_steps = self.spaces.horizon + 1 if instruments.is_noisy else 0
        self._noise: Final = np.zeros((A, noise_steps, instruments.n + instruments.m))
        self._course: Final = np.zeros((A, self.spaces.horizon + 1, instruments.targets))
        """Targets of each actor's episode, SI."""
        self._state = instruments.start(A)
        self._seen: Final = np.zeros((instruments.reach + 1, A, instruments.n + instruments.targets))
        """Normalised signals, the present ones first."""

    @property
    def is_noisy(self) -> bool:
        """Whether sensors or actuators add noise."""
        return self._instruments.is_noisy

    def begin(self, which: Bools) -> Values:
        chosen, instruments = which.reshape(-1), self._instruments
        self._state = _where(chosen, instruments.start(len(chosen)), self._state)
        for i in np.flatnonzero(chosen).tolist() if instruments.draws_episodes else ():
            self._draw(i)
        if self._shields is not None:
            self._shields.begin(chosen)
        self._episodes[chosen] += 1
        self._step[chosen] = 0
        if self._rewards is not None:
            self._rewards.begin()
        self._delay_line.begin(chosen)
        self._in_force[chosen] = instruments.safe
        self._seen[:, chosen] = self._observed(self._signals(self._state, self._step), self._row())[chosen]
        return self._shown()

    def _draw(self, i: int) -> None:
        """Draw what an actor's next episode has of its own: noise, start, targets."""
        instruments, actor, horizon = self._instruments, self._actors[i], self.spaces.horizon
        episode = actor.seed, actor.role, actor.episode(int(self._episodes[i])) + 1
        if instruments.is_noisy:
            self._noise[i] = instruments.noise(*episode, horizon)
        if instruments.are_starts_drawn:
            for state, value in zip(self._state, instruments.drawn_start(*episode), strict=True):
                state[i] = value
        if instruments.targets:
            self._course[i] = instruments.course(*episode, horizon)

    def step(self, action: NDArray[np.floating], which: Bools) -> Stepped:
        instruments, chosen = self._instruments, which.reshape(-1)
        requested = np.minimum(np.maximum(action.reshape(len(chosen), -1), -1.0, dtype=np.float64), 1.0)
        if not math.isfinite(requested.sum()):
            raise ValueError("an action is not finite")
        intervened = tripped = terminated = self._nothing
        everyone = self._rewards is not None or chosen.all()
        at = slice(None) if everyone else chosen
        if self._shields is not None:
            shielded = self._shields.guard(requested, self._seen[0, :, : instruments.n], chosen)
            intervened, tripped = (flags.reshape(self._shape) for flags in shielded)
        requested = instruments.settable(requested)
        noise = self._row()
        command = instruments.to_command(requested)
        if self._shields is not None:
            self._shields.sent(command, at)
        if noise is not None:
            command = instruments.to_command(requested + noise[:, instruments.n :])
        state = self._delay_line.moved(self._state, command, chosen)
        measured = self._signals(state, self._step + 1)
        if self._rewards is None:
            reward = instruments.reward(measured, command, self._in_force)
        else:
            reward = self._rewards.take(int(self._step[0]), measured, command)
        self._in_force[at] = command[at]
        if self._terminates:
            over = chosen & (instruments.terminated(measured) | self._outside(measured))
            terminated = over.reshape(self._shape)
            if self._cut_off is not None and over.any():
                left = self.spaces.horizon - self._step - 1
                reward = reward + np.where(over & self._is_evaluated, left * self._cut_off, 0.0)
        if not everyone:
            state, reward = _where(chosen, state, self._state), np.where(chosen, reward, 0.0)
            measured = self._signals(state, self._step + chosen)
        self._state = state
        self._step[at] += 1
        if instruments.reach:
            self._seen[1:, at] = self._seen[:-1, at]
        seen = self._observed(measured, self._row())
        self._seen[0, at] = seen if everyone else seen[at]
        added = None if noise is None else noise.reshape(*self._shape, -1)
        paid, applied = reward.reshape(self._shape), requested.reshape(*self._shape, -1)
        late = self._late(which, terminated)
        return Stepped(self._shown(), paid, terminated, late, applied, intervened, tripped, added)

    def close(self) -> None:
        """Nothing to release."""

    def _late(self, which: Bools, terminated: Bools) -> Bools:
        """Which of these episodes are out of time, (S, E)."""
        if self._rewards is not None:
            return self._everything if self._step[0] == self.spaces.horizon else self._nothing
        return which & (self._step >= self.spaces.horizon).reshape(self._shape) & ~terminated

    def _outside(self, measured: NDArray[np.float64]) -> NDArray[np.bool_]:
        outside = np.zeros(len(measured), np.bool_)
        for at, low, high in self._ends:
            outside |= ~((low <= measured[:, at]) & (measured[:, at] <= high))
        return outside

    def _signals(self, state: States, step: NDArray[np.int64]) -> NDArray[np.float64]:
        """What sensors have to see of states, and the targets at these steps: (A, n + q), SI."""
        measured = self._instruments.measured(state)
        if not self._instruments.targets:
            return measured
        return np.concatenate((measured, self._course[self._at, np.minimum(step, self.spaces.horizon)]), axis=1)

    def _observed(self, signals: NDArray[np.float64], noise: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Normalised signals (A, n + q) as they are seen."""
        instruments = self._instruments
        return instruments.normalised(signals, None if noise is None else noise[:, : instruments.n])

    def _shown(self) -> Values:
        """Policy inputs, (S, E, k)."""
        return self._instruments.shown(self._seen).reshape(*self._shape, -1).astype(self._dtype)

    def _row(self) -> NDArray[np.float64] | None:
        """Present noise (A, n + m)."""
        return self._noise[self._at, self._step] if self._instruments.is_noisy else None


class _EpisodeRewards:
    """Rewards of complete episodes of T steps, all computed at once at their end; until then they are views."""

    def __init__(self, instruments: Instruments, steps: int, actors: int) -> None:
        self._instruments: Final = instruments
        widths = (instruments.n + instruments.targets, instruments.m)
        self._measured, self._applied = (np.zeros((steps, actors, width)) for width in widths)
        """SI units."""
        self._rewards: NDArray[np.float64] = np.zeros((steps, actors))

    def begin(self) -> None:
        """Start an episode; the views of the last one remain."""
        self._rewards = np.zeros_like(self._rewards)

    def take(self, t: int, measured: NDArray[np.float64], command: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take step ``t``; return the view of its rewards (A,)."""
        self._measured[t], self._applied[t] = measured, command
        if t == len(self._rewards) - 1:
            before = np.concatenate((np.broadcast_to(self._instruments.safe, (1, *command.shape)), self._applied[:-1]))
            self._rewards[:] = self._instruments.reward(self._measured, self._applied, before)
        row: NDArray[np.float64] = self._rewards[t]
        return row


def _where(chosen: NDArray[np.bool_], new: States, old: States) -> States:
    return tuple(np.where(chosen, a, b) for a, b in zip(new, old, strict=True))
