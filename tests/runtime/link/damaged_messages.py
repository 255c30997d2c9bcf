"""Damaged messages for both ends of the link.

Whatever arrives, the rig answers or drops it, its memory of experiences is unchanged, and its process does not grow.
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

_EXTREMES: Final[tuple[object, ...]] = (
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
_STORED: Final = 200
_SETTLED: Final = 0.2
"""Share of the mutations after which the process has grown to its size."""


class Outcome(NamedTuple):
    """What came of the mutations of one type of message."""

    kind: str
    mutations: int
    refused: int
    """Answered with a refusal, or dropped as no message at all."""
    grown_bytes: int
    """Of the process, from a fifth of the mutations on."""


def requests(model: bytes) -> list[tuple[RequestMessage, list[bytes]]]:
    """One sound request of each type, with its payloads."""
    errors = [np.arange(8, dtype="<i8"), np.ones(8, "<u4"), np.linspace(0, 1, 16).astype("<f4")]
    payloads: dict[type, list[bytes]] = {Feedback: [e.tobytes() for e in errors], Offer: [model]}
    return [(request, payloads.get(type(request), [])) for request in REQUESTS]


def damaged(frames: Sequence[bytes], rng: random.Random) -> list[bytes]:
    """Return the frames of a message with some harm done to them."""
    out = list(frames)
    for _ in range(rng.randint(1, 3)):
        k = rng.randrange(len(out)) if out else 0
        match rng.randrange(6):
            case 0 if out:
                out[k] = _harmed(out[k], rng)
            case 1:
                out.insert(k, rng.randbytes(rng.randrange(40)))
            case 2 if out:
                del out[k]
            case 3 if out:
                out[k] = _with_another_value(out[k], rng)
            case 4 if out:
                out[k] = out[k][: rng.randrange(len(out[k]) + 1)]
            case _:
                rng.shuffle(out)
    return out


def _harmed(data: bytes, rng: random.Random) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(4):
            case 0:
                raw[at : at + 1] = rng.randbytes(1)
            case 1:
                raw[at:at] = rng.randbytes(rng.randrange(9))
            case 2:
                del raw[at : at + rng.randrange(9)]
            case _:
                raw[at:at] = raw[rng.randrange(len(raw) + 1) :][:64]
    return bytes(raw)


def _with_another_value(data: bytes, rng: random.Random) -> bytes:
    """Put an extreme where a field of a header stands."""
    try:
        fields = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _harmed(data, rng)
    if not isinstance(fields, dict) or not fields:
        return _harmed(data, rng)
    fields[rng.choice(list(fields))] = rng.choice(_EXTREMES)
    try:
        return msgspec.msgpack.encode(fields)
    except (TypeError, ValueError, OverflowError):
        return _harmed(data, rng)


def fuzz_rig(mutations: int, seed: int, folder: Path, model: bytes) -> Iterator[Outcome]:
    """Send ``mutations`` damaged messages of each type to a rig's end; raises what it lets through."""
    config = with_memory(load_run("pendulum"), "TDE(1.0)[Uniform]", _STORED)
    ticket = Ticket(b"\x00peer", b"00000001")
    with RigEnd(config, folder) as end:
        end.fill(_STORED)
        before = end.memory.storage.digest()
        for request, payloads in requests(model):
            rng = random.Random(f"{seed} {type(request).__name__}")
            refused = settled = 0
            for n in range(mutations):
                if n == int(_SETTLED * mutations):
                    settled = resident_bytes()
                end.desk.handle(ticket, Attach(session=b"fuzz", role="push"), ())
                frames = damaged([encode(request), *payloads], rng)
                malformed = end.server.n_malformed
                end.server.handle_message(ticket, frames, end.desk.handle)
                end.desk.feed.take_due_replies()
                refused += end.server.n_malformed - malformed
            grown = resident_bytes() - settled
            yield Outcome(type(request).__name__, mutations, refused, grown)
        if end.memory.storage.digest() != before:
            raise AssertionError("a damaged message altered the memory")


def fuzz_learner(mutations: int, seed: int) -> Iterator[Outcome]:
    """Give ``mutations`` damaged replies of each type to a learner's end; raises what it lets through."""
    config = with_memory(load_run("pendulum"), "FIFO[Uniform]", _STORED)
    for reply in REPLIES:
        rng = random.Random(f"{seed} {type(reply).__name__}")
        refused = settled = 0
        for n in range(mutations):
            if n == int(_SETTLED * mutations):
                settled = resident_bytes()
            frames = damaged([encode(reply)], rng)
            try:
                decode_reply(frames[0] if frames else b"")
            except msgspec.DecodeError:
                refused += 1
        yield Outcome(type(reply).__name__, mutations, refused, resident_bytes() - settled)
    yield _fuzz_mirror(mutations, seed, len(config.rig.signals), len(config.rig.actuators))


def _fuzz_mirror(mutations: int, seed: int, n_obs: int, n_act: int) -> Outcome:
    source = Mirror(_STORED, Layout(n_obs, n_act), cyclic=False).storage
    row = np.zeros(n_obs, np.float32)
    for slot in range(20):
        source.insert(slot, row, np.zeros(n_act, np.float32), 0.0, row, 0, 1, 0.0)
    payload = source.rows(np.arange(20)).astype("<u4").tobytes()
    rng = random.Random(f"{seed} rows")
    refused = settled = 0
    mirror = Mirror(_STORED, Layout(n_obs, n_act), cyclic=False)
    for n in range(mutations):
        if n == int(_SETTLED * mutations):
            settled = resident_bytes()
        upto = rng.choice((20, 0, 19, -1, 2**40, mirror.storage.inserted))
        try:
            mirror.apply(_harmed(payload, rng) if rng.random() < 0.9 else payload[: rng.randrange(2000)], upto)
        except ValueError:
            refused += 1
        if mirror.storage.inserted:
            mirror = Mirror(_STORED, Layout(n_obs, n_act), cyclic=False)
    return Outcome(Rows.__name__, mutations, refused, resident_bytes() - settled)
