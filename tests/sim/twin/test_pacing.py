"""A twin in real time, on a clock that advances only when read or slept on."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw import messages as m
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.messages import Op
from onrig.sim.plants import Pendulum
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.faults import FaultPlan, Kind, ScheduledFault
from onrig.sim.twin.options import TwinOptions
from onrig.sim.twin.pacing import TraceReader, TraceWriter, TwinLoop, hand_over_ns
from tests.sim.twin.bench import AT_REST, RIG

LOOK_NS = 200
"""Duration of one read of the clock."""


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def monotonic_ns(self) -> int:
        self.now_ns += LOOK_NS
        return self.now_ns


class Line:
    """The host's bytes arrive at given times; records when the device's are written.  Sleepers wake up late."""

    def __init__(self, clock: Clock, incoming: list[tuple[int, bytes]], wakes_late_ns: list[int]) -> None:
        self.has_hung_up = False
        self.path = "nowhere"
        self.written: list[tuple[int, bytes]] = []
        self._clock, self._incoming, self._late = clock, incoming, wakes_late_ns

    def read(self, timeout_ns: int) -> bytes:
        clock = self._clock
        until_ns = clock.now_ns + max(0, timeout_ns)
        if self._incoming and self._incoming[0][0] <= until_ns:
            at_ns, data = self._incoming.pop(0)
            clock.now_ns = max(clock.now_ns, at_ns)
            return data
        if timeout_ns > 0:
            clock.now_ns = until_ns + (self._late.pop(0) if self._late else 0)
        return b""

    def write(self, data: bytes) -> None:
        self.written.append((self._clock.now_ns, data))


def requests(*ops: tuple[Op, bytes]) -> bytes:
    return b"".join(
        encode_frame(m.encode_request(m.Request(n + 1, op, payload))) for n, (op, payload) in enumerate(ops)
    )


def run(
    period_us: int,
    frames: int,
    wakes_late_ns: list[int],
    commands: list[tuple[int, int, int]] | None = None,
    trace: TraceWriter | None = None,
) -> tuple[TwinLoop, list[tuple[int, m.State]]]:
    loop, sent = run_whole(period_us, frames, wakes_late_ns, commands, trace)
    layout = m.StateLayout(len(RIG.sensors), len(RIG.actuators))
    return loop, [(at, layout.decode(body)) for at, body in sent if body[0] == m.MessageType.STATE]


def run_whole(
    period_us: int,
    frames: int,
    wakes_late_ns: list[int],
    commands: list[tuple[int, int, int]] | None = None,
    trace: TraceWriter | None = None,
    *,
    faults: FaultPlan | None = None,
    asks: list[tuple[int, Op]] | None = None,
) -> tuple[TwinLoop, list[tuple[int, bytes]]]:
    """A configured and armed twin for a number of frames; commands are (ns after the start, answers, counts)."""
    clock = Clock()
    start_ns = clock.now_ns
    setpoints = m.CommandLayout(len(RIG.actuators))
    incoming = [(start_ns, requests((Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(period_us, 255)), (Op.ARM, b"")))]
    incoming += [(start_ns + at, encode_frame(setpoints.encode(n, (u,)))) for at, n, u in commands or []]
    for id_, (at, op) in enumerate(asks or [], 100):
        incoming.append((start_ns + at, encode_frame(m.encode_request(m.Request(id_, op)))))
    line: Any = Line(clock, incoming, wakes_late_ns)
    device = TwinDevice(RIG, TwinOptions(plant=Pendulum(), faults=faults or FaultPlan()), AT_REST)
    loop = TwinLoop(device, line, lambda: device.frame >= frames, clock, trace)
    loop.run()
    reader = FrameReader()
    return loop, [(at - start_ns, body) for at, data in line.written for body in reader.feed(data)]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 150_000), max_size=60), st.sampled_from([1000, 2000, 20_000]))
def test_frames_are_sent_on_an_exact_grid_however_late_the_twin_wakes_up(
    wakes_late_ns: list[int], period_us: int
) -> None:
    _, sent = run(period_us, 30, wakes_late_ns)
    first = sent[0][0]
    for at_ns, state in sent:
        due_ns = first + (state.frame - 1) * 1000 * period_us
        assert abs(at_ns - due_ns) < 10 * LOOK_NS
        assert state.t_us == state.frame * period_us


@pytest.mark.parametrize(("period_us", "after_ns"), [(20_000, 300_000), (1000, 250_000), (400, 100_000)])
def test_a_frame_is_sent_a_little_after_its_sample(period_us: int, after_ns: int) -> None:
    assert hand_over_ns(1000 * period_us) == after_ns
    # The offset of a command's effect counts from the sample: a command 50 us after the frame shows it.
    came_ns = 3 * 1000 * period_us + after_ns + 50_000
    _, sent = run(period_us, 5, [], [(came_ns, 3, 500)])
    assert sent[2][0] == pytest.approx(came_ns - 50_000, abs=5000)
    assert 1000 * sent[3][1].tau_us == pytest.approx(after_ns + 50_000, abs=5000)


def test_a_stall_shorter_than_a_period_delays_one_frame_and_shifts_nothing() -> None:
    loop, sent = run(1000, 12, [0] * 4 + [800_000])
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(sent)]
    assert loop.n_pauses == 0
    assert max(gaps) > 1_400_000
    assert sent[-1][0] - sent[0][0] == pytest.approx(11_000_000, abs=5000)


def test_a_stall_of_a_period_or_more_stops_the_devices_time() -> None:
    loop, sent = run(1000, 12, [0] * 4 + [3_300_000])
    assert loop.n_pauses == 1
    assert loop.longest_pause_ns == pytest.approx(3_300_000, abs=5000)
    assert [s.frame for _, s in sent] == list(range(1, 13))
    assert [s.t_us for _, s in sent] == [1000 * k for k in range(1, 13)]
    assert sent[-1][0] - sent[0][0] == pytest.approx(11_000_000 + 3_300_000, abs=5000)


def test_its_trace_records_when_each_frame_was_due_and_sent(tmp_path: Path) -> None:
    stalls = [0] * 4 + [800_000] + [0] * 4 + [3_300_000]
    with closing(TraceWriter(tmp_path)) as writer, closing(TraceReader(tmp_path)) as reader:
        loop, sent = run(1000, 16, stalls, trace=writer)
        frames = np.array([s.frame for _, s in sent])
        known, due_ns, sent_ns = reader.times(frames)
        assert not reader.times(frames + 100)[0].any()
    assert known.all()
    start_ns = Clock().now_ns
    assert np.abs(sent_ns - start_ns - [at for at, _ in sent]).max() < 1000
    late_ns, steps_ns = sent_ns - due_ns, np.diff(due_ns)
    assert (loop.n_pauses, int(np.count_nonzero(steps_ns > 4_000_000))) == (1, 1)
    assert np.count_nonzero(np.abs(steps_ns - 1_000_000) > 1000) == 1
    assert np.count_nonzero(late_ns > 10_000) == 1, "the stall that was no pause"


def scheduled(kind: Kind, frame: int, frames: int = 1) -> FaultPlan:
    return FaultPlan(scheduled=(ScheduledFault(kind, frame, frames),))


def test_a_strangers_hello_is_sent_in_addition_to_the_frames() -> None:
    loop, sent = run_whole(1000, 8, [], faults=scheduled("stranger", 4, 2))
    hellos = [m.decode_hello(body) for _, body in sent if body[0] == m.MessageType.HELLO]
    assert [h.boot_id for h in hellos] == [loop._device.boot_id ^ 1] * 2
    assert sum(body[0] == m.MessageType.STATE for _, body in sent) == 8


def test_a_deaf_device_receives_everything_but_disarm() -> None:
    asks = [(4_600_000, Op.DISARM), (5_600_000, Op.ARM), (8_600_000, Op.DISARM)]
    _, sent = run_whole(1000, 12, [], faults=scheduled("deaf", 2, 5), asks=asks)
    answered = [m.decode_response(body).op for _, body in sent if body[0] == m.MessageType.RESPONSE]
    assert answered == [Op.CONFIGURE, Op.ARM, Op.ARM, Op.DISARM]
