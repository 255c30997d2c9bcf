"""Section ``exploration`` of a run: noise process, schedule, and attenuation.

The amplitude of a tick is schedule x near_envelope x back_off x budgets, per actuator (``onrig.runtime.explore``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import AboveZero, Count, PositiveShare, Quantity, Share
from onrig.hw.rig import Rig
from onrig.runtime import registry
from onrig.runtime.config.registered import registered

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SchedulePosition = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
"""Position in a schedule: episodes, steps or seconds."""
Points = tuple[tuple[SchedulePosition, Share], ...]
"""(x, amplitude) points of a schedule, linear in between, constant outside."""

BudgetLimit = Annotated[float, msgspec.Meta(gt=0.0, le=1e12)]
"""Limit of a budget."""
OpenShare = Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]


class NearEnvelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attenuation according to the shield's margin in the previous tick, which is 1 deep inside the envelope and 0 at
    its edge."""

    start: PositiveShare = msgspec.field(default=0.3, name="from")
    """Margin above which the amplitude is not reduced."""
    floor: Share = 0.0
    """Factor at the edge; it increases linearly up to the margin ``from``."""


class BackOff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attenuation after each trip (an entry into the fallback), undone step by step after clean episodes."""

    factor: OpenShare = 0.5
    """Factor per trip."""
    least: OpenShare = 0.1
    """Lower bound of the factor."""
    clean_episodes: Count = 5
    """Number of consecutive noisy training episodes without a trip after which one step is undone."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits per quantity; null for none.  Evaluation episodes count as well, because they also cause wear."""

    interventions: Count | None = None
    """Ticks in which a rule of the shield acted."""
    trips: Count | None = None
    """Entries into the fallback."""
    energy_s: BudgetLimit | None = None
    """Sum over actuators and ticks of (effort / maximum effort)^2 T, with the effort measured from the safe output:
    equivalent to seconds at full effort."""
    wear_strokes: BudgetLimit | None = None
    """Sum over actuators and ticks of ``|a_k - a_{k-1}| / (high - low)`` of the applied actions: equivalent to full
    strokes."""
    driven_s: BudgetLimit | None = None
    """Seconds under command; over an hour this is a duty cycle."""


class TemperatureLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sensor that lowers the amplitude from the reading ``warn`` on and pauses the run at ``limit`` (both in its
    unit)."""

    sensor: str
    """Name of the rig's sensor."""
    warn: Quantity
    """Reading above which the amplitude decreases."""
    limit: Quantity
    """Reading at which the run pauses."""
    cool_s: Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)] = 60.0
    """Length of the pause."""


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on exploration and all other motion of the rig."""

    warn: Share = 0.8
    """Fraction of a budget above which the amplitude is reduced, down to 0 when the budget is spent."""
    episode: Quota = Quota()
    """Budgets per episode; when spent, the episode ends."""
    hour: Quota = Quota()
    """Budgets for any 60 minutes of device time; when spent, the run pauses until enough of it is available again."""
    session: Quota = Quota()
    """Budgets for the session; when spent, the run pauses until a person resumes it, which renews the budget."""
    temperature: TemperatureLimit | None = None


class Quiet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Training episodes without noise: the last ``episodes`` of each cycle of ``every`` episodes."""

    every: Annotated[int, msgspec.Meta(ge=2)]
    """Length of the cycle, in training episodes."""
    episodes: Count = 1
    """Number of quiet episodes at the end of the cycle."""


class ExplorationProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="process"):
    """Base of all exploration processes, with their common settings."""

    title: ClassVar[str]
    """Title in reports."""

    budgets: Budgets = Budgets()

    def describe(self) -> str:
        """Describe the process in one line."""
        return self.title

    def problems(self, rig: Rig) -> Iterator[tuple[str, str]]:
        """List the reasons why the process cannot be used on a rig, as (path in the section, message) pairs."""
        return iter(())


class ScheduledNoise(ExplorationProcess, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of every process that adds noise."""

    over: Literal["episodes", "steps", "seconds"] = "episodes"
    """Unit of the schedule: the number of the training episode, or training steps or seconds so far."""
    amplitude: Points | dict[str, Points] = ((1, 1.0),)
    """One schedule for all actuators, or one per actuator by name."""
    near_envelope: NearEnvelope | None = None
    back_off: BackOff | None = None
    quiet: Quiet | None = None


class ActionNoise(ScheduledNoise, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of every process that adds a signal to the actions; the signal is drawn before the episode."""

    home: ClassVar[str]
    """Module and function called by ``draw``: (settings, generator, steps, dimensions) -> (steps, dimensions)."""

    def draw(self, rng: np.random.Generator, steps: int, dimensions: int) -> NDArray[np.float64]:
        """Draw an episode's signal (steps, dimensions) in normalised units, neither clipped nor scaled."""
        signal: NDArray[np.float64] = registry.import_home(self, self.home)(self, rng, steps, dimensions)
        return signal


def _describe_spread(std: float) -> str:
    clipped_fraction = 1.0 - math.erf(1.0 / (std * math.sqrt(2.0)))
    return f"u has std {std:.3g}, {100 * clipped_fraction:.0f} % of it is clipped"


class OrnsteinUhlenbeck(ActionNoise, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ou"):
    """u(k+1) = u(k) + gain N(0,1) - friction u(k), from 0 in each episode (de Bruin et al. 2018, App. B.2, with theta
    as the gain and sigma as the friction)."""

    title = "Ornstein-Uhlenbeck noise"
    home = "onrig.runtime.explore.noise:ou_signal"

    gain: AboveZero = 5.14
    """Gain on the white noise."""
    friction: Annotated[float, msgspec.Meta(ge=0.0, lt=2.0, description="the process is stable in this interval")] = 0.3
    """Fraction of u lost in each step."""
    amplitude: Points | dict[str, Points] = ((1, 1.0), (500, 0.1))
    """Default from de Bruin et al. 2018, §4."""

    def describe(self) -> str:
        """Describe the recursion, and the fraction clipped."""
        persistence = 1.0 - self.friction
        text = f"u <- {persistence:g} u + {self.gain:g} N(0,1), clipped to [-1, 1], then times the amplitude"
        if abs(persistence) < 1 and self.gain > 0:
            text += f"; {_describe_spread(self.gain / math.sqrt(1.0 - persistence * persistence))}"
        return text


class Gaussian(ActionNoise, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gaussian"):
    """Independent N(0, std) in every step, in normalised units."""

    title = "Gaussian noise"
    home = "onrig.runtime.explore.noise:gaussian_signal"

    std: AboveZero = 0.2
    """Standard deviation, normalised."""

    def describe(self) -> str:
        """Describe the distribution, and the fraction clipped."""
        return f"u = {self.std:g} N(0,1), clipped to [-1, 1], then times the amplitude; {_describe_spread(self.std)}"


class ParameterNoise(ScheduledNoise, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="parameter"):
    """Noise on the policy's weights, drawn at the start of each episode, with adaptive scale (de Bruin et al. 2018,
    §8.5; Plappert et al. 2018).

    The amplitude multiplies the deviation of the perturbed policy's action from the unperturbed policy's action.
    """

    title = "parameter noise"

    target_std: PositiveShare = 0.2
    """Target of the adaptation: root mean square distance in action space, normalised."""
    adapt_every: Count = 50
    """Steps between adaptations."""
    adaption: Annotated[float, msgspec.Meta(gt=1.0, le=2.0)] = 1.01
    """Factor of one adaptation."""

    def describe(self) -> str:
        """Describe the adaptation."""
        return (
            "weights + noise, drawn for each episode, scaled so that the action deviates by "
            f"{self.target_std:g} (rms, normalised): adapted by {self.adaption:g} every {self.adapt_every} steps"
        )


class OwnNoise(ScheduledNoise, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="own"):
    """Noise input of a stochastic policy: N(0, 1) truncated at 3, times the amplitude.

    The policy's distribution scales it further.  With an amplitude below 1, the action follows a narrower distribution
    than the policy's.
    """

    title = "the policy's own noise"

    friction: PositiveShare | UnsetType = UNSET
    """Default 1, white noise; below 1, u <- (1 - friction) u + sqrt(1 - (1 - friction)^2) N(0, 1), which persists over
    steps.  Each u is still N(0, 1), so that every action has the recorded density (the idea of Eberhard et al. 2023,
    whose noise is pink)."""

    def describe(self) -> str:
        """Describe the distribution of the draws."""
        draws = "N(0,1)"
        if self.friction is not UNSET and self.friction < 1.0:
            persistence = 1.0 - self.friction
            draws = f"u <- {persistence:g} u + {math.sqrt(1.0 - persistence * persistence):.3g} N(0,1), which is N(0,1)"
        return f"the policy draws its actions: {draws}, truncated at 3, times the amplitude, times its own spread"


class EpsilonGreedy(ScheduledNoise, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="epsilon_greedy"):
    """Random level that replaces the policy's action in a step, with the amplitude as the probability.

    For policies with discrete actions; the schedule is that of de Bruin et al. 2018, App. B.
    """

    title = "random levels, epsilon-greedily"

    levels: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 15
    """Number of equally likely actions, evenly spaced over the actuator's range; must equal the policy's number of
    actions."""
    amplitude: Points | dict[str, Points] = ((1, 0.7), (500, 0.01))

    def describe(self) -> str:
        """Describe the probability of each level."""
        return f"with the amplitude as probability, one of {self.levels} equally likely levels instead of the action"

    def problems(self, rig: Rig) -> Iterator[tuple[str, str]]:
        """Report a rig with more than one actuator."""
        if len(rig.actuators) != 1:
            actual = f"rig '{rig.name}' has {len(rig.actuators)}"
            yield "process", f"random levels need a rig with one actuator, but {actual}; use process: ou"


class NoExploration(ExplorationProcess, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="none"):
    """No exploration: the policy's action, unchanged."""

    title = "none"

    def describe(self) -> str:
        """State that the action remains unchanged."""
        return "the policy's action, unchanged"


if TYPE_CHECKING:
    Exploration = ExplorationProcess
else:
    Exploration = Annotated[Any, registered(registry.EXPLORATIONS, "process")]
"""An exploration process of the registry."""
