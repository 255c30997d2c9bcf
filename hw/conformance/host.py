"""Host side of a device under test: a session, and raw messages on the same transport."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from onrig.hw import messages as m
from onrig.hw.clock import Clock, VirtualClock
from onrig.hw.conformance.wire import RecordingTransport
from onrig.hw.framing import encode_frame
from onrig.hw.messages import Capability, Hello, MessageType, Op, Response, Result, State, Status, contradicts_safe
from onrig.hw.rig import Actuator, Observation, Rig, Sensor
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import LinkError, Transport

Counts = tuple[int, ...]
_LONG_LEASE_PERIODS: Final = 250
_TIMEOUT_NS: Final = 20_000_000_000
_POLL_INTERVAL_NS: Final = 2_000_000
_MAX_TRIES: Final = 200
_N_SETPOINTS: Final = 4
_CHECK_REQUEST_ID_BASE: Final = 0x7000
"""Number above which the checks' request ids start; the session's ids start at 1."""


def _scaled_distance(counts: int, fraction: float) -> int:
    """Scale down a distance in counts, but to no fewer than four; a shorter distance remains unchanged."""
    return min(counts, max(round(counts * fraction), _N_SETPOINTS))


def _is_session_response(body: bytes) -> bool:
    """Whether a frame answers one of the session's own requests rather than one sent by a check."""
    return body[0] == MessageType.RESPONSE and m.decode_response(body).id <= _CHECK_REQUEST_ID_BASE


class Host:
    """Session with a device under test that records all frames and can also send raw messages."""

    def __init__(self, transport: Transport, rig: Rig, clock: Clock, share: float = 1.0) -> None:
        self.rig, self.share = rig, share
        self._transport, self._clock = transport, clock
        self._now_ns = clock.monotonic_ns
        self.wire = RecordingTransport(transport, m.StateLayout(len(rig.sensors), len(rig.actuators)))
        self.session = DeviceSession(self.wire, rig, clock)
        try:
            self.hello: Hello = self.session.connect()
        except BaseException:
            self.session.close()
            raise
        self.channels = self.session.channels
        self._command_layout = m.CommandLayout(len(rig.actuators))
        self._n_waited = 0
        self._request_id = _CHECK_REQUEST_ID_BASE
        self.period_us = 0

    # -- values ----------------------------------------------------------------------------------------------------

    @property
    def lockstep(self) -> bool:
        """Whether the device runs in lockstep, so that its time advances only with commands."""
        return self.hello.time_scale == 0.0

    @property
    def is_virtual(self) -> bool:
        """Whether the host's clock is virtual: time advances only by waiting, so durations are exact."""
        return isinstance(self._clock, VirtualClock)

    @property
    def now_ns(self) -> int:
        """Current time of the host's clock."""
        return self._now_ns()

    @property
    def period_ns(self) -> int:
        """Period in ns of host time; in lockstep, where host time is irrelevant, in ns of device time."""
        return round(self.period_us * 1000 / (self.hello.time_scale or 1.0))

    @property
    def last_frame_before_configure(self) -> int:
        """Number of the last state frame before the last CONFIGURE."""
        return self.wire.last_frame_before_configure

    @property
    def can_reset(self) -> bool:
        """Whether the device is a simulator."""
        return bool(self.hello.capabilities & Capability.RESET)

    @property
    def actuators(self) -> tuple[m.Channel, ...]:
        """Actuators as described by the device."""
        return self.channels[self.hello.n_sensors :]

    @property
    def safe(self) -> Counts:
        """Safe output."""
        return tuple(a.safe for a in self.actuators)

    @property
    def long_lease(self) -> int:
        """Lease, in periods, that outlasts any check; shorter if the device does not accept one that long."""
        return min(_LONG_LEASE_PERIODS, self.hello.lease_max)

    @property
    def command_ranges(self) -> tuple[tuple[int, int], ...]:
        """Lowest and highest command (counts) per actuator: its limits, scaled by ``share`` around the safe output."""
        return tuple(
            (
                a.safe - _scaled_distance(a.safe - a.low, self.share),
                a.safe + _scaled_distance(a.high - a.safe, self.share),
            )
            for a in self.actuators
        )

    def setpoint(self, divisor: int) -> Counts:
        """Return a setpoint between the safe output and the farther end of the command range (2: half way)."""
        ranges = zip(self.actuators, self.command_ranges, strict=True)
        far_limits = [high if high - a.safe >= a.safe - low else low for a, (low, high) in ranges]
        return tuple(a.safe + (end - a.safe) // divisor for a, end in zip(self.actuators, far_limits, strict=True))

    def opposite_setpoint(self, divisor: int) -> Counts:
        """Return a setpoint opposite `setpoint`, equally far from the safe output but clipped to the command ranges."""
        pairs = zip(self.setpoint(divisor), self.actuators, self.command_ranges, strict=True)
        return tuple(min(max(2 * a.safe - count, low), high) for count, a, (low, high) in pairs)

    # -- driving ---------------------------------------------------------------------------------------------------

    def begin(self, period_us: int, lease: int, *, arm: bool = True) -> State:
        """Clear faults, configure the device and, by default, arm it; return the first sample."""
        self.session.clear_fault()
        self.period_us = period_us
        self.session.configure(period_us, lease)
        if arm:
            self.session.arm()
        return self.sample()

    def sample(self) -> State:
        """Return the next sample without sending a command; in lockstep, this takes a reset."""
        if not self.lockstep:
            return self.wait()
        first = self.session.reset(1)
        while (state := self.wait()).frame != first:
            pass
        return state

    def wait(self) -> State:
        """Wait for a state frame that ``wait`` has not yet returned, and return the newest one."""
        self._pump(lambda: self.wire.n_states > self._n_waited and bool(self.wire.states), "state frame")
        self._n_waited = self.wire.n_states
        return self.wire.states[-1]

    def fresh_state(self) -> State:
        """Wait for one more state frame, which reflects all requests answered so far, and return it."""
        if self.lockstep:
            return self.sample()
        start = self.wire.n_states
        self._pump(lambda: self.wire.n_states > start and bool(self.wire.states), "state frame")
        self._n_waited = self.wire.n_states
        return self.wire.states[-1]

    def _pump(self, is_done: Callable[[], bool], subject: str) -> None:
        """Read until ``is_done()``, through the session, so that its decoder never misses part of a frame."""
        deadline_ns = self._now_ns() + _TIMEOUT_NS
        while not is_done():
            assert self._now_ns() < deadline_ns, f"no {subject} arrived"
            self.session.wait_state(self._now_ns() + _POLL_INTERVAL_NS)

    def act(self, state: State, values: Counts) -> State:
        """Command ``values`` in answer to ``state`` or, if the host is late, a later frame; return the resulting frame.

        A command also counts as late if the device accepts it but outputs it only with the next sample (tau = T).
        After each late command the host waits one period longer than after the previous one.  Otherwise a line that
        cannot carry a command per period would fill with commands, each later than the last.
        """
        deadline_ns = self._now_ns() + _TIMEOUT_NS
        for n_tries in range(_MAX_TRIES):
            answers_frame = state.frame
            self.session.send_command(answers_frame, values)
            state = self.wait()
            applied_state = next((s for s in self.wire.states if s.answers == answers_frame), None)
            if (
                applied_state is not None
                and applied_state.frame == answers_frame + 1
                and applied_state.tau_us < self.period_us
            ):
                return applied_state
            if self._now_ns() > deadline_ns:
                break
            if not self.lockstep:
                self.listen(n_tries)
                state = self.wait()
        raise AssertionError(f"none of {n_tries + 1} commands was accepted")

    def wait_for_reboot(self) -> None:
        """Wait for a HELLO with a different boot id; as in a run, request one after each period without a frame."""
        deadline_ns = self._now_ns() + _TIMEOUT_NS
        while not self.session.has_rebooted:
            assert self._now_ns() < deadline_ns, "no HELLO with another boot id arrived"
            if self.session.wait_state(self._now_ns() + self.period_ns) is None:
                self.session.request_hello()

    def listen(self, periods: int) -> None:
        """Read all frames that arrive within a number of periods (of 10 ms each before `begin`)."""
        end_ns = self._now_ns() + periods * (self.period_ns or 10_000_000)
        while self._now_ns() < end_ns:
            self.session.wait_state(end_ns)

    def latest_state(self) -> State:
        """Return the newest state frame read so far."""
        return self.wire.states[-1]

    def reconnect(self) -> Host:
        """Start a new session on the same connection and return its host."""
        return Host(self._transport, self.rig, self._clock, self.share)

    # -- raw messages ----------------------------------------------------------------------------------------------

    def send(self, *bodies: bytes) -> None:
        """Send frames in one write."""
        self.send_raw(b"".join(encode_frame(body) for body in bodies))

    def send_raw(self, data: bytes) -> None:
        """Send bytes."""
        assert self.wire.write(data) == len(data)

    def command(self, answers: int, values: Counts) -> bytes:
        """Return the body of a COMMAND."""
        return self._command_layout.encode(answers, values)

    def replies(self) -> list[bytes]:
        """Send a HELLO_REQUEST and return the frames, other than states, that arrive before its HELLO.

        Responses arrive in order, so a message that has no response by then was ignored.  HELLOs are omitted, and so
        are responses to the session's own requests, which it repeats when the host or the device is late.
        """
        start = len(self.wire.bodies)
        self.send(bytes([MessageType.HELLO_REQUEST]))

        def other_bodies() -> list[bytes]:
            return [body for body in self.wire.bodies[start:] if body[0] != MessageType.STATE]

        self._pump(lambda: any(body[0] == MessageType.HELLO for body in other_bodies()), "HELLO")
        return [body for body in other_bodies() if body[0] != MessageType.HELLO and not _is_session_response(body)]

    def exchange(self, body: bytes) -> Response:
        """Send the body of a REQUEST once, unchanged, and return the response."""
        start = len(self.wire.bodies)
        self.send(body)

        def responses() -> list[bytes]:
            return [body for body in self.wire.bodies[start:] if body[0] == MessageType.RESPONSE]

        self._pump(lambda: bool(responses()), "RESPONSE")
        return m.decode_response(responses()[0])

    def request(self, op: int, payload: bytes = b"") -> bytes:
        """Return the body of a new REQUEST with an id that the session does not use."""
        self._request_id += 1
        return m.encode_request(m.Request(self._request_id, op, payload))

    def result(self, op: int, payload: bytes = b"") -> Result:
        """Send a request and return its result."""
        body = self.request(op, payload)
        response = self.exchange(body)
        assert (response.id, response.op) == (self._request_id, op)
        assert response.result == Result.OK or not response.payload
        return Result(response.result)

    def close(self) -> None:
        """Disarm the device and close the connection."""
        try:
            self.session.disarm()
        except (LinkError, RequestRefused):
            return
        finally:
            self.session.close()


def has_continuous_output(host: Host) -> bool:
    """Whether each period starts with the last output of the previous one, or with the safe output after a SAFE frame.

    Periods separated by a frame that the host did not receive are not compared.
    """
    return all(
        b.u_start == (host.safe if a.status & Status.SAFE else a.u_end)
        for a, b in pairwise(host.wire.states)
        if b.frame == a.frame + 1
    )


def reports_safe_truthfully(host: Host) -> bool:
    """Whether no frame that reports SAFE is contradicted by its own outputs or by the next frame's."""
    states = host.wire.states
    previous = {s.frame: s for s in states}
    return not any(contradicts_safe(s, previous.get(s.frame - 1), host.safe) for s in states)


def read_rig(transport: Transport, clock: Clock, timeout_s: float = 5.0) -> Rig:
    """Read a device's description of its rig.  Raises LinkError, WireError or RequestRefused."""
    session = DeviceSession(transport, Rig("", (), (), ()), clock)
    hello = session.fetch_hello(timeout_s)
    indices = range(hello.n_sensors + hello.n_actuators)
    channels = [m.decode_channel(session.request(Op.DESCRIBE, bytes([index]))) for index in indices]
    sensors = tuple(Sensor(c.name, c.unit, c.resolution, c.wrap) for c in channels if not c.is_actuator)
    return Rig(
        hello.rig,
        sensors,
        tuple(
            Actuator(c.name, c.unit, c.resolution, *(x * c.resolution for x in (c.low, c.high, c.safe)))
            for c in channels
            if c.is_actuator
        ),
        tuple(Observation(s.name, s.unit, -1.0, 1.0) for s in sensors),
        safe_output="released" if hello.capabilities & Capability.RELEASES else "driven",
    )
