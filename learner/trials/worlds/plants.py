"""Our plants as worlds, optionally varied, with delay, termination and the shield.

Noise is drawn per episode.  If the shield acts, the experience contains the shield's action, as on a rig.
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
from onrig.learner.trials.worlds import Bools, NoSuchTask, Spaces, StepResult, Values, make_actors
from onrig.learner.trials.worlds.actuation import DelayLine, Shields, States
from onrig.learner.trials.worlds.episode_draws import EpisodeDraws
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
    """Settings of the run's configuration to change: values by dotted path."""
    shield: bool = False
    """Whether a shield enforces the run's limits."""
    end_outside: bool = False
    """Whether an episode also terminates outside the envelope of the limits."""
    counts: bool = False
    """Whether sensors and actuators have the rig's resolution."""
    cut_off: bool = False
    """Whether evaluations count the steps that a termination cuts off, as a run's scores do."""
    plants: dict[str, Annotated[tuple[Quantity, ...], msgspec.Meta(min_length=1)]] = {}
    """Values of the plant's parameters, in place of the twin's: a trial with seed k always uses the entries with index
    k (modulo their number)."""


def load_plant_run(task: str, options: PlantOptions) -> RunConfig:
    """Load the run of a plant world by name or path; raise NoSuchTask if that fails."""
    assignments = [f"{path}={msgspec.json.encode(value).decode()}" for path, value in options.set.items()]
    try:
        config = load_run(task, assignments, lambda: {("device", "twin"): TwinOptions, ("learner",): settings_type()})
    except ConfigError as error:
        raise NoSuchTask("; ".join(str(problem) for problem in error.problems)) from None
    return world_config(config, task)


def world_config(config: RunConfig, task: str) -> RunConfig:
    """Return the configuration of ``task`` if it is suitable for a world; raise NoSuchTask otherwise."""
    if config.device.twin is None:
        raise NoSuchTask(f"'{task}' has no twin: set device.twin")
    if config.rig.previous_command:
        raise NoSuchTask(f"worlds do not observe the previous command: rig.previous_command of '{task}' must be false")
    if config.cameras:
        raise NoSuchTask(f"worlds have no cameras: give '{task}' task.inputs without images")
    return config


def draw_plants(config: RunConfig, options: PlantOptions, seeds: Sequence[int], actors: int) -> Plant | None:
    """Return the plants of all trials as a batch, one for each of the ``actors`` in each trial; None without
    ``plants``.

    Raises NoSuchTask for parameters that the plant does not have, or values out of bounds.
    """
    if not options.plants:
        return None
    lengths = {len(values) for values in options.plants.values()}
    if len(lengths) > 1:
        raise NoSuchTask("options.plants: expected the same number of values for each parameter (drawn jointly)")
    indices = np.repeat([seed % max(lengths) for seed in seeds], actors)
    values = {name: np.array(values)[indices] for name, values in options.plants.items()}
    plant = msgspec.convert(config.device.twin, TwinOptions).plant
    lumped_values = {name: np.full(len(indices), value) for name, value in plant.lumped.items()}
    try:
        return (
            plant.with_identifiable(lumped_values | values)
            if lumped_values.keys() & values.keys()
            else plant.varied(values)
        )
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
        fixed_length: bool = False,
    ) -> None:
        """``options``: all apply except ``set``, which ``config`` already includes.

        ``plant`` replaces the twin's plant; its parameters may be arrays (S * E,), with one value for each actor.
        ``fixed_length``: all actors play episodes of fixed length in parallel.  Rewards are then views that are filled
        at the end of the episode, and policies receive float64, from which standardised inputs differ in their bits
        from those for the float32 values in a memory.  Raises ValueError for limits with which no shield can be built.
        """
        options = options or PlantOptions()
        instruments = Instruments(config, plant, counts=options.counts)
        self._instruments: Final = instruments
        self.spaces: Final = Spaces(instruments.inputs.k, instruments.m, None, horizon or instruments.steps)
        self._shape: Final = (len(seeds), len(roles))
        A, actors = len(seeds) * len(roles), make_actors(seeds, roles)
        self._draws: Final = EpisodeDraws(config, instruments.plant.state_names, actors, self.spaces.horizon)
        self._dtype: Final = np.float64 if fixed_length else np.float32
        self._rewards = _EpisodeRewards(instruments, self.spaces.horizon, A) if fixed_length else None
        self._applied_commands: Final = np.zeros((A, instruments.m))
        """Previous commands, SI units."""
        self._all_false: Final = np.zeros(self._shape, np.bool_)
        self._all_true: Final = np.ones(self._shape, np.bool_)
        self._shields = Shields(config, instruments, A) if options.shield else None
        self._delay_line: Final = DelayLine(config, instruments, A, self.spaces.horizon)
        indices = {o.name: i for i, o in enumerate(config.rig.observations)}
        envelopes = config.limits.envelope if options.end_outside else {}
        self._envelope_bounds = [(indices[name], e.low, e.high) for name, e in envelopes.items()]
        self._terminates: Final = bool(config.task.may_terminate or self._envelope_bounds)
        normalization = config.task.normalization if options.cut_off else None
        self._cut_off_reward = (
            None if normalization is None else lowest_cut_off_reward(config.task, normalization.random_reward)
        )
        """Reward that evaluations count for each step after a termination."""
        self._is_evaluated: Final = np.array([actor.role is Role.PLANT_EVAL for actor in actors])
        self._episodes: Final = np.zeros(A, np.int64)
        self._step: Final = np.zeros(A, np.int64)
        self._state = self._draws.nominal_start()
        self._signal_history: Final = np.zeros((instruments.inputs.history + 1, A, instruments.n + instruments.targets))
        """Normalised signals, current ones first."""

    @property
    def is_noisy(self) -> bool:
        """Whether sensors or actuators add noise."""
        return self._draws.is_noisy

    def begin(self, actor_mask: Bools) -> Values:
        is_selected, instruments = actor_mask.reshape(-1), self._instruments
        self._state = _select(is_selected, self._draws.nominal_start(), self._state)
        for i in np.flatnonzero(is_selected).tolist() if self._draws.episodes_differ else ():
            self._draws.draw(i, int(self._episodes[i]), self._state)
        if self._shields is not None:
            self._shields.begin(is_selected)
        self._episodes[is_selected] += 1
        self._step[is_selected] = 0
        if self._rewards is not None:
            self._rewards.begin()
        self._delay_line.begin(is_selected)
        self._applied_commands[is_selected] = instruments.safe_command
        self._signal_history[:, is_selected] = self._observe(self._signals(self._state, self._step), self._noise())[
            is_selected
        ]
        return self._policy_inputs()

    def step(self, action: NDArray[np.floating], actor_mask: Bools) -> StepResult:
        instruments, is_selected = self._instruments, actor_mask.reshape(-1)
        requested_actions = np.minimum(np.maximum(action.reshape(len(is_selected), -1), -1.0, dtype=np.float64), 1.0)
        if not math.isfinite(requested_actions.sum()):
            raise ValueError("non-finite action")
        intervened = tripped = terminated = self._all_false
        all_advance = self._rewards is not None or is_selected.all()
        advancing_actors = slice(None) if all_advance else is_selected
        if self._shields is not None:
            guard_flags = self._shields.guard(
                requested_actions, self._signal_history[0, :, : instruments.n], is_selected
            )
            intervened, tripped = (flags.reshape(self._shape) for flags in guard_flags)
        requested_actions = instruments.round_to_resolution(requested_actions)
        noise = self._noise()
        command = instruments.to_command(requested_actions)
        if self._shields is not None:
            self._shields.record_sent(command, advancing_actors)
        if noise is not None:
            command = instruments.to_command(requested_actions + noise[:, instruments.n :])
        state = self._delay_line.advance_plants(self._state, command, is_selected)
        measured_signals = self._signals(state, self._step + 1)
        if self._rewards is None:
            reward = instruments.reward(measured_signals, command, self._applied_commands)
        else:
            reward = self._rewards.add_step(int(self._step[0]), measured_signals, command)
        self._applied_commands[advancing_actors] = command[advancing_actors]
        if self._terminates:
            is_end = is_selected & (
                instruments.has_terminated(measured_signals) | self._is_outside_envelope(measured_signals)
            )
            terminated = is_end.reshape(self._shape)
            if self._cut_off_reward is not None and is_end.any():
                n_remaining_steps = self.spaces.horizon - self._step - 1
                reward = reward + np.where(is_end & self._is_evaluated, n_remaining_steps * self._cut_off_reward, 0.0)
        if not all_advance:
            state, reward = _select(is_selected, state, self._state), np.where(is_selected, reward, 0.0)
            measured_signals = self._signals(state, self._step + is_selected)
        self._state = state
        self._step[advancing_actors] += 1
        if instruments.inputs.history:
            self._signal_history[1:, advancing_actors] = self._signal_history[:-1, advancing_actors]
        normalised_signals = self._observe(measured_signals, self._noise())
        self._signal_history[0, advancing_actors] = (
            normalised_signals if all_advance else normalised_signals[advancing_actors]
        )
        noise_columns = None if noise is None else noise.reshape(*self._shape, -1)
        rewards, actions = reward.reshape(self._shape), requested_actions.reshape(*self._shape, -1)
        truncated = self._has_reached_limit(actor_mask, terminated)
        return StepResult(
            self._policy_inputs(), rewards, terminated, truncated, actions, intervened, tripped, noise_columns
        )

    def close(self) -> None:
        """Do nothing: a plant world has no resources."""

    def _has_reached_limit(self, actor_mask: Bools, terminated: Bools) -> Bools:
        """Return which of these episodes have reached the time limit, (S, E)."""
        if self._rewards is not None:
            return self._all_true if self._step[0] == self.spaces.horizon else self._all_false
        return actor_mask & (self._step >= self.spaces.horizon).reshape(self._shape) & ~terminated

    def _is_outside_envelope(self, measured_signals: NDArray[np.float64]) -> NDArray[np.bool_]:
        is_outside = np.zeros(len(measured_signals), np.bool_)
        for index, low, high in self._envelope_bounds:
            is_outside |= ~((low <= measured_signals[:, index]) & (measured_signals[:, index] <= high))
        return is_outside

    def _signals(self, state: States, step: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the exact measurements of states, and the targets at these steps, (A, n + q), in SI units."""
        measured_signals = self._instruments.measure(state)
        if not self._instruments.targets:
            return measured_signals
        return np.concatenate((measured_signals, self._draws.targets(step)), axis=1)

    def _observe(self, signals: NDArray[np.float64], noise: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Return the normalised signals (A, n + q) with sensor noise."""
        instruments = self._instruments
        return instruments.normalise_with_noise(signals, None if noise is None else noise[:, : instruments.n])

    def _policy_inputs(self) -> Values:
        """Return the policy inputs, (S, E, k)."""
        return self._instruments.inputs.compute(self._signal_history).reshape(*self._shape, -1).astype(self._dtype)

    def _noise(self) -> NDArray[np.float64] | None:
        """Return the current noise (A, n + m); None without noise."""
        return self._draws.noise(self._step)


class _EpisodeRewards:
    """Rewards of complete episodes of T steps, which are computed in one call at the end; until then, the returned
    views contain zeros."""

    def __init__(self, instruments: Instruments, steps: int, actors: int) -> None:
        self._instruments: Final = instruments
        widths = (instruments.n + instruments.targets, instruments.m)
        self._episode_signals, self._episode_commands = (np.zeros((steps, actors, width)) for width in widths)
        """SI units."""
        self._rewards: NDArray[np.float64] = np.zeros((steps, actors))

    def begin(self) -> None:
        """Start an episode; views returned in the previous one remain valid."""
        self._rewards = np.zeros_like(self._rewards)

    def add_step(
        self, t: int, measured_signals: NDArray[np.float64], command: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Add step ``t``, and return the view of its rewards (A,)."""
        self._episode_signals[t], self._episode_commands[t] = measured_signals, command
        if t == len(self._rewards) - 1:
            previous_commands = np.concatenate(
                (np.broadcast_to(self._instruments.safe_command, (1, *command.shape)), self._episode_commands[:-1])
            )
            self._rewards[:] = self._instruments.reward(
                self._episode_signals, self._episode_commands, previous_commands
            )
        row: NDArray[np.float64] = self._rewards[t]
        return row


def _select(is_selected: NDArray[np.bool_], new_states: States, old_states: States) -> States:
    return tuple(np.where(is_selected, a, b) for a, b in zip(new_states, old_states, strict=True))
