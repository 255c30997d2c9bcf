"""The contract in a policy's ONNX metadata, the one that a rig requires, and the refusal of a policy that differs.

A policy is an ONNX graph with one float32 input ``observation`` of shape (1, n) and one float32 output ``action`` of
shape (1, m), both in SI units and in the rig's order: normalisation is part of the graph, so that a policy can be
judged and run without knowledge of its training.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from onrig.hw.rig import Rig

FORMAT_VERSION: Final = 1
METADATA_KEY: Final = "onrig.contract"
INPUT_NAME: Final = "observation"
OUTPUT_NAME: Final = "action"


class Signal(msgspec.Struct, frozen=True):
    """Name, unit and range of one input or output component."""

    name: str
    unit: str
    low: float
    high: float


class PolicyContract(msgspec.Struct, frozen=True):
    """A policy's description of itself, stored as JSON under the metadata key ``onrig.contract``."""

    rig: str
    observations: tuple[Signal, ...]
    actions: tuple[Signal, ...]
    rate_hz: float
    policy_id: int
    """Id given by the sender, for information; the rig assigns its own id to each admitted policy."""
    parent_run: str
    training_step: int
    delay_periods: float = 1.0
    """Delay between sample and effect that the policy was trained for, in periods (at most)."""
    normalisation: str = "baked"
    behaviour: str = "deterministic"
    """Behaviour distribution: only ``deterministic`` so far."""
    format: int = FORMAT_VERSION


def contract_for(rig: Rig, rate_hz: float, *, policy_id: int, parent_run: str, training_step: int) -> PolicyContract:
    """Build the contract that a policy for ``rig`` at ``rate_hz`` must have."""
    return PolicyContract(
        rig=rig.name,
        observations=tuple(Signal(o.name, o.unit, o.low, o.high) for o in rig.signals),
        actions=tuple(Signal(a.name, a.unit, a.low, a.high) for a in rig.actuators),
        rate_hz=rate_hz,
        policy_id=policy_id,
        parent_run=parent_run,
        training_step=training_step,
    )


def encode_contract(contract: PolicyContract) -> str:
    """Serialise a contract for ``metadata_props``."""
    return msgspec.json.encode(contract).decode()


def decode_contract(text: str | bytes) -> PolicyContract:
    """Parse a contract; raises ``msgspec.ValidationError`` or ``msgspec.DecodeError`` with what is wrong."""
    return msgspec.json.decode(text, type=PolicyContract)


def contract_mismatch(offered: PolicyContract, wanted: PolicyContract) -> str | None:
    """Describe the first difference that rules a policy out for a rig, with both values; None if it fits."""
    for field in ("format", "rig", "normalisation", "behaviour"):
        a, b = getattr(offered, field), getattr(wanted, field)
        if a != b:
            return f"{field} is {a!r}, the rig has {b!r}"
    for kind in ("observations", "actions"):
        got: tuple[Signal, ...] = getattr(offered, kind)
        want: tuple[Signal, ...] = getattr(wanted, kind)
        if [s.name for s in got] != [s.name for s in want]:
            return f"{kind} are {[s.name for s in got]}, the rig has {[s.name for s in want]}"
        for g, w in zip(got, want, strict=True):
            if g != w:
                return f"{kind} '{g.name}' is [{g.low}, {g.high}] {g.unit}, the rig has [{w.low}, {w.high}] {w.unit}"
    if abs(offered.rate_hz - wanted.rate_hz) > 1e-9 * wanted.rate_hz:
        return f"rate is {offered.rate_hz} Hz, the rig runs at {wanted.rate_hz} Hz"
    return None


Stage = Literal["size", "format", "operators", "contract", "shapes", "finite", "bounds", "latency", "ids"]
"""The steps of admission in order; ``ids``: none is left."""

MAX_REASON: Final = 300


def one_line(text: str) -> str:
    """Sanitise untrusted text for a log line: its first line, printable characters only, at most 300."""
    first = text.strip().split("\n", 1)[0]
    line = "".join(c if c.isprintable() else "?" for c in first[: MAX_REASON + 1])
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


class ModelRefused(ValueError):
    """Refusal of a model; ``reason`` is one line with figures, ``stage`` the step that refused it."""

    def __init__(self, stage: Stage, reason: str) -> None:
        self.stage: Stage = stage
        self.reason = one_line(reason)
        super().__init__(f"{stage}: {self.reason}")
