"""Our plants as worlds, step by step: S different ones if wanted, with delay, early ends and the shield.

Without options, observations, noise and rewards are those of ``onrig.learner.trials.rollout``, bit for bit.  Where the
shield acts, the experience has the action that it let through, as on a rig.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.instruments import Instruments
from onrig.learner.trials.worlds import Bools, NoSuchTask, Spaces, Stepped, Values
from onrig.runtime.config.problem import ConfigError, NodePath
from onrig.runtime.random_streams import Role
from onrig.runtime.record import Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.safety.shield import Shield
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import advance, maths_for
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


def run_of(task: str, options: PlantOptions) -> RunConfig:
    """Load the run that a world is made of, by name or path; raises NoSuchTask."""
    sections: dict[NodePath, type] = {("device", "twin"): TwinOptions, ("learner",): LearnerSettings}
    assignments = [f"{path}={msgspec.json.encode(value).decode()}" for path, value in options.set.items()]
    try:
        config = load_run(task, assignments, sections)
    except ConfigError as error:
        raise NoSuchTask("; ".join(str(problem) for problem in error.problems)) from None
    if config.device.twin is None:
        raise NoSuchTask(f"'{task}' has no twin: give device.twin")
    if config.rig.previous_command:
        raise NoSuchTask(f"worlds do not observe the previous command: rig.previous_command of '{task}' must be false")
    return config


class PlantWorld:
    """A plant for every actor of every trial."""

    def __init__(
        self,
        config: RunConfig,
        seeds: Sequence[int],
        role: Role,
        *,
        actors: int = 1,
        horizon: int | None = None,
        shield: bool = False,
        end_outside: bool = False,
        counts: bool = False,
        plant: Plant | None = None,
    ) -> None:
        """``plant`` takes the place of the twin's; its parameters may be arrays (S,), one for each trial.

        Raises ValueError for limits under which no shield can be built.
        """
        self._seeds, self._role, self._actors = seeds, role, actors
        rig = config.rig
        instruments = Instruments(config, None if plant is None else repeated(plant, actors), counts=counts)
        self._instruments: Final = instruments
        self.spaces: Final = Spaces(instruments.k, instruments.m, None, horizon or instruments.steps)
        self._shape: Final = (len(seeds), actors)
        A = len(seeds) * actors
        self._shields = [Shield(config.limits, rig, instruments.period_s) for _ in range(A)] if shield else []
        self._in_fallback: Final = np.zeros(A, np.bool_)
        at = {o.name: i for i, o in enumerate(rig.observations)}
        envelope = config.limits.envelope if end_outside else {}
        self._ends = [(at[name], e.low, e.high) for name, e in envelope.items()]
        self._safe = np.array([a.safe for a in rig.actuators])
        self._episodes: Final = np.zeros(A, np.int64)
        self._step: Final = np.zeros(A, np.int64)
        noise_steps = self.spaces.horizon + 1 if instruments.is_noisy else 0
        self._noise: Final = np.zeros((A, noise_steps, instruments.n + instruments.m))
        self._state = instruments.start(A)
        self._seen: Final = np.zeros((instruments.reach + 1, A, instruments.n))
        """Normalised observations, the present ones first."""
        delay = instruments.plant.delay_s
        periods = np.zeros(A) if delay is msgspec.UNSET else np.broadcast_to(delay, A) / instruments.period_s
        periods = np.minimum(periods, self.spaces.horizon)  # what takes longer reaches no plant in its episode
        whole = np.floor(periods + 1e-9)
        self._whole: Final = whole.astype(np.int64)
        """Whole periods of delay."""
        self._rest_s: Final = np.maximum(periods - whole, 0.0) * instruments.period_s
        self._commands: Final = np.zeros((int(self._whole.max(initial=0)) + 2, A, instruments.m))
        """Last commands, the newest first."""
        self._sent: Final = np.zeros((A, instruments.m))
        """The command in force, before the actuators' noise: what the shield measures rates from."""
        self._sent_before: Final = np.zeros((A, instruments.m))

    def begin(self, which: Bools) -> Values:
        """Begin the next episode of these actors (S, E); returns the present observations of all, (S, E, n)."""
        chosen, instruments = which.reshape(-1), self._instruments
        start = instruments.start(len(chosen))
        self._state = tuple(np.where(chosen, new, old) for new, old in zip(start, self._state, strict=True))
        for i in np.flatnonzero(chosen).tolist():
            trial, actor = divmod(i, self._actors)
            number = int(self._episodes[i]) * self._actors + actor + 1
            if instruments.is_noisy:
                seed = self._seeds[trial]
                self._noise[i] = instruments.noise(seed, self._role, number, self.spaces.horizon)
            if self._shields:
                self._shields[i].reset()
                self._in_fallback[i] = False
        self._episodes[chosen] += 1
        self._step[chosen] = 0
        self._commands[:, chosen] = self._sent[chosen] = self._sent_before[chosen] = self._safe
        self._seen[:, chosen] = self._observed()[chosen]
        return self._shown()

    def step(self, action: NDArray[np.floating], which: Bools) -> Stepped:
        """One step of these actors (S, E) under actions (S, E, m) in [-1, 1]; ValueError where one is not finite."""
        instruments, chosen = self._instruments, which.reshape(-1)
        wish = np.clip(action.astype(np.float64), -1.0, 1.0).reshape(len(chosen), -1)
        if not np.isfinite(wish).all():
            raise ValueError("an action is not finite")
        intervened, tripped = np.zeros((2, len(chosen)), np.bool_)
        if self._shields:
            wish = wish.copy()
            for i in np.flatnonzero(chosen).tolist():
                intervened[i], tripped[i] = self._guard(i, wish[i])
        wish = instruments.settable(wish)
        self._sent_before[chosen] = self._sent[chosen]
        self._sent[chosen] = instruments.commanded(wish)[chosen]
        moved = wish if not instruments.is_noisy else wish + self._row(self._step)[:, instruments.n :]
        command = instruments.commanded(moved)
        state = self._moved(command, chosen)
        measured = instruments.measured(state)
        reward = np.where(chosen, instruments.reward(measured, command), 0.0)
        terminated = chosen & (instruments.terminated(measured) | self._outside(measured))
        self._state = tuple(np.where(chosen, new, old) for new, old in zip(state, self._state, strict=True))
        self._step[chosen] += 1
        truncated = chosen & (self._step >= self.spaces.horizon) & ~terminated
        self._seen[1:, chosen] = self._seen[:-1, chosen]
        self._seen[0, chosen] = self._observed()[chosen]
        flags = (terminated, truncated, intervened, tripped)
        over, out_of_time, held, fell = (flag.reshape(self._shape) for flag in flags)
        paid, applied = reward.reshape(self._shape), wish.reshape(*self._shape, -1)
        return Stepped(self._shown(), paid, over, out_of_time, applied, held, fell)

    def close(self) -> None:
        """Nothing to release."""

    def _guard(self, i: int, wish: NDArray[np.float64]) -> tuple[bool, bool]:
        """Replace an actor's action by what its shield lets through; returns whether it intervened, and tripped."""
        instruments = self._instruments
        seen = instruments.in_si(self._seen[0, i]).tolist()
        asked = instruments.commanded(wish).tolist()
        verdict = self._shields[i].decide(seen, asked, self._sent[i].tolist(), self._sent_before[i].tolist())
        if verdict.rule is not Rule.NONE:
            wish[:] = instruments.wished(np.array(verdict.action))
        before, self._in_fallback[i] = bool(self._in_fallback[i]), verdict.rule.falls_back
        return verdict.rule is not Rule.NONE, verdict.rule.falls_back and not before

    def _moved(self, command: NDArray[np.float64], chosen: NDArray[np.bool_]) -> tuple[NDArray[np.float64], ...]:
        """States a period later; a command reaches the plant after its delay."""
        commands = self._commands
        commands[1:, chosen] = commands[:-1, chosen]
        commands[0, chosen] = command[chosen]
        instruments = self._instruments
        if len(commands) == 2 and not self._rest_s.any():
            return instruments.moved(self._state, command)
        actor = np.arange(len(chosen))
        before, after = (commands[self._whole + k, actor] for k in (1, 0))
        state = self._state
        for held, duration_s in ((before, self._rest_s), (after, instruments.period_s - self._rest_s)):
            state = advance(instruments.plant, state, tuple(held.T.copy()), duration_s, instruments.substeps)
        return instruments.plant.constrain(maths_for(state[0]), state)

    def _outside(self, measured: NDArray[np.float64]) -> NDArray[np.bool_]:
        outside = np.zeros(len(measured), np.bool_)
        for at, low, high in self._ends:
            outside |= ~((low <= measured[:, at]) & (measured[:, at] <= high))
        return outside

    def _observed(self) -> NDArray[np.float64]:
        """Normalised observations (A, n)."""
        instruments = self._instruments
        noise = self._row(self._step)[:, : instruments.n] if instruments.is_noisy else None
        return instruments.normalised(instruments.measured(self._state), noise)

    def _shown(self) -> Values:
        """What policies see, (S, E, k)."""
        return self._instruments.shown(self._seen).reshape(*self._shape, -1).astype(np.float32)

    def _row(self, step: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(self._noise[np.arange(len(step)), step])


def repeated(plant: Plant, actors: int) -> Plant:
    """Copy of a plant whose parameters are arrays (S,): each trial's for all of its actors, (S * actors,)."""
    arrays = {p.name: np.repeat(p.value, actors) for p in plant.parameters() if np.ndim(p.value)}
    return plant.varied(arrays) if arrays and actors > 1 else plant
