"""Prediction from a sampled barrier: a command needs a sufficient margin in the table of ``onrig safety --barrier``.

Tables can be computed for any plant with up to four states.  The promise rests on plants drawn from the stated
uncertainty, not on a proof (``runtime/SAFETY.md``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from math import inf
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import UNSET, UnsetType

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.hw.roles import observation_of
from onrig.runtime.config.problem import Finding, describe_unknown_name
from onrig.runtime.safety.barrier_file import MAX_COMMANDS, MAX_STATES, Axis, Barrier, read_barrier
from onrig.runtime.safety.fallback import Hold
from onrig.runtime.safety.plant_box import PredictionContext, Sketch, plant_delay_s_of
from onrig.runtime.safety.promise import Basis

Nodes = Annotated[int, msgspec.Meta(ge=2, le=201)]
Interval = tuple[Quantity, Quantity]

_EDGE_TOLERANCE: Final = 1e-9
"""Tolerance for rounding at the end of an axis."""


class SampledBox(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sampled", tag_field="kind", kw_only=True
):
    """Plants whose parameters are drawn from intervals; all envelopes of the limits are guaranteed together."""

    table: str
    """File of the barrier, next to the configuration, as computed by `onrig safety CONFIG --barrier`."""
    place: str
    """Observation of a position or angle, for plots."""
    velocity: str
    """Observation of the rate of ``place``."""
    uncertainty: dict[str, Interval]
    """[low, high] of each uncertain parameter of the plant; the other parameters have the values in ``plant``."""
    plant: dict[str, object] | UnsetType = UNSET
    """Plant, by its ``kind``, as in ``device.twin.plant``; default: the twin's plant.  Required for a device on a
    port."""
    range: dict[str, Interval] = {}
    """Range of the table for each observation.  The default is the observation's envelope or, for an angle that wraps,
    a full turn; for the others it is the range that drawn plants reach from the observation's range."""
    nodes: dict[str, Nodes] = {}
    """Number of nodes in the table for each observation or actuator."""
    horizon_s: Positive = 3.0
    """How long each plant is simulated under the fallback, and how long it is then simulated after the host's death."""
    late_us: int = 1000
    """Longest time from a sample to the effect of its command in ordinary operation; the lease is added to it."""
    plant_delay_us: int | UnsetType = UNSET
    """Longest part of ``late_us`` that passes between the device's output and its effect; it also delays the safe
    output."""
    sensor_error: dict[str, NotNegative] = {}
    """Bound on each observation's error in its unit; default: half a count of its sensor."""
    sha256: str | UnsetType = UNSET
    """Hash of the table, filled in when the configuration is read."""

    promise: ClassVar[Basis] = Basis.SAMPLED
    covers_all: ClassVar[bool] = True
    file_field: ClassVar[str] = "table"
    varying: ClassVar[frozenset[str]] = frozenset()
    spread: ClassVar[float] = 0.0
    nominal: ClassVar[dict[str, float]] = {}

    def findings(self, context: PredictionContext) -> Iterator[Finding]:
        """List the problems in the settings; checking the table requires the plant (``onrig.sim.barrier.contract``)."""
        rig, names = context.rig, [o.name for o in context.rig.observations]
        actuators = [a.name for a in rig.actuators]
        section = "predicted"
        for field, by_observation in (("range", self.range), ("sensor_error", self.sensor_error)):
            for name in by_observation:
                if name not in names:
                    yield (section, field, name), describe_unknown_name(f"rig '{rig.name}'", "observation", name, names)
        for field, name in (("place", self.place), ("velocity", self.velocity)):
            if name not in names:
                yield (section, field), describe_unknown_name(f"rig '{rig.name}'", "observation", name, names)
        for name in self.nodes:
            if name not in (*names, *actuators):
                yield (section, "nodes", name), describe_unknown_name(f"rig '{rig.name}'", "observation", name, names)
        for field, pairs in (("range", self.range), ("uncertainty", self.uncertainty)):
            for name, (low, high) in pairs.items():
                if not low <= high or (field == "range" and low == high):
                    yield (section, field, name), f"expected the lower end first, got {low:g} and {high:g}"
        if len(names) > MAX_STATES or len(actuators) > MAX_COMMANDS:
            counts = f"{len(names)} observations and {len(actuators)} actuators"
            yield (
                (section,),
                f"a table has at most {MAX_STATES} states and {MAX_COMMANDS} commands; this rig has {counts}",
            )
        if not context.envelope:
            yield (section,), "expected an envelope to guarantee (limits.envelope)"
        if isinstance(context.fallback, Hold):
            yield (section,), "expected the fallback 'damp' or 'safe': tables support no other"
        if not 0 <= self.late_us <= round(context.period_s * 1e6):
            yield (section, "late_us"), f"expected 0 to one period ({context.period_s * 1e6:g} us), got {self.late_us}"
        delay_us = round(1e6 * plant_delay_s_of(self))
        if not 0 <= delay_us <= max(self.late_us, 0):
            yield (section, "plant_delay_us"), f"expected 0 to {self.late_us} us (late_us), got {delay_us}"
        for o in rig.observations:
            if o.derivative_of is not None:
                yield (section,), f"'{o.name}' is estimated from differences, but a table needs every state measured"

    def barrier(self) -> Barrier:
        """Read the table; raises ValueError."""
        return read_barrier(self.table, "" if self.sha256 is UNSET else self.sha256)

    def prediction(self, context: PredictionContext) -> SampledPrediction:
        """Read the table; raises ValueError if it is missing, invalid, or was computed for different signals."""
        barrier = self.barrier()
        rig, header = context.rig, barrier.header
        signals = {o.name for o in rig.observations}, {a.name for a in rig.actuators}
        if ({a.name for a in header.states}, {a.name for a in header.commands}) != signals:
            raise ValueError(f"'{self.table}' was computed for a rig with other signals: compute it again")
        return SampledPrediction(barrier, context)

    def sketch(self) -> Sketch:
        """Return a drawing that plots the velocity over the position."""
        return {"kind": "phase", "x": self.place, "y": self.velocity}


class SampledPrediction:
    """Multilinear interpolation in the table, by observation and command.

    Margins are relative to the largest margin in the table.
    """

    def __init__(self, barrier: Barrier, context: PredictionContext) -> None:
        rig, header = context.rig, barrier.header
        self.states = header.states
        """Axes of the observations."""
        self._table, self._slack = array("d", barrier.values.astype("f8").tobytes()), header.slack
        observations = [o.name for o in rig.observations]
        actuators = [a.name for a in rig.actuators]
        strides, stride = [], 1
        for axis in reversed(header.axes):
            strides.append(stride)
            stride *= axis.nodes
        strides.reverse()
        n = len(header.states)
        self._states = [
            (observations.index(axis.name), *_axis_parameters(axis, step))
            for axis, step in zip(header.states, strides[:n], strict=True)
        ]
        self._commands = [
            (actuators.index(axis.name), *_axis_parameters(axis, step))
            for axis, step in zip(header.commands, strides[n:], strict=True)
        ]
        # The last axis varies fastest, so neighbours in the list differ along it.
        corners = [0]
        for step in strides:
            corners = [corner + offset for corner in corners for offset in (0, step)]
        self._corners = tuple(corners)
        observation = observation_of(rig, next(iter(context.envelope)))
        assert observation is not None
        envelope = context.envelope[observation.name]
        self._per_margin = (envelope.high - envelope.low) / (observation.high - observation.low)
        self._full_margin = max(float(barrier.values.max()) - header.slack, 1e-6)

    def evaluate(self, observation: Sequence[float], action: Sequence[float]) -> tuple[float, float]:
        """See :class:`onrig.runtime.safety.plant_box.Prediction`; in a state outside the table, refuse every
        command."""
        offset, weights = 0, []
        for index, low, per_unit, last_node, step in self._states:
            t = (observation[index] - low) * per_unit
            if not -_EDGE_TOLERANCE <= t <= last_node + _EDGE_TOLERANCE:
                return (abs(t - 0.5 * last_node) / (0.5 * last_node) - 1.0 if t == t else inf), 0.0
            i = int(t) if t < last_node else last_node - 1
            offset += i * step
            weights.append(t - i)
        for index, low, per_unit, last_node, step in self._commands:
            t = (action[index] - low) * per_unit
            t = 0.0 if t < 0.0 else last_node if t > last_node else t
            i = int(t) if t < last_node else last_node - 1
            offset += i * step
            weights.append(t - i)
        table = self._table
        values = [table[offset + corner] for corner in self._corners]
        for w in reversed(weights):
            values = [a + w * (b - a) for a, b in zip(values[::2], values[1::2], strict=True)]
        margin = values[0] - self._slack
        if margin < 0.0:
            return -margin * self._per_margin, 0.0
        return 0.0, min(margin / self._full_margin, 1.0)


def _axis_parameters(axis: Axis, stride: int) -> tuple[float, float, int, int]:
    """Return an axis's lowest value, nodes per unit, last node, and stride in the table."""
    last_node = axis.nodes - 1
    return axis.low, last_node / (axis.high - axis.low), last_node, stride
