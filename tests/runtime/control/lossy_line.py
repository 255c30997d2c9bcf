"""Episodes on a twin whose line loses, delays and bunches frames and commands, in virtual time.

The limits of rate and jerk are judged by every frame that the twin sends, also by those that its host never receives.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final, NamedTuple, cast

import msgspec

from onrig.hw.clock import VirtualClock
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.messages import MessageType, State, StateLayout, Status
from onrig.hw.session import DeviceSession
from onrig.hw.transport import LoopbackTransport
from onrig.runtime.control.episode import begin_episode, policy_action_source
from onrig.runtime.control.tick import Tick
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Kind, Rule
from onrig.runtime.run_config import RunConfig
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions

ROUNDING: Final = 0.5 + 1e-6
"""Counts."""
_BROKEN: Final = 0.01
"""Share of answers that are not finite, which hands over to the fallback."""


class LossyLine:
    """The device's end of a line: each state frame or command may be lost, or come too late or in the next period."""

    def __init__(self, device: TwinDevice, clock: VirtualClock, rng: random.Random, loss: float) -> None:
        self._device, self._clock, self._rng, self._loss = device, clock, rng, loss
        self._reader = FrameReader()
        self._layout = StateLayout(len(device.rig.sensors), len(device.rig.actuators))
        self._held, self._late = b"", list[bytes]()
        self.lost = 0
        """Frames and commands that did not arrive, or not in time."""
        self.sent: list[State] = []
        """Every state frame of the device."""
        self.transport = LoopbackTransport(self._handle, self._wait)

    def _handle(self, data: bytes) -> bytes:
        out = b""
        for body in self._reader.feed(data):
            if body[0] != MessageType.COMMAND:
                out += b"".join(encode_frame(reply) for reply in self._device.handle(body))
            elif self._rng.random() < self._loss:
                self.lost += 1
                self._late += [body] if self._rng.random() < 0.5 else []
            else:
                period_us = self._device.period_us
                self._device.handle(body, self._rng.choice((0, period_us - 1, self._rng.randrange(period_us))))
        return out

    def _wait(self, timeout_ns: int) -> bytes:
        device = self._device
        self._clock.advance(device.period_us * 1000 if device.period_us else timeout_ns)
        if not device.period_us:
            return b""
        body = device.sample()
        self.sent.append(self._layout.decode(body))
        for late in self._late:
            device.handle(late)
        self._late.clear()
        if self._rng.random() < self._loss:
            self.lost += 1
            self._held += encode_frame(body) if self._rng.random() < 0.5 else b""
            return b""
        out, self._held = self._held + encode_frame(body), b""
        return out


class _Restless:
    """A policy that jumps, creeps, and now and then is no answer at all."""

    has_basic_ports = True
    native = False

    def __init__(self, config: RunConfig, rng: random.Random) -> None:
        self._actuators, self._rng = config.rig.actuators, rng
        self._wish = [a.safe for a in self._actuators]

    def ask(self, question: object) -> tuple[float, ...]:
        rng = self._rng
        if rng.random() < _BROKEN:
            return (float("nan"),) * len(self._wish)
        if rng.random() < 0.2:
            self._wish = [rng.choice((a.low, a.high, rng.uniform(a.low, a.high))) for a in self._actuators]
        return tuple(self._wish)


class Account(NamedTuple):
    """What came of some episodes."""

    lost: int
    switches: int
    """Switches of the output that no exemption covers."""
    exempt: int
    beyond: tuple[str, ...]
    """Switches beyond a limit, but for the listed exemptions."""


def run_lossy(config: RunConfig, losses: int, seed: int) -> Account:
    """Run episodes until so many frames and commands have been lost."""
    lost = switches = exempt = 0
    beyond: list[str] = []
    tick, number = Tick(config), 0
    while lost < losses:
        number += 1
        rng = random.Random(f"{seed} {number}")
        line, rules = _episode(config, tick, rng, number)
        lost += line.lost
        for before, after in pairwise(line.sent):
            found, free, many = _judge(config, before, after, rules)
            beyond += found
            switches, exempt = switches + many, exempt + free
    return Account(lost, switches, exempt, tuple(beyond))


def _episode(config: RunConfig, tick: Tick, rng: random.Random, number: int) -> tuple[LossyLine, dict[int, Rule]]:
    """One episode on a device of its own; returns its line, and the rule of each answer by its frame."""
    assert config.device.twin is not None
    options = msgspec.structs.replace(
        msgspec.convert(config.device.twin, TwinOptions), latency_us=rng.choice((0, 3000, 25_000))
    )
    device, clock = TwinDevice(config.rig, options, config.task.start), VirtualClock()
    line = LossyLine(device, clock, rng, rng.choice((0.05, 0.2, 0.5)))
    session = DeviceSession(line.transport, config.rig, clock)
    session.connect()
    session.configure(config.period_us, config.rig.lease_periods)
    session.arm()
    session.reset(number)
    tick.begin(number, Kind.TRAIN, [])
    respond = begin_episode(tick, policy_action_source(tick, cast(PolicySession, _Restless(config, rng)), 1))
    rules: dict[int, Rule] = {}
    while True:
        state = session.wait_state(clock.now_ns + 1)
        if state is None:
            continue
        response = respond(state)
        if response.is_over:  # what follows is the safe output
            return line, rules
        rules[state.frame] = response.step.rule
        session.send_command(state.frame, response.command)


def _judge(config: RunConfig, before: State, after: State, rules: dict[int, Rule]) -> tuple[list[str], int, int]:
    """(switches beyond a limit, exempt switches, others) of one period, given the frame at its start."""
    limits, period_s = config.limits, config.period_us * 1e-6
    if after.status & (Status.FIRST | Status.SAFE):
        return [], 1, 0
    by_fallback = [rules.get(s.answers, Rule.NONE).falls_back for s in (before, after)]
    if by_fallback[1]:
        return [], 1, 0
    found, many = [], 0
    held = after.answers != before.frame
    """Nothing arrived: the output stays, whatever it was doing before."""
    for i, a in enumerate(config.rig.actuators):
        step, last = after.u_end[i] - after.u_start[i], before.u_end[i] - before.u_start[i]
        many += step != 0
        if abs(step) > limits.rate_per_s[a.name] * period_s / a.resolution + ROUNDING:
            found.append(f"frame {after.frame}: {a.name} switched by {step} counts")
        at_end = after.u_end[i] in limits.count_ranges(config.rig)[i]
        change = limits.jerk_per_s2.get(a.name, float("inf")) * period_s**2 / a.resolution
        if not (held or at_end or by_fallback[0]) and abs(step - last) > change + ROUNDING:
            found.append(f"frame {after.frame}: {a.name} switched by {step} counts after {last}")
    return found, 0, many
