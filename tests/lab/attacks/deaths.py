"""Permanent death of the host: all its processes are killed at once, and the device is observed."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Final

import numpy as np

from onrig.hw.messages import shows_safe
from onrig.learner.export import export_policy
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_config import RunConfig
from onrig.sim.plants import Pendulum
from tests.lab.attacks.campaign import Piece
from tests.lab.rig.rig import WatchedRig
from tests.lab.rig.run_folder import tracebacks
from tests.lab.rig.wire import TimedState

_SETTINGS: Final = ("limits.predicted.late_us=20000", "exploration={process: none}")
"""Settings for a busy machine; only the policy moves the rig."""
_PLANTS: Final = ((1.3, 0.7, 1.3), (1.3, 0.7, 0.7), (0.7, 0.7, 1.3))
"""Corners of the shield's box: shares of gravity, damping and gain."""
_OUTPUTS: Final = ("driven", "released")
_SWING_S: Final = 4.0
"""Window around the middle of an episode in which the host is killed, at any phase of the motion."""
_WATCHED_S: Final = 3.0
_PUMP: Final = 100.0


def pumping_policy(config: RunConfig) -> bytes:
    """Return a policy with full effort along the motion, limited only by the shield."""
    names, m = [s.name for s in config.signals], len(config.rig.actuators)
    weights = np.zeros((len(names), m))
    weights[names.index("velocity")] = _PUMP
    contract = contract_for(
        config.rig, config.rate_hz, policy_id=1, parent_run="", training_step=0, signals=config.signals
    )
    return export_policy([(weights, np.full(m, 0.1))], contract)


def plant_settings(shares: tuple[float, float, float]) -> list[str]:
    """Return overrides that set the paper's twin to a corner of the box."""
    nominal = Pendulum()
    lumped = {name: value * share for (name, value), share in zip(nominal.lumped.items(), shares, strict=True)}
    plant = nominal.with_lumped(lumped)
    return [f"device.twin.plant.{p.name}={p.value!r}" for p in plant.parameters() if p.name != "inertia"]


def after_death(seen: list[TimedState], config: RunConfig) -> list[str]:
    """List the violations by a device whose host has died.

    ``seen``: frames in order, the first ones with a command in force.
    """
    found, lease, safe = [], config.rig.lease_periods, config.rig.safe_counts
    acting = [s.state for s in seen if s.state.answers and not shows_safe(s.state, safe)]
    if acting and acting[-1].frame - acting[-1].answers > lease + 1:
        found.append(f"the device acted for {acting[-1].frame - acting[-1].answers} periods without its host")
    if not seen or not shows_safe(seen[-1].state, safe):
        found.append("the device never fell safe")
    share = fastest_share(seen, config)
    return found + ([f"{share:.1%} of the envelope's velocity after the host's death"] if share > 1.0 else [])


def fastest_share(seen: list[TimedState], config: RunConfig) -> float:
    """Return the largest measured |velocity| as a share of its envelope."""
    at = [s.name for s in config.rig.sensors].index("velocity")
    counts = max((abs(s.state.sensors[at]) for s in seen), default=0)
    return counts * config.rig.sensors[at].resolution / config.limits.envelope["velocity"].high


class DeadHosts:
    """A campaign: each piece is one plant whose host is killed and restarted ``count`` times."""

    name = "dead-hosts"

    def __init__(self, seed: int, pieces: int, count: int) -> None:
        self.description = f"{pieces * count} hosts killed for good, at any phase of the motion"
        self.pieces, self.piece_s = pieces, 8.0 + count * (_SWING_S + _WATCHED_S)
        self._seed, self._count = seed, count

    def run(self, number: int, folder: Path) -> Piece:
        """Kill one rig's hosts."""
        rng = random.Random(f"{self._seed} {self.name} {number}")
        output, shares = _OUTPUTS[number % 2], _PLANTS[number // 2 % len(_PLANTS)]
        more = (*_SETTINGS, *plant_settings(shares), f"rig.safe_output={output}")
        found, share = list[str](), 0.0
        with WatchedRig(folder, more=more, policy=pumping_policy) as rig:
            for death in range(self._count):
                if death:
                    rig.start_run(folder / f"run-{death}")
                rig.until_moving()
                time.sleep(rng.uniform(0.0, _SWING_S))
                rig.run.cut()
                n_before = len(rig.wire.seen)
                time.sleep(_WATCHED_S)
                conditions = f"death {death}, motor {output}, plant {shares}"
                after = rig.wire.seen[n_before:]
                found += [f"{line} ({conditions})" for line in after_death(after, rig.config)]
                share = max(share, fastest_share(after, rig.config))
            found += tracebacks(rig.run_folder)
        return Piece(number, self._count, found, {"of the envelope, %": round(100 * share)})
