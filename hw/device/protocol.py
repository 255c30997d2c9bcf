"""Protocol layer of a device as a pure state machine in device time: messages in, messages out, no clock, no I/O.

A subclass provides the plant or motor controller.  The shell around it owns the connection and the pacing: it passes
each message with its offset into the current period and calls :meth:`ProtocolDevice.sample` when the period ends.  The
layer follows the rules of ``hw/PROTOCOL.md`` and the *timing rule* (docs/architecture.md).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from onrig.hw import messages as m
from onrig.hw.device.output import Counts, Lease, Output, count_range
from onrig.hw.messages import Fault, MessageType, Op, Result, Status
from onrig.hw.rig import Rig, Sensor

_PAYLOAD_BYTES: Final = {
    Op.DESCRIBE: 1,
    Op.CONFIGURE: m.CONFIGURE_LAYOUT.size,
    Op.LIMITS: m.LIMITS_LAYOUT.size,
    Op.ARM: 0,
    Op.DISARM: 0,
    Op.CLEAR_FAULT: 0,
    Op.RESET: m.RESET_LAYOUT.size,
}


class Offer(NamedTuple):
    """Properties advertised in a device's hello."""

    boot_id: int
    period_min_us: int
    period_max_us: int
    lease_max: int
    """Longest lease, in periods."""
    reset: bool = False
    """Whether the device supports RESET, as simulators do."""
    time_scale: float = 1.0
    """Device seconds per second of the wall clock; 0: lockstep, where a command acts throughout its period."""


class ProtocolDevice:
    """States, lease, faults and answers of one device; a subclass provides sensors and actuators."""

    def __init__(self, rig: Rig, offer: Offer, latency_us: int = 0) -> None:
        """``latency_us``: delay from accepting a command to its effect, in device time."""
        self.rig, self.boot_id = rig, offer.boot_id
        self._offer, self._latency_us = offer, latency_us
        self._estop_pressed = False
        self._state_layout = m.StateLayout(len(rig.sensors), len(rig.actuators))
        self._command_layout = m.CommandLayout(len(rig.actuators))
        self.configurations = 0
        """Number of times CONFIGURE has restarted the sampling grid; the shell restarts its period each time."""
        self._boot()

    @property
    def time_scale(self) -> float:
        """Device seconds per second of the wall clock; 0: lockstep."""
        return self._offer.time_scale

    # -- for subclasses ---------------------------------------------------------------------------------------------

    def _measure(self, *, first: bool) -> Counts | None:
        """Return the sensor counts at the end of the period, or None if they carry no information.

        ``first``: measure the start state instead, after a RESET.
        """
        raise NotImplementedError

    def _cut_period(self, offset_us: int) -> None:
        """End the current period at an offset, without a sample."""

    def _reset_plant(self, seed: int) -> None:
        """Reset the plant with the seed of a RESET."""

    def _actual_period_us(self, period_us: int) -> int:
        """Return the period at which the device actually runs if configured with ``period_us``."""
        return period_us

    def _range_of(self, sensor: Sensor) -> tuple[int, int]:
        """Return the lowest and highest count of a sensor."""
        return count_range(sensor.resolution, sensor.wrap)

    def _may_clear(self) -> bool:
        """Whether the causes of all latched faults are gone."""
        return not self._estop_pressed

    # -- the device ------------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        self.frame = 0
        """Number of the latest state frame; 0 before the first."""
        self.t_us = 0
        """Device time of the latest sample."""
        self.period_us = 0
        """Sampling period; 0 before the first CONFIGURE, when the device takes no samples."""
        self.fault = Fault.NONE
        """The most severe latched fault."""
        self._has_fault_without_code = False
        self.armed = False
        self._lease = Lease()
        self._output = Output(self.rig)
        self._is_frame_answered = self._is_first_sample = False
        self._last_exchange = b"", b""
        """Latest request, and its response, which is sent again if the request is repeated."""

    def reboot(self) -> None:
        """Reboot as after a power dip: the boot id changes and all protocol state is lost, but the plant's is kept."""
        self.boot_id = (self.boot_id + 1) % 2**32
        self._boot()
        self.press_estop(pressed=self._estop_pressed)

    def press_estop(self, *, pressed: bool, offset_us: int = 0) -> None:
        """Set the e-stop input; pressing it latches a fault and switches to the safe output at once."""
        self._estop_pressed = pressed
        if pressed and self.fault < Fault.ESTOP:
            self._latch(Fault.ESTOP)
            self._output.apply_safe(self._within_period(offset_us))

    def latch_fault_without_code(self) -> None:
        """Latch a fault without a code, like firmware that sets only the bit (injected fault)."""
        self._has_fault_without_code = True
        self._disarm(0)

    @property
    def sample_due(self) -> bool:
        """Whether the next sample in lockstep is due, because a command or a reset has arrived."""
        return self.period_us > 0 and (self._is_frame_answered or self._is_first_sample)

    @property
    def _next_frame(self) -> int:
        # 0 means "no frame", so the count wraps to 1.
        return self.frame % 0xFFFFFFFF + 1

    def handle(self, body: bytes, offset_us: int = 0) -> list[bytes]:
        """Process a message (type byte included) that arrives ``offset_us`` into the period; return bodies to send."""
        offset_us = self._within_period(offset_us)
        kind = body[0] if body else 0
        if kind == MessageType.COMMAND:
            self._handle_command(body, offset_us)
        elif kind == MessageType.REQUEST:
            return self._handle_request(body, offset_us)
        elif kind == MessageType.HELLO_REQUEST and len(body) == 1:
            # A new session may start its request ids at the last one of the previous session.
            self._last_exchange = b"", b""
            return [m.encode_hello(self.hello())]
        return []

    def on_link_loss(self, offset_us: int = 0) -> None:
        """Handle a connection closed by the host: an armed device makes its output safe at once and latches LEASE."""
        if self.armed:
            self._latch(Fault.LEASE)
            self._output.apply_safe(self._within_period(offset_us))

    def _within_period(self, offset_us: int) -> int:
        return 0 if self._offer.time_scale == 0 else min(max(offset_us, 0), self.period_us)

    def skip(self, periods: int) -> None:
        """Skip periods in which no sample could be taken; their frames are missing, as if lost in transmission."""
        for _ in range(min(periods, self._lease.periods + 1)):
            if self.armed and self._lease.end_period(self._is_frame_answered):
                self._latch(Fault.LEASE)
                self._output.restart()
            self._is_frame_answered = False
        self.frame = (self.frame + periods - 1) % 0xFFFFFFFF + 1
        self.t_us += periods * self.period_us
        self._output.begin_period(armed=self.armed)

    def sample(self) -> bytes:
        """End the period: measure, update the lease, and return the body of the state frame.

        Raises RuntimeError before the first CONFIGURE, when no period has begun.
        """
        if not self.period_us:
            raise RuntimeError("the device is not configured: send CONFIGURE first")
        output, first = self._output, self._is_first_sample
        sensors = self._measure(first=first)
        self.frame = self._next_frame
        self.t_us += self.period_us
        u_start, end_setpoint, tau_us = output.start.counts, output.end, output.tau_us(self.period_us)
        output.begin_period(armed=self.armed)
        if sensors is None:
            self._latch(Fault.SENSOR)
            output.restart()
        elif self.armed and self._lease.end_period(self._is_frame_answered):
            self._latch(Fault.LEASE)
            output.restart()
        self._is_frame_answered = self._is_first_sample = False
        status = (
            (Status.ARMED if self.armed else 0)
            | (Status.FAULT if self.fault or self._has_fault_without_code else 0)
            | (0 if output.start.answers else Status.SAFE)
            | (Status.CLAMPED if output.start.clamped else 0)
            | (Status.FIRST if first else 0)
        )
        state = m.State(
            frame=self.frame,
            t_us=self.t_us,
            status=status,
            fault=self.fault,
            lease_left=self._lease.remaining_periods,
            answers=end_setpoint.answers,
            tau_us=tau_us,
            sensors=sensors or (0,) * len(self.rig.sensors),
            u_start=u_start,
            u_end=end_setpoint.counts,
        )
        return self._state_layout.encode(state)

    def _latch(self, fault: Fault) -> None:
        # The codes are ordered by severity: the harder a fault is to clear, the higher its code.
        self.fault = max(self.fault, fault)
        self.armed = False

    def _disarm(self, offset_us: int) -> None:
        self.armed = False
        self._output.apply_safe(offset_us)
        self._lease.renew()

    def hello(self) -> m.Hello:
        """Return the device's hello."""
        o = self._offer
        return m.Hello(
            protocol=m.PROTOCOL_VERSION,
            n_sensors=len(self.rig.sensors),
            n_actuators=len(self.rig.actuators),
            rig=self.rig.name,
            capabilities=(m.Capability.RESET if o.reset else 0) | (m.Capability.RELEASES if self.rig.releases else 0),
            boot_id=self.boot_id,
            period_min_us=o.period_min_us,
            period_max_us=o.period_max_us,
            lease_max=o.lease_max,
            time_scale=o.time_scale,
        )

    def _handle_command(self, body: bytes, offset_us: int) -> None:
        try:
            command = self._command_layout.decode(body)
        except m.WireError:
            return
        # One switch per period; a command that does not answer the latest frame is late or older than a reboot.
        if (
            not self.armed
            or self._is_frame_answered
            or self._is_first_sample
            or not self.frame
            or command.answers != self.frame
        ):
            return
        self._is_frame_answered = True
        at_us = 0 if self._offer.time_scale == 0 else offset_us + self._latency_us
        self._output.command(command.values, command.answers, at_us, self.period_us)

    def _handle_request(self, body: bytes, offset_us: int) -> list[bytes]:
        last_request, response = self._last_exchange
        if body == last_request:
            return [response]
        try:
            request = m.decode_request(body)
        except m.WireError:
            return []
        result, payload = self._execute(request, offset_us)
        response = m.encode_response(m.Response(request.id, request.op, result, payload))
        self._last_exchange = body, response
        return [response]

    def _execute(self, request: m.Request, offset_us: int) -> tuple[Result, bytes]:
        try:
            op = Op(request.op)
        except ValueError:
            return Result.UNKNOWN_OP, b""
        if op is Op.RESET and not self._offer.reset:
            return Result.UNKNOWN_OP, b""
        if len(request.payload) != _PAYLOAD_BYTES[op]:
            return Result.BAD_LENGTH, b""
        match op:
            case Op.DESCRIBE:
                return self._describe(request.payload[0])
            case Op.CONFIGURE:
                return self._configure(offset_us, *m.CONFIGURE_LAYOUT.unpack(request.payload)), b""
            case Op.LIMITS:
                return self._limit(*m.LIMITS_LAYOUT.unpack(request.payload)), b""
            case Op.ARM:
                return self._arm(), b""
            case Op.DISARM:
                self._disarm(offset_us)
                return Result.OK, b""
            case Op.CLEAR_FAULT if not self._may_clear():
                return Result.NOT_NOW, b""
            case Op.CLEAR_FAULT:
                self.fault, self._has_fault_without_code = Fault.NONE, False
                self._disarm(offset_us)
                return Result.OK, b""
            case Op.RESET:
                return self._reset(*m.RESET_LAYOUT.unpack(request.payload))

    def _describe(self, index: int) -> tuple[Result, bytes]:
        """Describe a channel: sensors first, then actuators, in the rig's order."""
        n = len(self.rig.sensors)
        if index >= n + len(self.rig.actuators):
            return Result.OUT_OF_RANGE, b""
        if index < n:
            s = self.rig.sensors[index]
            low, high = self._range_of(s)
            return Result.OK, m.encode_channel(m.Channel(False, s.wrap, s.name, s.unit, s.resolution, low, high, 0))
        a = self.rig.actuators[index - n]
        low, high = self._output.device_limits[index - n]
        safe = self._output.safe[index - n]
        return Result.OK, m.encode_channel(m.Channel(True, False, a.name, a.unit, a.resolution, low, high, safe))

    def _configure(self, offset_us: int, period_us: int, lease_periods: int) -> Result:
        o = self._offer
        if not (o.period_min_us <= period_us <= o.period_max_us and 1 <= lease_periods <= o.lease_max):
            return Result.OUT_OF_RANGE
        if self.period_us:
            # The grid restarts here: the current period ends without a sample.
            self._cut_period(offset_us)
            self.t_us += offset_us
        self.armed = False
        self._output = Output(self.rig)
        self._lease = Lease()
        self._lease.periods = lease_periods
        self._is_frame_answered = False
        self.period_us = self._actual_period_us(period_us)
        self.configurations += 1
        return Result.OK

    def _limit(self, index: int, low: int, high: int) -> Result:
        if index >= len(self._output.limits):
            return Result.OUT_OF_RANGE
        device_low, device_high = self._output.device_limits[index]
        if not device_low <= low <= high <= device_high:
            return Result.OUT_OF_RANGE
        self._output.limits[index] = (low, high)
        return Result.OK

    def _arm(self) -> Result:
        if self.fault or self._has_fault_without_code or not self.period_us:
            return Result.NOT_NOW
        self.armed = True
        self._lease.renew()
        return Result.OK

    def _reset(self, seed: int) -> tuple[Result, bytes]:
        if not self.period_us:
            return Result.NOT_NOW, b""
        self._output.restart()
        self._reset_plant(seed)
        self._lease.renew()
        self._is_frame_answered, self._is_first_sample = False, True
        return Result.OK, m.NEXT_FRAME_LAYOUT.pack(self._next_frame)
