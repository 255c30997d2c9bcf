"""Pacing of a twin: real time, scaled time or lockstep, with absolute deadlines, so that device time does not drift.

On request, the loop traces when each frame was due and when it was sent.  The frames themselves do not reveal delays,
because device time stops while the twin's process is not scheduled.  The trace is a ring in shared memory; the twin
writes it, and a benchmark reads the entries of the frames that it has just received.
"""

from __future__ import annotations

import heapq
import struct
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from onrig.hw.clock import Clock
from onrig.hw.device.line import Line, SocketLine
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.messages import MessageType, Op, WireError, decode_request, encode_hello
from onrig.runtime.shm.segment import Segment
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.faults import FaultInjector, FaultPlan
from onrig.sim.twin.rendering import TwinCameras

_TRACE_NAME: Final = "sent"
"""Name of the segment, in the run's folder."""
_N_SLOTS: Final = 1 << 14
"""Number of frames that the trace holds: eight seconds at 2 kHz."""
_SCHEMA: Final = "frame u64, due_ns i64, sent_ns i64 of the host's monotonic clock; slot = frame mod 2^14"
_SLOT_FORMAT: Final = struct.Struct("=Qqq")


class TraceWriter:
    """Twin's end of the trace; takes a microsecond per frame."""

    def __init__(self, folder: Path) -> None:
        """Create the trace.  Raises OSError if the shared memory cannot be created."""
        (folder / _TRACE_NAME).unlink(missing_ok=True)
        self._segment = Segment.create(folder / _TRACE_NAME, _N_SLOTS * _SLOT_FORMAT.size, _SCHEMA)

    def record(self, frame: int, due_ns: int, sent_ns: int) -> None:
        """Record a frame that is about to be sent."""
        _SLOT_FORMAT.pack_into(self._segment.body, frame % _N_SLOTS * _SLOT_FORMAT.size, frame, due_ns, sent_ns)

    def close(self) -> None:
        self._segment.close()


class TraceReader:
    """Reader's end of the trace.  Raises SegmentError if no trace exists."""

    def __init__(self, folder: Path) -> None:
        self._segment = Segment.attach(folder / _TRACE_NAME, _SCHEMA)

    def times(self, frames: NDArray[np.integer]) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Return, each of shape (n,): whether a frame's times are known, when it was due, and when it was sent, in ns.

        The times of a frame are known until 2^14 more frames have been sent.
        """
        slots = np.frombuffer(self._segment.body, np.int64).reshape(_N_SLOTS, 3)[frames.astype(np.int64) % _N_SLOTS]
        return slots[:, 0] == frames, slots[:, 1], slots[:, 2]

    def close(self) -> None:
        self._segment.close()


FaultOnDemand = Literal["press", "release", "cut", "connect", "reboot"]
"""Press or release the e-stop, disconnect or reconnect the sensors, power-cycle the device."""
_IDLE_NS: Final = 20_000_000
_HAND_OVER_NS: Final = 300_000
_MAX_HAND_OVER_FRACTION: Final = 0.25
"""Maximum share of a period for handing a frame over."""


def hand_over_ns(period_ns: int) -> int:
    """Return the time from a sample to its frame's first byte, for a twin's period in ns of the host's clock.

    A serial port at 921 600 baud needs about the same time for a frame of 28 bytes.  The delay hides the wake-up jitter
    of this process, which a microcontroller's timer does not have.
    """
    return min(_HAND_OVER_NS, round(_MAX_HAND_OVER_FRACTION * period_ns))


def _is_disarm_request(body: bytes) -> bool:
    try:
        return body[0] == MessageType.REQUEST and decode_request(body).op == Op.DISARM
    except WireError:
        return False


class TwinLoop:
    """Loop that passes bytes between a connection and a device, and advances device time.

    Samples lie on an absolute grid, and each frame is sent a fixed time after its sample.  The loop busy-waits until
    then, because a sleeping thread wakes late: by 60 us at the median and 165 us at p99 as measured, more than the
    tolerance of the loop under test.  If a twin is not scheduled for a complete period, it pauses its device time
    instead of sending a burst, since real hardware would not have been late.  ``n_pauses`` counts these pauses.
    """

    def __init__(
        self,
        device: TwinDevice,
        line: Line | SocketLine,
        stop_requested: Callable[[], bool],
        clock: Clock = time,
        trace: TraceWriter | None = None,
        cameras: TwinCameras | None = None,
    ) -> None:
        self._trace, self._cameras = trace, cameras
        self._pending_faults: deque[FaultOnDemand] = deque()
        self._is_pressed = False
        self._device, self._line, self._stop_requested, self._now_ns = device, line, stop_requested, clock.monotonic_ns
        self._reader = FrameReader()
        plan = device.options.faults
        self._injector = None if plan == FaultPlan() else FaultInjector(plan)
        self._faulty_reader = FrameReader()
        self._delayed_frames: list[tuple[int, int, bool, bytes]] = []
        self._n_delayed = 0
        self.samples = 0
        self.n_pauses = 0
        self.longest_pause_ns = 0

    def inject(self, fault: FaultOnDemand) -> None:
        """Inject a fault at the loop's next poll; safe in a signal handler."""
        self._pending_faults.append(fault)

    def run(self) -> None:
        """Serve until a stop is requested."""
        if self._device.time_scale == 0:
            self._run_lockstep()
        else:
            self._run_paced()

    def _run_lockstep(self) -> None:
        device, line = self._device, self._line
        is_connected = False
        while not self._stop_requested():
            data = line.read(_IDLE_NS)
            if line.has_hung_up and is_connected:
                device.on_link_loss()
            is_connected = not line.has_hung_up
            self._apply_injected_faults(0)
            for body in self._bodies_due(data, 0):
                self._reply(body, 0)
                if device.sample_due:
                    self._emit()

    def _run_paced(self) -> None:
        device, line, now_ns = self._device, self._line, self._now_ns
        scale = device.time_scale
        configurations = device.configurations
        sample_time_ns = now_ns()
        is_connected = False
        while not self._stop_requested():
            current_ns = now_ns()
            period_ns = round(device.period_us * 1000 / scale)
            if device.configurations != configurations:
                configurations = device.configurations
                sample_time_ns = current_ns
            due_ns = sample_time_ns + period_ns if period_ns else current_ns + _IDLE_NS
            if period_ns and current_ns >= due_ns:
                lateness_ns = current_ns - due_ns
                if lateness_ns >= period_ns:
                    self.n_pauses += 1
                    self.longest_pause_ns = max(self.longest_pause_ns, lateness_ns)
                    due_ns = current_ns
                self._emit(due_ns + hand_over_ns(period_ns))
                sample_time_ns = due_ns
                continue
            if self._delayed_frames:
                due_ns = min(due_ns, self._delayed_frames[0][0])
            data = line.read(due_ns - current_ns)
            offset_us = int((now_ns() - sample_time_ns) * scale) // 1000
            if line.has_hung_up and is_connected:
                device.on_link_loss(offset_us)
            is_connected = not line.has_hung_up
            self._apply_injected_faults(offset_us)
            for body in self._bodies_due(data, now_ns()):
                self._reply(body, offset_us)

    def _emit(self, not_before_ns: int = 0) -> None:
        """End the period and send the state frame, as punctually as possible if it is not yet due."""
        if self._injector is not None and self._injector.begin_frame():
            self._reboot()
            return
        self.samples += 1
        injector, device = self._injector, self._device
        if injector is not None:
            device.are_sensors_stuck = injector.is_active("stick")
        frame = encode_frame(device.sample())
        if self._cameras is not None:
            device.show(self._cameras, not_before_ns or self._now_ns())
        if injector is not None:
            frame = injector.state_frame(frame)
            # The fault takes effect after this sample, so this frame is the last one without it.
            device.press_estop(pressed=self._is_pressed or injector.is_active("estop"))
            if injector.latches_without_code:
                device.latch_fault_without_code()
            if injector.is_active("stranger"):
                hello = device.hello()
                frame += encode_frame(encode_hello(hello._replace(boot_id=hello.boot_id ^ 1)))
        while not_before_ns and self._now_ns() < not_before_ns:
            pass
        if self._trace is not None and not_before_ns:
            self._trace.record(self._device.frame, not_before_ns, self._now_ns())
        self._send(frame)

    def _reboot(self) -> None:
        self._device.reboot()
        self._send(encode_frame(encode_hello(self._device.hello())))

    def _apply_injected_faults(self, offset_us: int) -> None:
        device = self._device
        while self._pending_faults:
            match self._pending_faults.popleft():
                case "press" | "release" as fault:
                    self._is_pressed = fault == "press"
                    device.press_estop(pressed=self._is_pressed, offset_us=offset_us)
                case "cut" | "connect" as fault:
                    device.are_sensors_dead = fault == "cut"
                case "reboot":
                    self._reboot()

    def _reply(self, body: bytes, offset_us: int) -> None:
        for reply in self._device.handle(body, offset_us):
            self._send(encode_frame(reply))

    def _send(self, frame: bytes) -> None:
        if self._injector is None:
            self._line.write(frame)
            return
        for delay_us, data in self._injector.transform("to_host", frame):
            if delay_us and self._device.time_scale:
                self._delay(delay_us, True, data)
            else:
                self._line.write(data)

    def _bodies_due(self, data: bytes, now_ns: int) -> list[bytes]:
        """Return the bodies that reach the device now: those just read (after injected faults), and delayed ones."""
        bodies = self._reader.feed(data) if data else []
        if self._injector is None:
            return bodies
        received_bytes = bytearray()
        while self._delayed_frames and self._delayed_frames[0][0] <= now_ns:
            _, _, to_host, frame = heapq.heappop(self._delayed_frames)
            if to_host:
                self._line.write(frame)
            else:
                received_bytes += frame
        for body in bodies:
            for delay_us, frame in self._injector.transform("to_device", encode_frame(body)):
                if delay_us and self._device.time_scale:
                    self._delay(delay_us, False, frame)
                else:
                    received_bytes += frame
        bodies = self._faulty_reader.feed(bytes(received_bytes)) if received_bytes else []
        return [body for body in bodies if not _is_disarm_request(body)] if self._injector.is_active("deaf") else bodies

    def _delay(self, delay_us: int, to_host: bool, frame: bytes) -> None:
        self._n_delayed += 1
        due_ns = self._now_ns() + round(delay_us * 1000 / self._device.time_scale)
        heapq.heappush(self._delayed_frames, (due_ns, self._n_delayed, to_host, frame))
