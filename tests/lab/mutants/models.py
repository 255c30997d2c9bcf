"""Mutated models: checked by admission; well-formed ones also run as in the loop.

A model that admission refuses for its form (size, format, operators, contract, shapes) never reaches onnxruntime. A
well-formed one with NaN or excessive outputs is nevertheless run here, as if its outputs became invalid later: tick and
shield must tolerate it, and the policy switch must roll it back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnx

from onrig.hw.messages import State, Status
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.tick import Tick
from onrig.runtime.policy.admission import AdmissionLimits, Refused, admit
from onrig.runtime.policy.contract import METADATA_KEY, PolicyContract, contract_for
from onrig.runtime.policy.probation import ProbationLimits
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.record import Kind, Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment
from onrig.tools.bench.link.rig_end import random_policy
from tests.lab.rig.processes import resident_bytes

Mutate = Callable[[bytes, random.Random], bytes]
HUGE_LENGTHS: Final = [b"\xff", b"\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 10]
INTEGERS: Final = [0, 1, -1, 2, 7, 11, 64, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)]
FLOATS: Final = (0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-42)
TICKS: Final = 4
"""Number of ticks for which each mutant acts."""
_TERMS: Final = ProbationLimits(ticks=TICKS + 1, slow_ns=None, slow_ticks=1, excess_fallback=10.0)
_ACTS: Final = ("admitted", "finite", "bounds", "ports")
_IDS: Final = (0, 1, 2, 1 << 16, (1 << 31) - 2, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, -1, (1 << 63) - 1)
_NAMES: Final = ("", "run", "\x1b[2J\x1b]0;x\x07", "[/x]", "[bold]", "../../etc", "a" * 100_000, "\u202e", "\0")
_SETTLED: Final = 0.2
"""Fraction of the mutants after which the process must not grow."""


class Subject(NamedTuple):
    """Original models, and the configuration of the loop in which mutants act."""

    config: RunConfig
    contract: PolicyContract
    originals: Sequence[bytes]

    @property
    def probes(self) -> npt.NDArray[np.float32]:
        """Probe states of admission."""
        return probe_states(self.contract, 8, seed=0)


def subject() -> Subject:
    """Return policies for the shipped pendulum, in two sizes."""
    config = load_run("pendulum")
    contract = contract_for(config.rig, config.rate_hz, policy_id=1, parent_run="attack", training_step=0)
    return Subject(config, contract, [random_policy(config, contract, seed) for seed in range(2)])


class Outcome(NamedTuple):
    """Outcome of the mutants."""

    verdicts: Counter[str]
    """Number per outcome: ``admitted``, or the stage that refused."""
    acted: int
    rolled_back: int
    unbuilt: int
    """Number admitted that could not be built or run in the loop."""
    grown_bytes: int


def serialized(model: onnx.ModelProto) -> bytes:
    """Serialise the model."""
    return bytes(model.SerializeToString(deterministic=True))


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change bytes anywhere in the model."""
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
    """The message and all messages within it."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "add") else [value]:
                found += messages_in(inner)
    return found


def mutated_fields(data: bytes, rng: random.Random) -> bytes:
    """Change the model at the level of protobuf: dimensions, types, names, operators, order."""
    model = onnx.load_from_string(data)
    names = [name for n in model.graph.node for name in (*n.input, *n.output)]
    operators = [*(n.op_type for n in model.graph.node), "Expand", "Loop", "Range", "Div", "Reshape"]
    message = rng.choice(messages_in(model.graph))
    fields = message.ListFields()
    if not fields:
        return serialized(model)
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
        pass  # the number does not fit the field
    return serialized(model)


def mutated_weights(data: bytes, rng: random.Random) -> bytes:
    """Change weights only: such models are well-formed, whatever their outputs."""
    model = onnx.load_from_string(data)
    for _ in range(rng.choice((1, 2, 8))):
        tensor = rng.choice([t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT])
        array = onnx.numpy_helper.to_array(tensor).copy().reshape(-1)
        array[rng.randrange(array.size)] = rng.choice(FLOATS)
        shape = tuple(tensor.dims)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.reshape(shape), tensor.name))
    return serialized(model)


def mutated_contract(data: bytes, rng: random.Random) -> bytes:
    """Change the model's own contract: its number, its run, its training step."""
    model = onnx.load_from_string(data)
    for prop in model.metadata_props:
        if prop.key == METADATA_KEY:
            contract = msgspec.json.decode(prop.value, type=dict[str, object])
            contract["policy_id"] = rng.choice(_IDS)
            contract["training_step"] = rng.choice(_IDS)
            contract["parent_run"] = rng.choice(_NAMES)
            prop.value = msgspec.json.encode(contract).decode()
    return serialized(model)


MUTATIONS: Final[tuple[Mutate, ...]] = (mutated_bytes, mutated_fields, mutated_weights, mutated_contract)


class Loop:
    """Part of the loop that a policy can affect: slot, switch, tick, shield."""

    def __init__(self, folder: Path, subject: Subject) -> None:
        self._slot = PolicySlot(Segment.create(folder / "slot", SLOT_BYTES, SLOT_SCHEMA))
        self.switch = PolicySwitch(self._slot, _TERMS)
        self._config = subject.config
        self._tick = Tick(subject.config)
        self._frame = 0
        self._offered = 0
        self.take_up(subject.originals[0])
        for _ in range(2 * TICKS):
            self.tick(random.Random(0))

    def _state(self, sensors: tuple[int, ...]) -> State:
        """Return a frame that reports an answered predecessor."""
        n = self._frame
        still = tuple(0 for _ in self._config.rig.actuators)
        return State(n, n * self._config.period_us, Status.ARMED, 0, 5, n - 1, 0, sensors, still, still)

    def take_up(self, model: bytes) -> bool:
        """Publish a policy as the replay process does; returns whether it acts."""
        self._offered += 1
        self._slot.put(self._offered, model)
        self.switch.install_newest()
        return self.switch.policy_id == self._offered

    def tick(self, rng: random.Random) -> None:
        """One tick at a random state; asserts that a valid command would be sent."""
        if self._frame % 1000 == 0:
            signal: list[tuple[float, ...]] = []
            if self._config.stochastic:
                signal = [(rng.uniform(-3.0, 3.0),) for _ in range(1000)]
            self._tick.begin(1, Kind.TRAIN, signal)
        self._frame += 1
        sensors = self._config.rig.sensors
        reach = (4.0, 30.0)
        counts = [round(rng.uniform(-r, r) / s.resolution) for r, s in zip(reach, sensors, strict=True)]
        step = self._tick.observe(self._state((counts[0], counts[1])))
        self._tick.evaluate_policy(step, self.switch.active, self.switch.policy_id)
        self._tick.explore(step)
        self._tick.shield(step)
        actuator = self._config.rig.actuators[0]
        (command,) = step.commanded
        assert isfinite(command)
        assert actuator.low <= command <= actuator.high
        assert all(map(isfinite, step.policy)) or step.rule is Rule.FINITE
        self.switch.record_tick(step.rule, 0)


def campaign(mutants: int, seed: int, mutate: Mutate, folder: Path, subject: Subject) -> Outcome:
    """Check mutants, and run the well-formed ones; raises any error that one causes."""
    rng = random.Random(seed)
    loop = Loop(folder, subject)
    probes = subject.probes
    verdicts: Counter[str] = Counter()
    acted = unbuilt = settled = 0
    limits = AdmissionLimits(latency_is_advisory=True)
    for n in range(mutants):
        if n == int(_SETTLED * mutants):
            settled = resident_bytes()
        model = mutate(rng.choice(subject.originals), rng)
        result = admit(model, subject.contract, probes, limits)
        verdict = result.stage if isinstance(result, Refused) else "admitted"
        verdicts[verdict] += 1
        if isinstance(result, Refused):
            assert 0 < len(result.reason) <= 300
            assert result.reason.isprintable()
        if verdict not in _ACTS:
            continue
        acts = loop.take_up(model)
        acted, unbuilt = acted + acts, unbuilt + (not acts)
        for _ in range(TICKS if acts else 0):
            loop.tick(rng)
    return Outcome(verdicts, acted, loop.switch.n_rollbacks, unbuilt, resident_bytes() - settled)
