"""The twin as a pure state machine in device time: messages in, messages out, no clock and no I/O.

The shell around it (``onrig.sim.twin.main``) owns the line and the pacing: it hands over each message with its offset
into the present period and calls :meth:`TwinDevice.sample` when the period ends.  The rules are those of
``onrig.hw.messages``, the *timing rule* and the *lockstep rule* (docs/architecture.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from onrig.hw import messages as m
from onrig.hw.messages import Fault, MessageType, Op, Result, Status
from onrig.hw.rig import Rig
from onrig.sim.plants.integrate import SCALAR, advance
from onrig.sim.plants.trial import PlantFailure
from onrig.sim.twin.channels import DelayLine, Lease, Output, Sensing, count_range
from onrig.sim.twin.options import TwinOptions, twin_problems

_PAYLOAD_BYTES = {
    Op.DESCRIBE: 1,
    Op.CONFIGURE: m.CONFIGURE_LAYOUT.size,
    Op.LIMITS: m.LIMITS_LAYOUT.size,
    Op.ARM: 0,
    Op.DISARM: 0,
    Op.CLEAR_FAULT: 0,
    Op.RESET: m.RESET_LAYOUT.size,
}


class TwinDevice:
    """One simulated device.

    ``start`` is the plant's state at power-on and after each reset, by name (SI).  ``time_scale`` is what the hello
    announces; 0 means lockstep: a command then acts on the full period, whatever its offset.  Raises ValueError when
    plant, rig and start state do not fit together.
    """

    def __init__(self, rig: Rig, options: TwinOptions, start: Mapping[str, float], *, time_scale: float = 1.0) -> None:
        problems = twin_problems(options, rig, start)
        if problems:
            raise ValueError("; ".join(f"{path}: {message}" for path, message in problems))
        self.rig, self.options, self.time_scale = rig, options, time_scale
        self.boot_id = options.boot_id
        self.sensors_stick = False
        """Whether the sensors repeat their last reading (injected fault)."""
        self.sensors_dead = False
        """Whether no sensor can be read (injected fault)."""
        self._estop_pressed = False
        self._start_state = tuple(float(start[name]) for name in options.plant.state_names)
        self._state_layout = m.StateLayout(len(rig.sensors), len(rig.actuators))
        self._command_layout = m.CommandLayout(len(rig.actuators))
        self._resolutions = tuple(a.resolution for a in rig.actuators)
        self._sensing = Sensing(rig, options)
        self._released = options.plant.released()
        self.plant_state = self._start_state
        """State of the plant at the last sample, without noise (SI)."""
        self.configurations = 0
        """Number of restarts of the sampling grid, reboots or not; the shell restarts its period when it changes."""
        self._boot()
        self._delay = self._delay_line()

    def _boot(self) -> None:
        self.frame = 0
        """Number of the latest state frame; 0 before the first."""
        self.t_us = 0
        """Device time of the latest sample."""
        self.period_us = 0
        """0 until configured: the device then samples nothing."""
        self.fault = Fault.NONE
        """The most severe latched fault."""
        self._unnamed = False
        self.armed = False
        self._lease = Lease()
        self._output = Output(self.rig)
        self._read: tuple[int, ...] | None = None
        self._answered = self._first = False
        self._last_request = self._last_response = b""

    def reboot(self) -> None:
        """Reboot as after a power dip: new boot id, all state lost; the plant's state is kept."""
        self.boot_id = (self.boot_id + 1) % 2**32
        self._boot()
        self.press_estop(pressed=self._estop_pressed)

    def press_estop(self, *, pressed: bool, offset_us: int = 0) -> None:
        """The e-stop input, which latches a fault while pressed and makes the output safe at once."""
        self._estop_pressed = pressed
        if pressed and self.fault < Fault.ESTOP:
            self._trip(Fault.ESTOP)
            self._output.fall_safe(self._within_period(offset_us))

    def latch_unnamed(self) -> None:
        """Latch a fault without a code, as firmware may that sets only the bit (injected fault)."""
        self._unnamed = True
        self._disarm(0)

    @property
    def sample_due(self) -> bool:
        """In lockstep: whether the next sample has its command, or follows a reset."""
        return self.period_us > 0 and (self._answered or self._first)

    @property
    def _next_frame(self) -> int:
        # 0 means "no frame", so the count wraps to 1.
        return self.frame % 0xFFFFFFFF + 1

    def handle(self, body: bytes, offset_us: int = 0) -> list[bytes]:
        """Take one message (type byte included) that arrives ``offset_us`` into the period; the bodies to send."""
        offset_us = self._within_period(offset_us)
        kind = body[0] if body else 0
        if kind == MessageType.COMMAND:
            self._command(body, offset_us)
        elif kind == MessageType.REQUEST:
            return self._request(body, offset_us)
        elif kind == MessageType.HELLO_REQUEST and len(body) == 1:
            # A new session may count its requests from where the last one ended.
            self._last_request = b""
            return [m.encode_hello(self.hello())]
        return []

    def link_lost(self, offset_us: int = 0) -> None:
        """Handle a line closed by the host: an armed device goes safe at once and latches the lost-lease fault."""
        if self.armed:
            self._trip(Fault.LEASE)
            self._output.fall_safe(self._within_period(offset_us))

    def _within_period(self, offset_us: int) -> int:
        return 0 if self.time_scale == 0 else min(max(offset_us, 0), self.period_us)

    def sample(self) -> bytes:
        """End the period: advance plant and lease; returns the body of the state frame.

        Raises RuntimeError before the first CONFIGURE, when no period has begun, and PlantFailure.
        """
        if not self.period_us:
            raise RuntimeError("the device is not configured: it has no period yet")
        output, first = self._output, self._first
        if first:
            self.plant_state = self._start_state
        else:
            self._move_plant(self.period_us)
            try:
                self.plant_state = self.options.plant.constrain(SCALAR, self.plant_state)
            except Exception as error:
                raise PlantFailure(self.options.plant, error) from error
        sensors = None if self.sensors_dead else self._sensing.read(self.plant_state)
        if self.sensors_stick and self._read is not None:
            sensors = self._read
        self._read = sensors
        self.frame = self._next_frame
        self.t_us += self.period_us
        u_start, held, tau_us = output.start.counts, output.end, output.tau_us(self.period_us)
        output.begin_period(armed=self.armed)
        if sensors is None:
            self._trip(Fault.SENSOR)
            output.restart()
        elif self.armed and self._lease.end_period(self._answered):
            self._trip(Fault.LEASE)
            output.restart()
        self._answered = self._first = False
        status = (
            (Status.ARMED if self.armed else 0)
            | (Status.FAULT if self.fault or self._unnamed else 0)
            | (0 if output.start.answers else Status.SAFE)
            | (Status.CLAMPED if output.start.clamped else 0)
            | (Status.FIRST if first else 0)
        )
        state = m.State(
            frame=self.frame,
            t_us=self.t_us,
            status=status,
            fault=self.fault,
            lease_left=self._lease.left,
            answers=held.answers,
            tau_us=tau_us,
            sensors=sensors or (0,) * len(self.rig.sensors),
            u_start=u_start,
            u_end=held.counts,
        )
        return self._state_layout.encode(state)

    def _move_plant(self, until_us: int) -> None:
        offsets = self._sensing.actuator_offsets()
        pieces = self._output.pieces(until_us)
        for duration_us, counts in pieces if self._delay is None else self._delay.shift(pieces):
            if counts is None:
                plant, action = self._released, (0.0,) * len(offsets)
            else:
                plant = self.options.plant
                action = tuple([c * r + o for c, r, o in zip(counts, self._resolutions, offsets, strict=True)])
            substeps = math.ceil(self.options.substeps * duration_us / self.period_us)
            try:
                self.plant_state = advance(plant, self.plant_state, action, duration_us * 1e-6, substeps)
            except OverflowError:
                # The parameters are too stiff for the step: the plant has diverged, reported as a sensor fault.
                self.plant_state = (math.nan,) * len(self.plant_state)
            except Exception as error:
                raise PlantFailure(plant, error) from error

    def _delay_line(self) -> DelayLine | None:
        delay_us = round((self.options.plant.delay_s or 0.0) * 1e6)
        return DelayLine(delay_us, self._output.safe) if delay_us else None

    def _trip(self, fault: Fault) -> None:
        # The codes are ordered by severity, that is by who may clear them.
        self.fault = max(self.fault, fault)
        self.armed = False

    def _disarm(self, offset_us: int) -> None:
        self.armed = False
        self._output.fall_safe(offset_us)
        self._lease.renew()

    def hello(self) -> m.Hello:
        """The device's hello."""
        o = self.options
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
            time_scale=self.time_scale,
        )

    def _command(self, body: bytes, offset_us: int) -> None:
        try:
            command = self._command_layout.decode(body)
        except m.WireError:
            return
        # One switch per period; what answers another frame than the latest is late, or meant for another boot.
        if not self.armed or self._answered or self._first or not self.frame or command.answers != self.frame:
            return
        self._answered = True
        at_us = 0 if self.time_scale == 0 else offset_us + self.options.latency_us
        self._output.command(command.values, command.answers, at_us, self.period_us)

    def _request(self, body: bytes, offset_us: int) -> list[bytes]:
        if body == self._last_request:
            return [self._last_response]
        try:
            request = m.decode_request(body)
        except m.WireError:
            return []
        result, payload = self._act(request, offset_us)
        self._last_request = body
        self._last_response = m.encode_response(m.Response(request.id, request.op, result, payload))
        return [self._last_response]

    def _act(self, request: m.Request, offset_us: int) -> tuple[Result, bytes]:
        try:
            op = Op(request.op)
        except ValueError:
            return Result.UNKNOWN_OP, b""
        if op is Op.RESET and not self.options.reset:
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
            case Op.CLEAR_FAULT if self._estop_pressed:
                return Result.NOT_NOW, b""
            case Op.CLEAR_FAULT:
                self.fault, self._unnamed = Fault.NONE, False
                self._disarm(offset_us)
                return Result.OK, b""
            case Op.RESET:
                return self._reset(*m.RESET_LAYOUT.unpack(request.payload))

    def _describe(self, index: int) -> tuple[Result, bytes]:
        """Sensors first, then actuators, in the rig's order."""
        n = len(self.rig.sensors)
        if index >= n + len(self.rig.actuators):
            return Result.OUT_OF_RANGE, b""
        if index < n:
            s = self.rig.sensors[index]
            low, high = count_range(s.resolution, s.wrap)
            return Result.OK, m.encode_channel(m.Channel(False, s.wrap, s.name, s.unit, s.resolution, low, high, 0))
        a = self.rig.actuators[index - n]
        low, high = self._output.own_limits[index - n]
        safe = self._output.safe[index - n]
        return Result.OK, m.encode_channel(m.Channel(True, False, a.name, a.unit, a.resolution, low, high, safe))

    def _configure(self, offset_us: int, period_us: int, lease_periods: int) -> Result:
        o = self.options
        if not (o.period_min_us <= period_us <= o.period_max_us and 1 <= lease_periods <= o.lease_max):
            return Result.OUT_OF_RANGE
        if self.period_us:
            # The grid restarts here: the current period ends without a sample.
            self._move_plant(offset_us)
            self.t_us += offset_us
        self.armed = False
        self._output = Output(self.rig)
        self._lease = Lease()
        self._lease.periods = lease_periods
        self._answered = False
        times = 1.0 if o.faults.rate is msgspec.UNSET else o.faults.rate
        self.period_us = max(round(period_us / times), 1)
        self.configurations += 1
        return Result.OK

    def _limit(self, index: int, low: int, high: int) -> Result:
        if index >= len(self._output.limits):
            return Result.OUT_OF_RANGE
        own_low, own_high = self._output.own_limits[index]
        if not own_low <= low <= high <= own_high:
            return Result.OUT_OF_RANGE
        self._output.limits[index] = (low, high)
        return Result.OK

    def _arm(self) -> Result:
        if self.fault or self._unnamed or not self.period_us:
            return Result.NOT_NOW
        self.armed = True
        self._lease.renew()
        return Result.OK

    def _reset(self, seed: int) -> tuple[Result, bytes]:
        if not self.period_us:
            return Result.NOT_NOW, b""
        self._sensing.reseed(seed)
        self._output.restart()
        self._delay = self._delay_line()
        self._lease.renew()
        self._answered, self._first = False, True
        return Result.OK, m.NEXT_FRAME_LAYOUT.pack(self._next_frame)
