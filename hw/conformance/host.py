"""Host side of a device under test: a session, and messages below it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from onrig.hw import messages as m
from onrig.hw.clock import Clock, VirtualClock
from onrig.hw.conformance.wire import Wire
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
_FIRST_CHECK_REQUEST_ID: Final = 0x7000
"""First request id used by the checks themselves; a session counts from 1."""


def _share_of(counts: int, share: float) -> int:
    """A fraction of a distance in counts, large enough to hold four different setpoints if the distance allows."""
    return min(counts, max(round(counts * share), _N_SETPOINTS))


def _is_session_response(body: bytes) -> bool:
    """Whether a frame answers a request of the session, as opposed to one of the checks."""
    return body[0] == MessageType.RESPONSE and m.decode_response(body).id <= _FIRST_CHECK_REQUEST_ID


class Host:
    """Driver of one device that records and checks its messages closely."""

    def __init__(self, transport: Transport, rig: Rig, clock: Clock, share: float = 1.0) -> None:
        self.rig, self.share = rig, share
        self._transport, self._clock = transport, clock
        self._now_ns = clock.monotonic_ns
        self.wire = Wire(transport, m.StateLayout(len(rig.sensors), len(rig.actuators)))
        self.session = DeviceSession(self.wire, rig, clock)
        try:
            self.hello: Hello = self.session.connect()
        except BaseException:
            self.session.close()
            raise
        self.channels = self.session.channels
        self._commands = m.CommandLayout(len(rig.actuators))
        self._n_waited = 0
        self._request_id = _FIRST_CHECK_REQUEST_ID
        self.period_us = 0

    # -- values ----------------------------------------------------------------------------------------------------

    @property
    def lockstep(self) -> bool:
        """Whether the device waits for its commands."""
        return self.hello.time_scale == 0.0

    @property
    def is_virtual(self) -> bool:
        """Whether the clock is virtual: time advances only by waiting, so durations are exact."""
        return isinstance(self._clock, VirtualClock)

    @property
    def now_ns(self) -> int:
        """Time of the host's clock."""
        return self._now_ns()

    @property
    def period_ns(self) -> int:
        """Period by the host's clock; by the device's own in lockstep, where the host's clock does not apply."""
        return round(self.period_us * 1000 / (self.hello.time_scale or 1.0))

    @property
    def last_before_configure(self) -> int:
        """Number of the last state frame before the last CONFIGURE."""
        return self.wire.last_before_configure

    @property
    def can_reset(self) -> bool:
        """Whether the device is a simulator."""
        return bool(self.hello.capabilities & Capability.RESET)

    @property
    def actuators(self) -> tuple[m.Channel, ...]:
        """The device's own description of its actuators."""
        return self.channels[self.hello.n_sensors :]

    @property
    def safe(self) -> Counts:
        """Safe output."""
        return tuple(a.safe for a in self.actuators)

    @property
    def long_lease(self) -> int:
        """A lease longer than any check, if the device accepts one."""
        return min(_LONG_LEASE_PERIODS, self.hello.lease_max)

    @property
    def command_ranges(self) -> tuple[tuple[int, int], ...]:
        """Lowest and highest command of each actuator: a fraction of the way from its safe output to its limits."""
        return tuple(
            (a.safe - _share_of(a.safe - a.low, self.share), a.safe + _share_of(a.high - a.safe, self.share))
            for a in self.actuators
        )

    def setpoint(self, divisor: int) -> Counts:
        """A setpoint between the safe output and the farther end of the command range (2: half way)."""
        reaches = zip(self.actuators, self.command_ranges, strict=True)
        ends = [high if high - a.safe >= a.safe - low else low for a, (low, high) in reaches]
        return tuple(a.safe + (end - a.safe) // divisor for a, end in zip(self.actuators, ends, strict=True))

    def opposite_setpoint(self, divisor: int) -> Counts:
        """A setpoint as far from the safe output as `setpoint`, on the opposite side, within the command ranges."""
        pairs = zip(self.setpoint(divisor), self.actuators, self.command_ranges, strict=True)
        return tuple(min(max(2 * a.safe - count, low), high) for count, a, (low, high) in pairs)

    # -- driving ---------------------------------------------------------------------------------------------------

    def begin(self, period_us: int, lease: int, *, arm: bool = True) -> State:
        """Bring the device from any state to its first sample after CONFIGURE (and ARM)."""
        self.session.clear_fault()
        self.period_us = period_us
        self.session.configure(period_us, lease)
        if arm:
            self.session.arm()
        return self.sample()

    def sample(self) -> State:
        """Return the next sample without a command; in lockstep this takes a reset."""
        if not self.lockstep:
            return self.wait()
        first = self.session.reset(1)
        while (state := self.wait()).frame != first:
            pass
        return state

    def wait(self) -> State:
        """Return the newest state frame, waiting for one that has not been returned before."""
        self._pump(lambda: self.wire.count > self._n_waited and bool(self.wire.states), "state frame")
        self._n_waited = self.wire.count
        return self.wire.states[-1]

    def fresh_state(self) -> State:
        """Return a state frame sent after everything read so far, which reflects all answered requests."""
        if self.lockstep:
            return self.sample()
        start = self.wire.count
        self._pump(lambda: self.wire.count > start and bool(self.wire.states), "state frame")
        self._n_waited = self.wire.count
        return self.wire.states[-1]

    def _pump(self, is_done: Callable[[], bool], subject: str) -> None:
        """Read until ``is_done``; the session does the reading, so that it never starts in the middle of a frame."""
        limit_ns = self._now_ns() + _TIMEOUT_NS
        while not is_done():
            assert self._now_ns() < limit_ns, f"no {subject} arrived"
            self.session.wait_state(self._now_ns() + _POLL_INTERVAL_NS)

    def act(self, state: State, values: Counts) -> State:
        """Command ``values`` in answer to ``state``, or to a later frame if the host is late; return the resulting
        frame.

        A command also counts as late if the device accepts it but outputs it only with the next sample (tau = T).
        """
        for _ in range(_MAX_TRIES):
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
        raise AssertionError(f"none of {_MAX_TRIES} commands was accepted")

    def wait_for_reboot(self) -> None:
        """Wait for a HELLO from another start, requesting one in each period without a frame, as the loop does."""
        limit_ns = self._now_ns() + _TIMEOUT_NS
        while not self.session.rebooted:
            assert self._now_ns() < limit_ns, "no HELLO from another start arrived"
            if self.session.wait_state(self._now_ns() + self.period_ns) is None:
                self.session.request_hello()

    def listen(self, periods: int) -> None:
        """Read everything that arrives during a number of periods of ``period_us``, or of 10 ms if none was set."""
        until_ns = self._now_ns() + periods * (self.period_ns or 10_000_000)
        while self._now_ns() < until_ns:
            self.session.wait_state(until_ns)

    def latest_state(self) -> State:
        """Return the newest state frame read so far."""
        return self.wire.states[-1]

    def reconnect(self) -> Host:
        """Return another host on the same connection, which has only just connected."""
        return Host(self._transport, self.rig, self._clock, self.share)

    # -- below the session -----------------------------------------------------------------------------------------

    def send(self, *bodies: bytes) -> None:
        """Send frames in one write."""
        self.send_raw(b"".join(encode_frame(body) for body in bodies))

    def send_raw(self, data: bytes) -> None:
        """Send bytes."""
        assert self.wire.write(data) == len(data)

    def command(self, answers: int, values: Counts) -> bytes:
        """Return the body of a COMMAND."""
        return self._commands.encode(answers, values)

    def replies(self) -> list[bytes]:
        """Return all frames other than states that arrive before the answer to a HELLO_REQUEST sent now.

        Answers arrive in order, so a message not answered by then has been ignored.  That HELLO itself is left out,
        and so are answers to the session's requests, which are repeated when host or device is late.
        """
        start = len(self.wire.bodies)
        self.send(bytes([MessageType.HELLO_REQUEST]))

        def other_bodies() -> list[bytes]:
            return [body for body in self.wire.bodies[start:] if body[0] != MessageType.STATE]

        self._pump(lambda: any(body[0] == MessageType.HELLO for body in other_bodies()), "HELLO")
        return [body for body in other_bodies() if body[0] != MessageType.HELLO and not _is_session_response(body)]

    def respond(self, body: bytes) -> Response:
        """Send the body of a REQUEST as it is, once, and return the response."""
        start = len(self.wire.bodies)
        self.send(body)

        def responses() -> list[bytes]:
            return [body for body in self.wire.bodies[start:] if body[0] == MessageType.RESPONSE]

        self._pump(lambda: bool(responses()), "RESPONSE")
        return m.decode_response(responses()[0])

    def request(self, op: int, payload: bytes = b"") -> bytes:
        """Return the body of a REQUEST with an id that the session does not use."""
        self._request_id += 1
        return m.encode_request(m.Request(self._request_id, op, payload))

    def result(self, op: int, payload: bytes = b"") -> Result:
        """Send a request and return its result."""
        body = self.request(op, payload)
        response = self.respond(body)
        assert (response.id, response.op) == (self._request_id, op)
        assert response.result == Result.OK or not response.payload
        return Result(response.result)

    def close(self) -> None:
        """Leave the device disarmed and close the connection."""
        try:
            self.session.disarm()
        except (LinkError, RequestRefused):
            return
        finally:
            self.session.close()


def has_continuous_output(host: Host) -> bool:
    """Whether each period starts with the output at the end of the previous one, or with the safe output if SAFE is
    set.

    Frames that the host did not receive are skipped.
    """
    return all(
        b.u_start == (host.safe if a.status & Status.SAFE else a.u_end)
        for a, b in pairwise(host.wire.states)
        if b.frame == a.frame + 1
    )


def reports_safe_truthfully(host: Host) -> bool:
    """Whether no frame reports SAFE while it, or the next frame, reports another output."""
    states = host.wire.states
    previous = {s.frame: s for s in states}
    return not any(contradicts_safe(s, previous.get(s.frame - 1), host.safe) for s in states)


def rig_of(transport: Transport, clock: Clock, timeout_s: float = 5.0) -> Rig:
    """Return the rig described by a device itself; raises LinkError, WireError or RequestRefused."""
    session = DeviceSession(transport, Rig("", (), (), ()), clock)
    hello = session.ask_hello(timeout_s)
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
