"""Episodes on a twin whose line loses, delays and bunches frames and commands, in virtual time.

The limits of rate and jerk are checked in every frame sent by the twin, including those that its host never receives.
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

ROUNDING_COUNTS: Final = 0.5 + 1e-6
"""Counts."""
_NON_FINITE_FRACTION: Final = 0.01
"""Share of answers that are not finite, which hands over to the fallback."""


class LossyLine:
    """The device's end of a line: each state frame or command may be lost, or arrive too late or in the next period."""

    def __init__(self, device: TwinDevice, clock: VirtualClock, rng: random.Random, loss_probability: float) -> None:
        self._device, self._clock, self._rng, self._loss_probability = device, clock, rng, loss_probability
        self._reader = FrameReader()
        self._layout = StateLayout(len(device.rig.sensors), len(device.rig.actuators))
        self._delayed_frames, self._late_commands = b"", list[bytes]()
        self.n_lost = 0
        """Number of frames and commands that did not arrive, or not in time."""
        self.sent: list[State] = []
        """Every state frame of the device."""
        self.transport = LoopbackTransport(self._handle, self._wait)

    def _handle(self, data: bytes) -> bytes:
        out = b""
        for body in self._reader.feed(data):
            if body[0] != MessageType.COMMAND:
                out += b"".join(encode_frame(reply) for reply in self._device.handle(body))
            elif self._rng.random() < self._loss_probability:
                self.n_lost += 1
                self._late_commands += [body] if self._rng.random() < 0.5 else []
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
        for command in self._late_commands:
            device.handle(command)
        self._late_commands.clear()
        if self._rng.random() < self._loss_probability:
            self.n_lost += 1
            self._delayed_frames += encode_frame(body) if self._rng.random() < 0.5 else b""
            return b""
        out, self._delayed_frames = self._delayed_frames + encode_frame(body), b""
        return out


class _ErraticPolicy:
    """A policy that jumps, drifts, and sometimes gives an invalid answer."""

    has_basic_ports = True
    native = False

    def __init__(self, config: RunConfig, rng: random.Random) -> None:
        self._actuators, self._rng = config.rig.actuators, rng
        self._action = [a.safe for a in self._actuators]

    def act(self, observation: object) -> tuple[float, ...]:
        rng = self._rng
        if rng.random() < _NON_FINITE_FRACTION:
            return (float("nan"),) * len(self._action)
        if rng.random() < 0.2:
            self._action = [rng.choice((a.low, a.high, rng.uniform(a.low, a.high))) for a in self._actuators]
        return tuple(self._action)


class LossyRunResult(NamedTuple):
    """Results of some episodes."""

    n_lost: int
    n_switches: int
    """Switches of the output that no exemption covers."""
    n_exempt: int
    violations: tuple[str, ...]
    """Switches beyond a limit, except for the listed exemptions."""


def run_lossy(config: RunConfig, min_losses: int, seed: int) -> LossyRunResult:
    """Run episodes until this number of frames and commands has been lost."""
    n_lost = n_switches = n_exempt = 0
    violations: list[str] = []
    tick, number = Tick(config), 0
    while n_lost < min_losses:
        number += 1
        rng = random.Random(f"{seed} {number}")
        line, rules = _run_episode(config, tick, rng, number)
        n_lost += line.n_lost
        for before, after in pairwise(line.sent):
            new_violations, new_exempt, new_switches = _check_switches(config, before, after, rules)
            violations += new_violations
            n_switches, n_exempt = n_switches + new_switches, n_exempt + new_exempt
    return LossyRunResult(n_lost, n_switches, n_exempt, tuple(violations))


def _run_episode(config: RunConfig, tick: Tick, rng: random.Random, number: int) -> tuple[LossyLine, dict[int, Rule]]:
    """One episode on its own device; returns its line, and the rule of each answer by its frame."""
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
    respond = begin_episode(tick, policy_action_source(tick, cast(PolicySession, _ErraticPolicy(config, rng)), 1))
    rules: dict[int, Rule] = {}
    while True:
        state = session.wait_state(clock.now_ns + 1)
        if state is None:
            continue
        response = respond(state)
        if response.is_over:  # followed by the safe output
            return line, rules
        rules[state.frame] = response.step.rule
        session.send_command(state.frame, response.command)


def _check_switches(
    config: RunConfig, before: State, after: State, rules: dict[int, Rule]
) -> tuple[list[str], int, int]:
    """(switches beyond a limit, exempt switches, others) of one period, given the frame at its start."""
    limits, period_s = config.limits, config.period_us * 1e-6
    if after.status & (Status.FIRST | Status.SAFE):
        return [], 1, 0
    by_fallback = [rules.get(s.answers, Rule.NONE).falls_back for s in (before, after)]
    if by_fallback[1]:
        return [], 1, 0
    violations, n_switches = [], 0
    is_held = after.answers != before.frame
    """Without a command the output is held, whatever it was before."""
    for i, a in enumerate(config.rig.actuators):
        step, previous_step = after.u_end[i] - after.u_start[i], before.u_end[i] - before.u_start[i]
        n_switches += step != 0
        if abs(step) > limits.rate_per_s[a.name] * period_s / a.resolution + ROUNDING_COUNTS:
            violations.append(f"frame {after.frame}: {a.name} switched by {step} counts")
        is_at_limit = after.u_end[i] in limits.count_ranges(config.rig)[i]
        max_change = limits.jerk_per_s2.get(a.name, float("inf")) * period_s**2 / a.resolution
        if not (is_held or is_at_limit or by_fallback[0]) and abs(step - previous_step) > max_change + ROUNDING_COUNTS:
            violations.append(f"frame {after.frame}: {a.name} switched by {step} counts after {previous_step}")
    return violations, 0, n_switches
