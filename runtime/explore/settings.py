"""The section ``exploration`` of a run: which process, how much of it when, and what cuts it back.

The amplitude of a tick is schedule x near_envelope x back_off x budgets, per actuator (``onrig.runtime.explore``).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import Quantity

Advance = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
"""Episodes, steps or seconds; the steps of a run may be many."""
Points = tuple[tuple[Advance, Quantity], ...]
"""(x, amplitude) points of a schedule, linear in between, constant outside."""

Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
"""What a budget counts."""


class NearEnvelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attenuation by the shield's margin of the tick before: 1 deep inside the envelope, 0 at its edge."""

    start: float = msgspec.field(default=0.3, name="from")
    """Margin from which on the amplitude is whole."""
    floor: float = 0.0
    """Factor at the edge; linear in between."""


class BackOff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Less after each trip (an entry into the fallback), step by step more again after clean episodes."""

    factor: float = 0.5
    """Per trip."""
    least: float = 0.1
    """However many trips there were."""
    clean_episodes: int = 5
    """Training episodes in a row with noise and without a trip that take one step back."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much there may be of each; null for any amount.  Evaluation episodes count as well: they wear too."""

    interventions: int | None = None
    """Ticks in which a rule of the shield acted."""
    trips: int | None = None
    """Entries into the fallback."""
    energy_s: Amount | None = None
    """Sum over actuators and ticks of (effort / greatest effort)^2 T, effort measured from the safe output: seconds
    at full effort."""
    wear_strokes: Amount | None = None
    """Sum over actuators and ticks of |a_k - a_{k-1}| / (high - low) of the applied actions: full strokes."""
    driven_s: Amount | None = None
    """Seconds under command; over an hour that is a duty cycle."""


class Temperature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sensor whose reading lowers the amplitude from ``warn`` on and pauses the run at ``limit`` (its unit)."""

    sensor: str
    warn: Quantity
    limit: Quantity
    cool_s: float = 60.0
    """Length of the pause."""


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What exploration, and all else that moves the rig, may cost."""

    warn: float = 0.8
    """Used fraction from which on the amplitude falls, to 0 where the budget is spent."""
    episode: Quota = Quota()
    """Spent: the episode ends."""
    hour: Quota = Quota()
    """Of any 60 minutes of device time; spent: the run pauses until there is room again."""
    session: Quota = Quota()
    """Of the whole run; spent: it pauses until a person resumes it, which opens the budget anew."""
    temperature: Temperature | None = None


class Quiet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last ``episodes`` of each ``every`` training episodes are without noise."""

    every: int
    episodes: int = 1


class Watched(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every process has."""

    budgets: Budgets = Budgets()


class Scheduled(Watched, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every process that adds something has."""

    over: Literal["episodes", "steps", "seconds"] = "episodes"
    """What the amplitude advances over: the number of the training episode, or training steps or seconds so far."""
    amplitude: Points | dict[str, Points] = ((1, 1.0),)
    """One schedule, or one for each actuator by name."""
    near_envelope: NearEnvelope | None = None
    back_off: BackOff | None = None
    quiet: Quiet | None = None


class OrnsteinUhlenbeck(
    Scheduled, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ou", tag_field="process"
):
    """u(k+1) = u(k) + gain N(0,1) - friction u(k), from 0 in each episode (000 App. B.2, METHODS C4)."""

    gain: Quantity = 5.14
    friction: Quantity = 0.3
    amplitude: Points | dict[str, Points] = ((1, 1.0), (500, 0.1))
    """By default that of 000 §4."""


class Gaussian(Scheduled, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gaussian", tag_field="process"):
    """Independent N(0, std) in every step, in normalised units."""

    std: Quantity = 0.2


class ParameterNoise(
    Scheduled, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="parameter", tag_field="process"
):
    """Noise on the policy's weights, drawn at the start of each episode, with adaptive scale (000 §8.5, Plappert 2018).

    The amplitude multiplies how far the perturbed policy's action lies from the policy's.
    """

    target_std: Quantity = 0.2
    """Root mean square of the distance in action space, normalised, that the scale is adapted to."""
    adapt_every: int = 50
    """Steps between adaptions."""
    adaption: float = 1.01
    """Factor of one adaption."""


class NoExploration(Watched, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="none", tag_field="process"):
    """The policy's action as it is."""


Noisy = OrnsteinUhlenbeck | Gaussian | ParameterNoise
Exploration = Noisy | NoExploration
