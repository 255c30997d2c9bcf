"""Background load for measurements of the loop: ``python -m onrig.tools.bench.loop.load WHAT ...`` until killed.

``burn CPUS`` keeps CPUs and their caches as busy as a learner does: with the learner's niceness, it multiplies float32
matrices, both small ones (a batch of 64 through 50 units) and ones larger than the caches. ``swap CONFIG ENDPOINT
SECONDS`` offers the rig a new policy at fixed intervals, like a learner but without learning, so that policy swaps can
be measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from onrig.runtime.control.realtime import die_with_parent, leave_cpu
from onrig.runtime.link.client import LinkClient, LinkClosed, RequestRejected
from onrig.runtime.link.messages import LINK_VERSION, Attach, Attached, Offer
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_loading import load_resolved
from onrig.tools.bench.processes import Companion

_NICENESS: Final = 10
_SMALL_SHAPE: Final = (64, 50)
_LARGE_SIZE: Final = 1024


def start_burner(cpus: Iterable[int]) -> Companion:
    """Start a process that keeps these CPUs busy."""
    return Companion(__name__, "burn", ",".join(map(str, cpus)))


def start_swapper(config: Path, endpoint: str, interval_s: float) -> Companion:
    """Start a process that offers the rig a new policy every ``interval_s`` seconds."""
    return Companion(__name__, "swap", str(config), endpoint, str(interval_s))


def burn(cpus: str) -> None:
    """Multiply matrices forever."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    os.nice(_NICENESS)
    rng = np.random.default_rng(0)
    x, w = (
        rng.standard_normal(shape).astype(np.float32) for shape in (_SMALL_SHAPE, (_SMALL_SHAPE[1], _SMALL_SHAPE[1]))
    )
    a, b = (rng.standard_normal((_LARGE_SIZE, _LARGE_SIZE)).astype(np.float32) for _ in range(2))
    product = np.empty_like(a)
    while True:
        np.matmul(a, b, out=product)
        for _ in range(1000):
            np.maximum(x @ w, 0)


def swap(config_file: str, endpoint: str, interval: str) -> None:
    """Offer policies until the rig disconnects."""
    from onrig.tools.bench.link.rig_end import random_policy  # needs onnx, which a board may lack

    config, interval_s = load_resolved(Path(config_file)), float(interval)
    leave_cpu(config.realtime)
    os.nice(_NICENESS)
    client = LinkClient(endpoint, lambda: False)
    try:
        attached, _ = client.ask(Attach(LINK_VERSION, os.urandom(16), "push", b""))
        if not isinstance(attached, Attached):
            return
        policy_id = attached.next_policy_id
        due_s = time.monotonic()
        while True:
            contract = contract_for(
                config.rig,
                config.rate_hz,
                policy_id=policy_id,
                parent_run="bench",
                training_step=policy_id,
                signals=config.signals,
            )
            client.ask(Offer(policy_id), random_policy(config, contract, seed=policy_id))
            policy_id += 1
            due_s += interval_s
            time.sleep(max(0.0, due_s - time.monotonic()))
    except (LinkClosed, RequestRejected):
        pass
    finally:
        client.close()


if __name__ == "__main__":
    die_with_parent()
    if sys.argv[1] == "burn":
        burn(sys.argv[2])
    else:
        swap(*sys.argv[2:])
