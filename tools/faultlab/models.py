"""Mutated models at the ONNX door: judged by admission, and what passes its checks of form taken up as the loop does.

A model that admission refuses for its form (size, format, operators, contract, shapes) never comes near onnxruntime.
One that is sound in form but answers NaN, or too much, is taken up here all the same, as if it had shown that only
later: the tick and its shield have to live with it, and the seat gets rid of it.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple

import onnx

from runtime.control.policy_seat import PolicySeat
from runtime.control.tick import Tick
from runtime.policy.admission import AdmissionLimits, Refused, admit
from runtime.policy.probation import Terms
from runtime.policy.probes import probe_states
from runtime.record import Kind, Rule
from runtime.shm.segment import Segment
from runtime.shm.slot import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from tests.runtime.policy import models
from tests.runtime.samples import PENDULUM, state

Mutate = Callable[[bytes, random.Random], bytes]
PROBES: Final = probe_states(models.CONTRACT, 8, seed=0)
ORIGINALS: Final = [models.serialized(m) for m in (models.policy(hidden=4), models.wide_policy(), models.linear())]
HUGE_LENGTHS: Final = [b"\xff", b"\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 10]
INTEGERS: Final = [0, 1, -1, 2, 7, 11, 64, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)]
FLOATS: Final = (0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-42)
TICKS: Final = 4
"""Ticks in which each of them acts."""
_TERMS: Final = Terms(ticks=TICKS + 1, slow_ns=None, slow_ticks=1, excess_fallback=10.0)
_ACTS: Final = ("admitted", "finite", "bounds")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SETTLED: Final = 0.2
"""Share of the mutants after which the process has grown to its size."""


class Outcome(NamedTuple):
    """What came of the mutants."""

    verdicts: Counter[str]
    """``admitted``, or the stage that refused."""
    acted: int
    rolled_back: int
    unbuilt: int
    """Sound to admission, and yet not to be built or run in the loop."""
    slowest_verdict_ms: float
    slowest_seat_ms: float
    grown_bytes: int


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change the bytes, anywhere."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 6))):
        at, n = rng.randrange(len(out)), rng.choice((1, 4, 40))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            del out[at : at + n]
        elif kind == 3:
            out[at:at] = rng.randbytes(n)
        elif kind == 4:
            out[at : at + 1] = rng.choice(HUGE_LENGTHS)
        else:
            source = rng.randrange(len(out))
            out[at : at + n] = out[source : source + n]
    return bytes(out[: rng.randrange(len(out) + 1)] if rng.random() < 0.1 else out)


def messages_in(message: onnx.ModelProto) -> list[onnx.ModelProto]:
    """The message and all within it."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "add") else [value]:
                found += messages_in(inner)
    return found


def mutated_fields(data: bytes, rng: random.Random) -> bytes:
    """Change the model as protobuf sees it: dimensions, types, names, operators, order."""
    model = onnx.load_from_string(data)
    names = [name for n in model.graph.node for name in (*n.input, *n.output)]
    operators = [*(n.op_type for n in model.graph.node), "Expand", "Loop", "Range", "Div", "Reshape"]
    message = rng.choice(messages_in(model.graph))
    fields = message.ListFields()
    if not fields:
        return models.serialized(model)
    field, value = rng.choice(fields)

    def other(old: object) -> object:
        if isinstance(old, str):
            return rng.choice(operators if field.name == "op_type" else [*names, "", "x"])
        if isinstance(old, bytes):
            return rng.choice((b"", old[:-1], old + bytes(4), rng.randbytes(len(old))))
        if isinstance(old, float):
            return rng.choice((0.0, -1.0, 1e38, float("nan")))
        return rng.choice(INTEGERS)

    try:
        if hasattr(value, "append"):
            at = rng.randrange(len(value))
            if rng.random() < 0.3:
                del value[at]
            elif field.message_type is not None:
                value.append(value[at])
            else:
                value[at] = other(value[at])
        elif field.message_type is not None:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, other(value))
    except ValueError:
        pass  # the field is narrower than the number
    return models.serialized(model)


def mutated_weights(data: bytes, rng: random.Random) -> bytes:
    """Change numbers alone: such models are sound in form, whatever they answer."""
    model = onnx.load_from_string(data)
    for _ in range(rng.choice((1, 2, 8))):
        tensor = rng.choice([t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT])
        array = onnx.numpy_helper.to_array(tensor).copy().reshape(-1)
        array[rng.randrange(array.size)] = rng.choice(FLOATS)
        shape = tuple(tensor.dims)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.reshape(shape), tensor.name))
    return models.serialized(model)


class Loop:
    """The part of the loop that a policy can reach: slot, seat, tick, shield."""

    def __init__(self, folder: Path) -> None:
        self._slot = PolicySlot(Segment.create(folder / "slot", SLOT_BYTES, SLOT_SCHEMA))
        self.seat = PolicySeat(self._slot, _TERMS)
        self._tick = Tick(PENDULUM)
        self._frame = 0
        self._offered = 0
        self.take_up(ORIGINALS[0])
        for _ in range(2 * TICKS):
            self.tick(random.Random(0))

    def take_up(self, model: bytes) -> bool:
        """Hand a policy over as the replay process would; whether it acts now."""
        self._offered += 1
        self._slot.put(self._offered, model)
        self.seat.take_newest()
        return self.seat.policy_id == self._offered

    def tick(self, rng: random.Random) -> None:
        """One tick at some state; asserts that what would go out is a command."""
        if self._frame % 1000 == 0:
            self._tick.begin(1, Kind.TRAIN, [])
        self._frame += 1
        sensors = PENDULUM.rig.sensors
        reach = (4.0, 30.0)
        counts = [round(rng.uniform(-r, r) / s.resolution) for r, s in zip(reach, sensors, strict=True)]
        step = self._tick.observe(state(self._frame, (counts[0], counts[1])))
        self._tick.ask(step, self.seat.active, self.seat.policy_id)
        self._tick.explore(step)
        self._tick.shield(step)
        actuator = PENDULUM.rig.actuators[0]
        (command,) = step.commanded
        assert isfinite(command)
        assert actuator.low <= command <= actuator.high
        assert all(map(isfinite, step.policy)) or step.rule is Rule.FINITE
        self.seat.judge(step.rule, 0)


def campaign(mutants: int, seed: int, mutate: Mutate, folder: Path) -> Outcome:
    """Judge so many mutants, and let those of sound form act; raises what any of them breaks."""
    rng = random.Random(seed)
    loop = Loop(folder)
    verdicts: Counter[str] = Counter()
    acted = unbuilt = settled = 0
    slowest_verdict_s = slowest_seat_s = 0.0
    limits = AdmissionLimits(latency_is_advisory=True)
    for n in range(mutants):
        if n == int(_SETTLED * mutants):
            settled = resident_bytes()
        model = mutate(rng.choice(ORIGINALS), rng)
        start = time.perf_counter()
        result = admit(model, models.CONTRACT, PROBES, limits)
        slowest_verdict_s = max(slowest_verdict_s, time.perf_counter() - start)
        verdict = result.stage if isinstance(result, Refused) else "admitted"
        verdicts[verdict] += 1
        if isinstance(result, Refused):
            assert 0 < len(result.reason) <= 300
            assert result.reason.isprintable()
        if verdict not in _ACTS:
            continue
        start = time.perf_counter()
        acts = loop.take_up(model)
        acted, unbuilt = acted + acts, unbuilt + (not acts)
        for _ in range(TICKS if acts else 0):
            loop.tick(rng)
        slowest_seat_s = max(slowest_seat_s, time.perf_counter() - start)
    return Outcome(
        verdicts,
        acted,
        loop.seat.rolled_back,
        unbuilt,
        1e3 * slowest_verdict_s,
        1e3 * slowest_seat_s,
        resident_bytes() - settled,
    )


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
