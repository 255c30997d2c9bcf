"""The host of the conformance checks, on a line that is slower than a cable."""

from __future__ import annotations

from onrig.hw.clock import VirtualClock
from onrig.hw.conformance.host import Host
from onrig.hw.transport import Transport
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.sim.twin.main import twin_options
from onrig.tools.load import load

CONFIG = load("pendulum", [])
PERIOD_US = 10_000
TRANSFER_NS = 9_900_000
"""Time that a write takes on the line: nearly a period."""


class SlowLine:
    """Line that carries one write at a time, each in ``TRANSFER_NS``, to a device in virtual time."""

    def __init__(self, transport: Transport, clock: VirtualClock) -> None:
        self._transport, self._now_ns = transport, clock.monotonic_ns
        self._queue: list[tuple[int, bytes]] = []
        self._free_at_ns = 0
        self.name, self.fileno, self.close = transport.name, transport.fileno, transport.close

    def write(self, data: bytes) -> int:
        self._free_at_ns = max(self._free_at_ns, self._now_ns()) + TRANSFER_NS
        self._queue.append((self._free_at_ns, data))
        return len(data)

    def read(self, timeout_ns: int) -> bytes:
        deadline_ns = self._now_ns() + timeout_ns
        while True:
            while self._queue and self._queue[0][0] <= self._now_ns():
                self._transport.write(self._queue.pop(0)[1])
            next_ns = min(self._queue[0][0], deadline_ns) if self._queue else deadline_ns
            data = self._transport.read(next_ns - self._now_ns())
            if data or self._now_ns() >= deadline_ns:
                return data


def test_a_command_is_accepted_even_if_others_wait_on_a_slow_line() -> None:
    """With a command in every period the backlog would last for hundreds of periods, and each command would be late."""
    clock = VirtualClock()
    device = TwinDevice(CONFIG.rig, twin_options(CONFIG), CONFIG.task.start)
    host = Host(SlowLine(LoopbackDevice(device, clock).transport, clock), CONFIG.rig, clock)
    state = host.begin(PERIOD_US, host.long_lease)
    for _ in range(6):
        host.session.send_command(state.frame, host.setpoint(4))
    applied = host.act(host.fresh_state(), host.setpoint(2))
    assert applied.u_end == host.setpoint(2)
    assert applied.tau_us < PERIOD_US
