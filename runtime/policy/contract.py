"""The contract in a policy's ONNX metadata, the contract that a rig requires, and the comparison of the two.

A policy is an ONNX graph from ``observation`` (1, n) to ``action`` (1, m), both float32, in SI units and in the rig's
order.  Normalisation is part of the graph, so a policy can be checked and run without knowing how it was trained.
Format 2 adds ports (``Ports``) for policies that are stochastic or recurrent.  The graph remains a pure function:
random numbers and the hidden state are inputs that the loop supplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from onrig.hw.rig import Observation, Rig

FORMATS: Final = (1, 2)
"""Supported contract formats; format 1 is for policies that are neither stochastic nor recurrent."""
METADATA_KEY: Final = "onrig.contract"
INPUT_NAME: Final = "observation"
OUTPUT_NAME: Final = "action"
NOISE: Final = "noise"
HIDDEN: Final = "hidden"
HIDDEN_OUT: Final = "hidden_out"
NOISE_CUT: Final = 3.0
"""Largest magnitude of a noise input."""

DETERMINISTIC: Final = "deterministic"
GAUSSIAN: Final = "gaussian"
SQUASHED_GAUSSIAN: Final = "squashed_gaussian"
BEHAVIOURS: Final = (DETERMINISTIC, GAUSSIAN, SQUASHED_GAUSSIAN)


class Ports(NamedTuple):
    """Widths of the inputs and outputs of a policy's graph, by name; each is a float32 tensor of shape (1, width)."""

    inputs: dict[str, int]
    outputs: dict[str, int]


def ports_for(n: int, m: int, *, stochastic: bool = False, hidden: int = 0) -> Ports:
    """Return the ports of a policy with ``n`` observations and ``m`` actions; ``hidden``: width of its hidden state, 0
    for none.

    A stochastic policy takes ``noise`` (standard normal, truncated at 3) and also returns the distribution of each
    normalised action: ``drawn`` = ``mean`` + ``std`` noise.  Its ``action`` is ``drawn``, clipped or squashed by a tanh
    and converted to SI units.  A recurrent policy takes as ``hidden`` what it returned as ``hidden_out`` one tick
    earlier.
    """
    inputs, outputs = {INPUT_NAME: n}, {OUTPUT_NAME: m}
    if stochastic:
        inputs |= {NOISE: m}
        outputs |= {"mean": m, "std": m, "drawn": m}
    if hidden:
        inputs |= {HIDDEN: hidden}
        outputs |= {HIDDEN_OUT: hidden}
    return Ports(inputs, outputs)


class Signal(msgspec.Struct, frozen=True):
    """Name, unit and range of one input or output component."""

    name: str
    unit: str
    low: float
    high: float


class PolicyContract(msgspec.Struct, frozen=True):
    """Description of a policy, stored in it as JSON under the metadata key ``onrig.contract``."""

    rig: str
    observations: tuple[Signal, ...]
    actions: tuple[Signal, ...]
    rate_hz: float
    policy_id: int
    """Id assigned by the sender, for information only; the rig assigns its own id to each admitted policy."""
    parent_run: str
    training_step: int
    delay_periods: float = 1.0
    """Maximum delay between sample and effect for which the policy was trained, in periods."""
    normalisation: str = "baked"
    behaviour: str = DETERMINISTIC
    """Distribution of the actions, one of ``BEHAVIOURS``: a Gaussian draw is clipped to [-1, 1], a squashed Gaussian
    draw passes through a tanh."""
    format: int = 1

    @property
    def stochastic(self) -> bool:
        """Whether the policy explores by sampling its actions."""
        return self.behaviour != DETERMINISTIC


def contract_for(
    rig: Rig,
    rate_hz: float,
    *,
    policy_id: int,
    parent_run: str,
    training_step: int,
    behaviour: str = DETERMINISTIC,
    signals: Sequence[Observation] | None = None,
) -> PolicyContract:
    """Build the contract required of a policy for ``rig`` at ``rate_hz``.

    ``signals`` are the policy's inputs (``RunConfig.signals``), by default the rig's signals.  A rig that requires one
    stochastic ``behaviour`` also admits the other.
    """
    inputs = rig.signals if signals is None else signals
    return PolicyContract(
        rig=rig.name,
        observations=tuple(Signal(o.name, o.unit, o.low, o.high) for o in inputs),
        actions=tuple(Signal(a.name, a.unit, a.low, a.high) for a in rig.actuators),
        rate_hz=rate_hz,
        policy_id=policy_id,
        parent_run=parent_run,
        training_step=training_step,
        behaviour=behaviour,
        format=1 if behaviour == DETERMINISTIC else 2,
    )


def encode_contract(contract: PolicyContract) -> str:
    """Serialise a contract for ``metadata_props``."""
    return msgspec.json.encode(contract).decode()


def decode_contract(text: str | bytes) -> PolicyContract:
    """Parse a contract; raises ``msgspec.ValidationError`` or ``msgspec.DecodeError``, which describes the problem."""
    return msgspec.json.decode(text, type=PolicyContract)


def contract_mismatch(offered: PolicyContract, required: PolicyContract) -> str | None:
    """Return a description, with both values, of the first difference that makes a policy unsuitable for a rig; None if
    it is suitable."""
    if offered.format not in FORMATS:
        return f"format is {offered.format}; supported: {FORMATS}"
    for field in ("rig", "normalisation"):
        a, b = getattr(offered, field), getattr(required, field)
        if a != b:
            return f"{field} is {a!r}; the rig has {b!r}"
    behaviour = offered.behaviour
    if behaviour not in BEHAVIOURS:
        return f"behaviour is {behaviour!r}; known: {', '.join(BEHAVIOURS)}"
    if offered.stochastic and offered.format == 1:
        return f"behaviour is {behaviour!r}, which needs format 2"
    if offered.stochastic and not required.stochastic:
        return (
            f"behaviour is {behaviour!r}, but the rig adds its own exploration (a stochastic policy needs process: own)"
        )
    if required.stochastic and not offered.stochastic:
        return f"behaviour is {behaviour!r}, but the rig explores with the policy's own noise (process: own)"
    for kind in ("observations", "actions"):
        offered_signals: tuple[Signal, ...] = getattr(offered, kind)
        required_signals: tuple[Signal, ...] = getattr(required, kind)
        if [s.name for s in offered_signals] != [s.name for s in required_signals]:
            return f"{kind} are {[s.name for s in offered_signals]}; the rig has {[s.name for s in required_signals]}"
        for g, w in zip(offered_signals, required_signals, strict=True):
            if g != w:
                return f"{kind} '{g.name}' is [{g.low}, {g.high}] {g.unit}; the rig has [{w.low}, {w.high}] {w.unit}"
    if abs(offered.rate_hz - required.rate_hz) > 1e-9 * required.rate_hz:
        return f"rate is {offered.rate_hz} Hz; the rig runs at {required.rate_hz} Hz"
    return None


Stage = Literal["size", "format", "operators", "contract", "shapes", "finite", "bounds", "ports", "latency", "ids"]
"""Step that may refuse a policy, in order; ``ids`` means that all policy ids are in use."""

MAX_REASON: Final = 300


def sanitise(text: str) -> str:
    """Sanitise untrusted text for a log line: keep its first line, replace unprintable characters by ``?``, and cut it
    to 300 characters."""
    first = text.strip().split("\n", 1)[0]
    line = "".join(c if c.isprintable() else "?" for c in first[: MAX_REASON + 1])
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


class ModelRefused(ValueError):
    """Refusal of a model; ``reason`` is one line with figures, and ``stage`` is the step that refused it."""

    def __init__(self, stage: Stage, reason: str) -> None:
        self.stage: Stage = stage
        self.reason = sanitise(reason)
        super().__init__(f"{stage}: {self.reason}")
