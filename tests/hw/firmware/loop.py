"""The firmware's core with a simulated rig, in the test's process and in virtual time."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

from onrig.hw.clock import VirtualClock
from onrig.hw.transport import LoopbackTransport
from tests.hw.firmware.build import built_with_policy, device_library

_OUT_BYTES: Final = 65536


@functools.cache
def library(*, policy: bool = False) -> ctypes.CDLL:
    """The firmware as a library; ``policy``: with a built-in one."""
    loaded = ctypes.CDLL(str(built_with_policy("onrig-device.so") if policy else device_library()))
    us, loop, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
    loaded.onrig_loop_new.restype = loop
    loaded.onrig_loop_new.argtypes = [ctypes.c_char_p, ctypes.c_float, ctypes.c_uint32]
    loaded.onrig_loop_free.argtypes = [loop]
    loaded.onrig_loop_bytes.restype = loaded.onrig_loop_tick.restype = size
    loaded.onrig_loop_bytes.argtypes = [loop, ctypes.c_char_p, size, us, ctypes.c_char_p]
    loaded.onrig_loop_tick.argtypes = [loop, us, ctypes.c_char_p]
    loaded.onrig_loop_due_us.restype = us
    loaded.onrig_loop_due_us.argtypes = [loop]
    loaded.onrig_loop_estop.argtypes = [loop, ctypes.c_bool, us]
    loaded.onrig_loop_sensors_dead.argtypes = [loop, ctypes.c_bool]
    loaded.onrig_loop_link_lost.argtypes = loaded.onrig_loop_fail.argtypes = [loop, us]
    loaded.onrig_loop_output.argtypes = [loop, ctypes.POINTER(ctypes.c_double)]
    numbers = ctypes.POINTER(ctypes.c_double)
    loaded.onrig_advance.argtypes = [ctypes.c_char_p, numbers, numbers, ctypes.c_double, ctypes.c_uint]
    return loaded


class FirmwareLoop:
    """One device of the firmware; carries bytes and time between it and ``transport``, the host's end.

    ``time_scale`` is device seconds per second of the clock; 0 means lockstep.
    """

    def __init__(
        self, rig: str, clock: VirtualClock, *, time_scale: float = 1.0, boot_id: int = 1, policy: bool = False
    ) -> None:
        self._library, self._clock, self._scale = library(policy=policy), clock, time_scale
        self._rig, self._boot_id, self._since_us = rig, boot_id, 0
        self._loop = self._started()
        self._out = ctypes.create_string_buffer(_OUT_BYTES)
        self.transport = LoopbackTransport(self.hear, self._wait)

    def _started(self) -> int:
        loop = self._library.onrig_loop_new(self._rig.encode(), self._scale, self._boot_id)
        assert loop, f"no rig '{self._rig}' in the firmware"
        return int(loop)

    def restart(self) -> None:
        """Power-cycle: another boot id, as from a counter in flash; device time starts over."""
        self._library.onrig_loop_free(self._loop)
        self._since_us += self.now_us
        self._boot_id += 1
        self._loop = self._started()

    def __del__(self) -> None:
        if self._loop:
            self._library.onrig_loop_free(self._loop)

    @property
    def now_us(self) -> int:
        """Device time."""
        return round(self._clock.now_ns * self._scale) // 1000 - self._since_us

    def hear(self, data: bytes) -> bytes:
        """Pass bytes on at once; returns the device's answer."""
        n = self._library.onrig_loop_bytes(self._loop, data, len(data), self.now_us, self._out)
        return self._out.raw[:n]

    def tick(self) -> bytes:
        """Take the samples that are due; returns what the device sends."""
        n = self._library.onrig_loop_tick(self._loop, self.now_us, self._out)
        return self._out.raw[:n]

    def press_estop(self, *, pressed: bool) -> None:
        self._library.onrig_loop_estop(self._loop, pressed, self.now_us)

    def kill_sensors(self, *, dead: bool) -> None:
        self._library.onrig_loop_sensors_dead(self._loop, dead)

    def on_link_loss(self) -> None:
        self._library.onrig_loop_link_lost(self._loop, self.now_us)

    def fail(self) -> None:
        """Put the board into an impossible state."""
        self._library.onrig_loop_fail(self._loop, self.now_us)

    def output(self, n_actuators: int) -> tuple[float, ...]:
        """Input of the plant (SI)."""
        values = (ctypes.c_double * n_actuators)()
        self._library.onrig_loop_output(self._loop, values)
        return tuple(values)

    def _wait(self, timeout_ns: int) -> bytes:
        clock = self._clock
        due_us = self._library.onrig_loop_due_us(self._loop) if self._scale else 0
        # The first nanosecond of the clock at which the device's microsecond has elapsed.
        due_ns = -int(-((due_us + self._since_us) * 1000) // self._scale) if due_us else 0
        if not due_us or due_ns > clock.now_ns + timeout_ns:
            clock.advance(timeout_ns)
            return b""
        clock.advance(max(due_ns - clock.now_ns, 0))
        return self.tick()
