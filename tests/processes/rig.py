"""Whole rigs as tests start them: the laboratory's runs and processes, and settings for a machine that is shared."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_config import RunConfig
from tests.lab.rig.processes import CONTROL, LEARNER, PATIENCE_S, REPLAY, TWIN, Impatient, Process, until
from tests.lab.rig.run import Run
from tests.runtime.policy import models

__all__ = [
    "CONTROL",
    "ENDLESS",
    "LEARNER",
    "LOCKSTEP",
    "PATIENCE_S",
    "REPLAY",
    "TWIN",
    "UNHURRIED",
    "Impatient",
    "Process",
    "Run",
    "a_policy",
    "process_of",
    "until",
]

UNHURRIED: Final = (
    "realtime.priority=0",
    "realtime.lock_memory=false",
    "rig.lease_periods=255",
    "limits.predicted=null",
)
"""Real time as tests can have it: they share the machine, so a late command must not end in a lease fault; nothing can
be predicted over so long a lease."""
ENDLESS: Final = (
    *UNHURRIED,
    "device.pace={scaled: 4}",
    "task.episode_s=0.2",
    "episodes=100000",
    "evaluate_every=0",
    "selection={strategy: 'FIFO[Uniform]', capacity: 500}",
    "learner.updates_per_episode=5",
)
"""Twenty episodes of ten ticks per second until somebody ends it; faster ones only keep the machine busy."""
LOCKSTEP: Final = ("task.episode_s=1", "learner.updates_per_episode=10", "evaluate_every=0")
"""Short episodes, bit for bit reproducible."""


@contextlib.contextmanager
def process_of(module: str, *arguments: str | Path) -> Iterator[Process]:
    """A single process of a rig, killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as popen:
        process = Process(popen.pid)
        try:
            yield process
        finally:
            process.kill()
            process.close()


def a_policy(config: RunConfig) -> bytes:
    """Some policy for the pendulum, id 1, that moves it."""
    contract = contract_for(config.rig, config.rate_hz, policy_id=1, parent_run="", training_step=0)
    return models.serialized(models.policy(contract=contract))
