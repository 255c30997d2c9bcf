"""One library in a process of its own: answers calls on stdin and stdout, a line of JSON each.

Started by :mod:`onrig.tools.benchmarks.workers`, so that no library's threads, allocator or garbage disturb another's
times.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from onrig.tools.benchmarks.cases import Case, Operation
from onrig.tools.benchmarks.gate import CAPACITY, N_ACT, N_OBS, Verdict, gate
from onrig.tools.benchmarks.messages import (
    Call,
    Drop,
    Fill,
    Gate,
    Judged,
    Ready,
    Reply,
    Round,
    Timings,
    Weigh,
    Weighed,
)
from onrig.tools.benchmarks.peers import Buffer, Library, load
from onrig.tools.benchmarks.service import serve
from onrig.tools.benchmarks.timing import Call as Timed
from onrig.tools.benchmarks.timing import measure, measure_beside_stalls, quiet_collector
from onrig.tools.benchmarks.transitions import POOL, errors, td_errors, transitions

_STATM: Final = Path("/proc/self/statm")
_ONCE: Final = 64
"""Capacity of a memory that only makes a library allocate what it allocates once."""


class Worker:
    """Holds the memories that are being measured."""

    def __init__(self, library: Library) -> None:
        self._library: Final = library
        self._buffers: dict[str, Buffer] = {}
        self._next: dict[str, int] = {}

    def answer(self, call: Call) -> Reply:
        """Do what is asked; raises ``Unavailable`` when the library cannot."""
        match call:
            case Gate():
                return Judged(self._judge(call))
            case Weigh():
                return self._weigh(call)
            case Fill():
                self._fill(call)
                return Ready()
            case Round():
                return self._time(call)
            case Drop():
                self._buffers.clear()
                _settle()
                return Ready()

    def _judge(self, call: Gate) -> Verdict:
        buffer = self._library.build(call.kind, N_OBS, N_ACT, CAPACITY, call.seed)
        return gate(call.kind, buffer, call.seed, draws=call.draws)

    def _full(self, call: Fill | Weigh, capacity: int) -> Buffer:
        buffer = self._library.build(call.kind, call.n_obs, call.n_act, capacity, call.seed)
        pool = transitions(POOL, call.n_obs, call.n_act, call.seed)
        td = td_errors(POOL, call.seed)
        for first in range(0, capacity, POOL):
            buffer.extend(pool.part(0, capacity - first))
        for first in range(0, capacity, POOL):
            slots = np.arange(first, min(first + POOL, capacity))
            buffer.assign(slots, td[: len(slots)])
        return buffer

    def _fill(self, call: Fill) -> None:
        buffer = self._full(call, call.capacity)
        pool = transitions(POOL, call.n_obs, call.n_act, call.seed)
        buffer.prepare(pool, errors(POOL, call.capacity, call.seed))
        self._buffers[call.kind] = buffer
        quiet_collector()

    def _weigh(self, call: Weigh) -> Weighed:
        self._full(call, _ONCE)
        _settle()
        before = _resident_bytes()
        buffer = self._full(call, call.capacity)
        _settle()
        after = _resident_bytes()
        return Weighed(None if before is None or after is None else after - before, buffer.array_bytes())

    def _time(self, call: Round) -> Timings:
        case, buffer = call.case, self._buffers[call.kind]
        first = self._next.get(case.name, 0)
        self._next[case.name] = first + call.calls
        indices = [i % POOL for i in range(first, first + call.calls)]
        buffer.begin_round()
        gc.collect()
        if call.beside_stalls:
            beside = measure_beside_stalls(_timed(case, buffer), indices, call.limit_ns)
            return Timings(beside.calls, beside.spans, beside.busy_calls, beside.busy_spans)
        # In the duty cycle every draw follows an update, which may leave work to the draw.
        before = buffer.update if case.after_update else None
        return Timings(measure(_timed(case, buffer), indices, call.limit_ns, before))


def _timed(case: Case, buffer: Buffer) -> Timed:
    match case.operation:
        case Operation.INSERT:
            return buffer.insert
        case Operation.INSERT_DRAWABLE:
            return buffer.insert_drawable
        case Operation.UPDATE:
            return buffer.update
        case Operation.CYCLE:
            return buffer.cycle
        case Operation.SAMPLE:
            sample, size = buffer.sample, case.size
            return lambda _: sample(size)


def _resident_bytes() -> int | None:
    if not _STATM.is_file():
        return None
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _settle() -> None:
    """Collect garbage, and give memory that is free back to the system where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def main(package: str) -> None:
    """Serve until stdin ends."""
    serve(lambda: Worker(load(package)).answer, msgspec.json.Decoder(Call))


if __name__ == "__main__":
    main(sys.argv[1])
