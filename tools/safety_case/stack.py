"""Adversarial policies through the complete stack: twin device, protocol, framing, session and tick.

Everything runs in one process in virtual time. Each episode has a new device, whose plant is drawn from the box and
starts in the safe set. The host dies in every episode, and the device is observed for a fixed time afterwards. Commands
have a random delay, up to the maximum that the shield covers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import msgspec
import numpy as np

from onrig.hw.clock import VirtualClock
from onrig.hw.messages import shows_safe
from onrig.hw.session import DeviceSession
from onrig.runtime.control.episode import begin_episode, never_ends, policy_action_source
from onrig.runtime.control.tick import Tick
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Kind, Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import PlantBox, dead_band_of, plant_delay_s_of, separate_parameters
from onrig.runtime.task import episode_steps
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.sim.twin.options import TwinOptions
from onrig.tools.safety_case.campaign import (
    N_SUBSTEPS,
    Adversary,
    Campaign,
    Tally,
    draw_dead_bands,
    draw_parameters,
    laws,
)
from onrig.tools.safety_case.episodes import AFTERMATH_DURATION_S, HostDeath, start_states


def run_stack(
    config: RunConfig, episodes: int, seed: int, progress: Callable[[int], None] = lambda done: None
) -> Campaign:
    """Run ``episodes`` episodes.

    Raises ValueError if the twin or the prediction is missing, or if they are of different kinds.
    """
    box, section = config.limits.predicted, config.device.twin
    if box is None or section is None:
        raise ValueError("the test needs a twin (device.twin) and a prediction (limits.predicted)")
    options = msgspec.convert(section, TwinOptions)
    if set(options.plant.lumped) != set(box.nominal):
        raise ValueError("limits.predicted and device.twin.plant are of different kinds")
    context = config.limits.context(config.rig, config.period_us * 1e-6)
    factories, frames = laws(box, context), episode_steps(config.task, config.rate_hz)
    names, nominal = list(factories), np.array(list(box.nominal.values()))
    rng, max_dead_band = np.random.default_rng(seed), dead_band_of(box)
    tick = Tick(config)
    campaign: Campaign = {name: Tally() for name in factories}
    for episode in range(episodes):
        name = names[episode % len(names)]
        parameters = draw_parameters(nominal, box.spread, 1, rng)[:, 0].tolist()
        plant = options.plant.with_lumped(dict(zip(box.nominal, parameters, strict=True)))
        for parameter, (value, spread) in separate_parameters(box).items():
            if spread:
                plant = plant.varied({parameter: float(draw_parameters(np.array([value]), spread, 1, rng)[0, 0])})
        if max_dead_band:
            plant = plant.varied({"dead_band": float(draw_dead_bands(max_dead_band, 1, rng)[0])})
        if delay_s := plant_delay_s_of(box):
            plant = plant.varied({"delay_s": float(rng.uniform(0.0, delay_s))})
        twin = msgspec.structs.replace(options, plant=plant, substeps=max(options.substeps, N_SUBSTEPS))
        generator = random.Random(f"{seed} {episode}")
        start = [float(x[0]) for x in start_states(plant, box, context, 1, rng)]
        device = TwinDevice(config.rig, twin, dict(zip(plant.state_names, start, strict=True)))
        policy = cast(PolicySession, Adversary(factories[name](generator)))
        max_speed = _run_episode(
            config, box, device, tick, policy, HostDeath(frames, generator), generator, campaign[name]
        )
        envelope = config.limits.envelope[box.velocity]
        campaign[name].add(1.0 - max_speed / min(-envelope.low, envelope.high))
        progress(episode + 1)
    return campaign


def _run_episode(
    config: RunConfig,
    box: PlantBox,
    device: TwinDevice,
    tick: Tick,
    policy: PolicySession,
    death: HostDeath,
    rng: random.Random,
    tally: Tally,
) -> float:
    """Run an episode in which the host dies, and return the largest sampled |velocity|."""
    clock = VirtualClock()
    session = DeviceSession(LoopbackDevice(device, clock).transport, config.rig, clock)
    session.connect()
    session.configure(config.period_us, config.rig.lease_periods)
    session.arm()
    session.reset(device.boot_id)
    tick.begin(1, Kind.TRAIN, [])
    respond = begin_episode(tick, policy_action_source(tick, policy, 1), has_ended=never_ends)
    period_ns, max_speed, is_alive, n_replies = config.period_us * 1000, 0.0, True, 0
    wire_us = box.late_us - round(1e6 * plant_delay_s_of(box))
    late_ns = rng.randint(0, min(wire_us, config.period_us - 1)) * 1000
    remaining_frames = round(AFTERMATH_DURATION_S * config.rate_hz) + config.rig.lease_periods
    while remaining_frames:
        state = session.wait_state(clock.now_ns + 2 * period_ns)
        if state is None or (state.fault and is_alive):
            raise RuntimeError(f"the twin sent no frame, or a fault: {state}")
        max_speed = max(max_speed, abs(device.plant_state[-1]))
        if not is_alive:
            remaining_frames -= 1
            if not remaining_frames and not shows_safe(state, tick.safe_counts):
                raise RuntimeError(f"the device did not reach its safe output after the host died: {state}")
            continue
        step = (answer := respond(state)).step
        clock.advance(late_ns)
        session.send_command(state.frame, answer.command)
        n_replies += 1
        tally.ticks += 1
        if step.rule is not Rule.NONE:
            tally.rules[step.rule] += 1
        is_alive = not death.occurs(n_replies, step.margin)
    return max_speed
