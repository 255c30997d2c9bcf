"""Fault injection: effects of a bad connection or board on a byte stream, reproducible from a seed.

The injector maps every wire frame, in either direction, to a list of (delay in us, bytes).  It depends on neither the
protocol nor a clock.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import numpy as np

Direction = Literal["to_host", "to_device"]
LineKind = Literal["drop", "corrupt", "delay", "duplicate", "stall", "freeze"]
BoardKind = Literal["reboot", "estop", "stick", "unnamed", "stranger", "deaf"]
Kind = LineKind | BoardKind
Delivery = list[tuple[int, bytes]]

_Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class FaultRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Probability of each fault per wire frame in one direction."""

    drop: _Probability = 0.0
    """Loss of the frame."""
    corrupt: _Probability = 0.0
    """Corruption of one byte of the frame."""
    delay: _Probability = 0.0
    """Arrival ``delay_us`` later."""
    duplicate: _Probability = 0.0
    """Duplicate arrival."""


class ScheduledFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault at a scheduled time: it starts at state frame ``frame`` and lasts for ``frames`` frames."""

    kind: Kind
    """Kind of fault."""
    frame: _Count
    """Number of the first state frame."""
    frames: _Count = 1
    """Number of state frames."""
    direction: Direction | Literal["both"] = "both"
    """Direction of drop, corrupt, delay and duplicate.  A stall always affects both directions, and a reboot happens
    once, on the device.  During a freeze, the host keeps receiving the last state frame before it; during estop, the
    emergency stop is pressed; during stick, the sensors repeat their last reading; during stranger, a hello with a
    different boot id follows every state frame; during deaf, the device does not receive DISARM.  An unnamed fault
    latches once, without a code."""


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults injected into the twin and its connection, at random or at scheduled times."""

    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Seed of the random faults."""
    to_host: FaultRates = FaultRates()
    to_device: FaultRates = FaultRates()
    stall: _Probability = 0.0
    """Probability per state frame that the connection holds everything for ``stall_frames``, then delivers it in one
    burst."""
    stall_frames: _Count = 5
    """Length of a stall."""
    reboot: _Probability = 0.0
    """Probability per state frame that the device reboots with a new boot id, disarmed and unconfigured."""
    rate: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)] | msgspec.UnsetType = msgspec.UNSET
    """Factor on the configured sample rate, also visible in the device's clock.  Omitted from ``config.yaml`` if
    unset."""
    delay_us: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 5_000
    """Delay of a delayed frame, in device time."""
    scheduled: tuple[ScheduledFault, ...] = ()


class FaultInjector:
    """Injector of a plan's faults.

    Call :meth:`begin_frame` for each state frame and :meth:`transform` for each wire frame.
    """

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        device, to_host, to_device = np.random.SeedSequence(plan.seed).spawn(3)
        self._device = np.random.default_rng(device)
        self._line = {"to_host": np.random.default_rng(to_host), "to_device": np.random.default_rng(to_device)}
        self._rates: dict[str, FaultRates] = {"to_host": plan.to_host, "to_device": plan.to_device}
        self._held_frames: dict[str, list[bytes]] = {"to_host": [], "to_device": []}
        self._active_faults: dict[Kind, list[ScheduledFault]] = {}
        self._stall_end_frame = 0
        self._count = 0
        self._last_state_frame = b""

    def is_active(self, kind: Kind) -> bool:
        """Whether a scheduled fault of this kind is active, as of the latest ``begin_frame``."""
        return kind in self._active_faults

    @property
    def latches_without_code(self) -> bool:
        """Whether the device latches a fault without a code at this frame."""
        return any(fault.frame == self._count for fault in self._active_faults.get("unnamed", ()))

    def state_frame(self, data: bytes) -> bytes:
        """Return the wire frame to send for a state frame: itself, or during a freeze the last one before it."""
        if "freeze" in self._active_faults and self._last_state_frame:
            return self._last_state_frame
        self._last_state_frame = data
        return data

    def begin_frame(self) -> bool:
        """Count the device's next state frame (from 1, reboots included); return True if the device reboots."""
        self._count += 1
        n = self._count
        stall, reboot = self._device.random(2)
        self._active_faults = {}
        for fault in self._plan.scheduled:
            if fault.frame <= n < fault.frame + fault.frames:
                self._active_faults.setdefault(fault.kind, []).append(fault)
        if stall < self._plan.stall:
            self._stall_end_frame = max(self._stall_end_frame, n + self._plan.stall_frames)
        for fault in self._active_faults.get("stall", ()):
            self._stall_end_frame = max(self._stall_end_frame, fault.frame + fault.frames)
        is_reboot_scheduled = any(fault.frame == n for fault in self._active_faults.get("reboot", ()))
        return bool(is_reboot_scheduled or reboot < self._plan.reboot)

    def transform(self, direction: Direction, data: bytes) -> Delivery:
        """Return the deliveries for one wire frame, in order."""
        # Each frame takes the same number of draws, so that one fault does not shift the others.
        drop, corrupt, delay, duplicate, position, bits = self._line[direction].random(6)
        rates = self._rates[direction]
        if self._count < self._stall_end_frame:
            self._held_frames[direction].append(data)
            return []
        deliveries = [(0, held_frame) for held_frame in self.release(direction)]
        if drop < rates.drop or self._is_due("drop", direction):
            return deliveries
        if data and (corrupt < rates.corrupt or self._is_due("corrupt", direction)):
            index = int(position * len(data))
            data = data[:index] + bytes([data[index] ^ (1 + int(bits * 255))]) + data[index + 1 :]
        delay_us = self._plan.delay_us if delay < rates.delay or self._is_due("delay", direction) else 0
        copies = 2 if duplicate < rates.duplicate or self._is_due("duplicate", direction) else 1
        return deliveries + [(delay_us, data)] * copies

    def release(self, direction: Direction) -> list[bytes]:
        """Return the wire frames held back by a stall once it is over; empty before."""
        if self._count < self._stall_end_frame:
            return []
        held_frames, self._held_frames[direction] = self._held_frames[direction], []
        return held_frames

    def _is_due(self, kind: Kind, direction: Direction) -> bool:
        return any(f.direction in (direction, "both") for f in self._active_faults.get(kind, ()))
