"""Damaged messages for both ends of the link.

The rig answers or drops every message, its memory of experiences is unchanged, and its process does not grow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.learner.mirror import Mirror
from onrig.runtime.link.messages import Attach, Feedback, Offer, RequestMessage, Rows, decode_reply, encode
from onrig.runtime.link.server import Ticket
from onrig.runtime.memory.layout import Layout
from onrig.runtime.run_loading import load_run
from onrig.tools.bench.link.rig_end import RigEnd, with_memory
from tests.lab.rig.processes import resident_bytes
from tests.runtime.link.sound_messages import REPLIES, REQUESTS

_EXTREME_VALUES: Final[tuple[object, ...]] = (
    0,
    1,
    -1,
    2**31,
    2**32,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    1e308,
    float("nan"),
    "",
    b"",
    None,
    [],
    {},
)
_CAPACITY: Final = 200
_WARM_UP_FRACTION: Final = 0.2
"""Share of the mutations after which the process has grown to its final size."""


class FuzzResult(NamedTuple):
    """Outcome of the mutations of one type of message."""

    kind: str
    n_mutations: int
    n_refused: int
    """Number answered with a refusal or dropped as invalid."""
    grown_bytes: int
    """Growth of the process, after a fifth of the mutations."""


def requests(model: bytes) -> list[tuple[RequestMessage, list[bytes]]]:
    """One valid request of each type, with its payloads."""
    errors = [np.arange(8, dtype="<i8"), np.ones(8, "<u4"), np.linspace(0, 1, 16).astype("<f4")]
    payloads: dict[type, list[bytes]] = {Feedback: [e.tobytes() for e in errors], Offer: [model]}
    return [(request, payloads.get(type(request), [])) for request in REQUESTS]


def damage_frames(frames: Sequence[bytes], rng: random.Random) -> list[bytes]:
    """Return the frames of a message with some damage."""
    out = list(frames)
    for _ in range(rng.randint(1, 3)):
        k = rng.randrange(len(out)) if out else 0
        match rng.randrange(6):
            case 0 if out:
                out[k] = _damage_bytes(out[k], rng)
            case 1:
                out.insert(k, rng.randbytes(rng.randrange(40)))
            case 2 if out:
                del out[k]
            case 3 if out:
                out[k] = _replace_header_value(out[k], rng)
            case 4 if out:
                out[k] = out[k][: rng.randrange(len(out[k]) + 1)]
            case _:
                rng.shuffle(out)
    return out


def _damage_bytes(data: bytes, rng: random.Random) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        position = rng.randrange(len(raw) + 1)
        match rng.randrange(4):
            case 0:
                raw[position : position + 1] = rng.randbytes(1)
            case 1:
                raw[position:position] = rng.randbytes(rng.randrange(9))
            case 2:
                del raw[position : position + rng.randrange(9)]
            case _:
                raw[position:position] = raw[rng.randrange(len(raw) + 1) :][:64]
    return bytes(raw)


def _replace_header_value(data: bytes, rng: random.Random) -> bytes:
    """Write an extreme value into a field of a header."""
    try:
        fields = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _damage_bytes(data, rng)
    if not isinstance(fields, dict) or not fields:
        return _damage_bytes(data, rng)
    fields[rng.choice(list(fields))] = rng.choice(_EXTREME_VALUES)
    try:
        return msgspec.msgpack.encode(fields)
    except (TypeError, ValueError, OverflowError):
        return _damage_bytes(data, rng)


def fuzz_rig(n_mutations: int, seed: int, folder: Path, model: bytes) -> Iterator[FuzzResult]:
    """Send ``n_mutations`` damaged messages of each type to a rig's end; raises errors that the rig does not handle."""
    config = with_memory(load_run("pendulum"), "TDE(1.0)[Uniform]", _CAPACITY)
    ticket = Ticket(b"\x00peer", b"00000001")
    with RigEnd(config, folder) as end:
        end.fill(_CAPACITY)
        digest_before = end.memory.storage.digest()
        for request, payloads in requests(model):
            rng = random.Random(f"{seed} {type(request).__name__}")
            n_refused = baseline_bytes = 0
            for n in range(n_mutations):
                if n == int(_WARM_UP_FRACTION * n_mutations):
                    baseline_bytes = resident_bytes()
                end.desk.handle(ticket, Attach(session=b"fuzz", role="push"), ())
                frames = damage_frames([encode(request), *payloads], rng)
                n_malformed = end.server.n_malformed
                end.server.handle_message(ticket, frames, end.desk.handle)
                end.desk.feed.take_due_replies()
                n_refused += end.server.n_malformed - n_malformed
            grown_bytes = resident_bytes() - baseline_bytes
            yield FuzzResult(type(request).__name__, n_mutations, n_refused, grown_bytes)
        if end.memory.storage.digest() != digest_before:
            raise AssertionError("a damaged message altered the memory")


def fuzz_learner(n_mutations: int, seed: int) -> Iterator[FuzzResult]:
    """Send ``n_mutations`` damaged replies of each type to a learner's end; raises errors that it does not handle."""
    config = with_memory(load_run("pendulum"), "FIFO[Uniform]", _CAPACITY)
    for reply in REPLIES:
        rng = random.Random(f"{seed} {type(reply).__name__}")
        n_refused = baseline_bytes = 0
        for n in range(n_mutations):
            if n == int(_WARM_UP_FRACTION * n_mutations):
                baseline_bytes = resident_bytes()
            frames = damage_frames([encode(reply)], rng)
            try:
                decode_reply(frames[0] if frames else b"")
            except msgspec.DecodeError:
                n_refused += 1
        yield FuzzResult(type(reply).__name__, n_mutations, n_refused, resident_bytes() - baseline_bytes)
    yield _fuzz_mirror(n_mutations, seed, len(config.rig.signals), len(config.rig.actuators))


def _fuzz_mirror(n_mutations: int, seed: int, n_obs: int, n_act: int) -> FuzzResult:
    source = Mirror(_CAPACITY, Layout(n_obs, n_act), cyclic=False).storage
    row = np.zeros(n_obs, np.float32)
    for slot in range(20):
        source.insert(slot, row, np.zeros(n_act, np.float32), 0.0, row, 0, 1, 0.0)
    payload = source.rows(np.arange(20)).astype("<u4").tobytes()
    rng = random.Random(f"{seed} rows")
    n_refused = baseline_bytes = 0
    mirror = Mirror(_CAPACITY, Layout(n_obs, n_act), cyclic=False)
    for n in range(n_mutations):
        if n == int(_WARM_UP_FRACTION * n_mutations):
            baseline_bytes = resident_bytes()
        position = rng.choice((20, 0, 19, -1, 2**40, mirror.storage.inserted))
        try:
            mirror.apply(
                _damage_bytes(payload, rng) if rng.random() < 0.9 else payload[: rng.randrange(2000)], position
            )
        except ValueError:
            n_refused += 1
        if mirror.storage.inserted:
            mirror = Mirror(_CAPACITY, Layout(n_obs, n_act), cyclic=False)
    return FuzzResult(Rows.__name__, n_mutations, n_refused, resident_bytes() - baseline_bytes)
