"""The same policies through the lockstep stack: the twin device, its protocol and framing, the session, the tick.

One process and virtual time; each episode has a device of its own whose plant is drawn from the box.  In lockstep no
frame is lost and no command late, so delays are what ``episodes`` tries.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import msgspec
import numpy as np

from onrig.hw.clock import VirtualClock
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.session import DeviceSession
from onrig.hw.transport import LoopbackTransport
from onrig.runtime.control.episode import begin_episode, by_policy, never
from onrig.runtime.control.tick import Tick
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Kind, Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import PlantBox, apart_of, dead_band_of
from onrig.runtime.task import episode_steps
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions
from onrig.tools.safety_case.campaign import SUBSTEPS, Adversary, Campaign, Tally, draw, draw_dead_bands, laws


def run_lockstep(
    config: RunConfig, episodes: int, seed: int, progress: Callable[[int], None] = lambda done: None
) -> Campaign:
    """Run so many episodes from the task's start; raises ValueError without a twin or a prediction."""
    box, section = config.limits.predicted, config.device.twin
    if box is None or section is None:
        raise ValueError("needs a twin (device.twin) and a plant family (limits.predicted)")
    options = msgspec.convert(section, TwinOptions)
    if set(options.plant.lumped) != set(box.nominal):
        raise ValueError("limits.predicted and device.twin.plant are of different kinds")
    made = laws(box, config.limits.setting(config.rig, config.period_us * 1e-6))
    names, nominal = list(made), np.array(list(box.nominal.values()))
    rng, largest = np.random.default_rng(seed), dead_band_of(box)
    tick = Tick(config)
    campaign: Campaign = {name: Tally() for name in made}
    for episode in range(episodes):
        name = names[episode % len(names)]
        drawn = draw(nominal, box.spread, 1, rng)[:, 0].tolist()
        plant = options.plant.with_lumped(dict(zip(box.nominal, drawn, strict=True)))
        for apart, (value, spread) in apart_of(box).items():
            if spread:
                plant = plant.varied({apart: float(draw(np.array([value]), spread, 1, rng)[0, 0])})
        if largest:
            plant = plant.varied({"dead_band": float(draw_dead_bands(largest, 1, rng)[0])})
        twin = msgspec.structs.replace(options, plant=plant, substeps=max(options.substeps, SUBSTEPS))
        policy = cast(PolicySession, Adversary(made[name](random.Random(f"{seed} {episode}"))))
        _run_episode(config, box, twin, tick, policy, seed + episode, campaign[name])
        progress(episode + 1)
    return campaign


def _run_episode(
    config: RunConfig, box: PlantBox, twin: TwinOptions, tick: Tick, policy: PolicySession, seed: int, tally: Tally
) -> None:
    device = TwinDevice(config.rig, twin, config.task.start, time_scale=0.0)
    clock, reader = VirtualClock(), FrameReader()

    def handle(data: bytes) -> bytes:
        out = b""
        for body in reader.feed(data):
            out += b"".join([encode_frame(reply) for reply in device.handle(body)])
            if device.sample_due:
                out += encode_frame(device.sample())
        return out

    def wait(timeout_ns: int) -> bytes:
        clock.advance(timeout_ns)
        return b""

    session = DeviceSession(LoopbackTransport(handle, wait), config.rig, clock)
    session.connect()
    session.configure(config.period_us, config.rig.lease_periods)
    session.arm()
    session.reset(seed)
    tick.begin(1, Kind.TRAIN, [])
    answer_to = begin_episode(tick, by_policy(tick, policy, 1), ends=never)
    envelope = config.limits.envelope[box.velocity]
    limit, fastest = min(-envelope.low, envelope.high), 0.0
    for _ in range(episode_steps(config.task, config.rate_hz)):
        state = session.wait_state(clock.now_ns)
        if state is None or state.fault:
            raise RuntimeError(f"the twin gave no frame, or a fault: {state}")
        answer = answer_to(state)
        step = answer.step
        session.send_command(state.frame, answer.command)
        fastest = max(fastest, abs(device.plant_state[1]))
        tally.ticks += 1
        if step.rule is not Rule.NONE:
            tally.rules[step.rule] += 1
    tally.add(1.0 - fastest / limit)
