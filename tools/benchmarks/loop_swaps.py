"""A learner that learns nothing: it offers the rig a fresh policy at fixed times, so that swaps can be measured.

``python -m onrig.tools.benchmarks.loop_swaps CONFIG ENDPOINT SECONDS`` goes on until the run ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

from onrig.runtime.control.realtime import die_with_parent, leave_cpu
from onrig.runtime.link.client import LinkClient, LinkClosed, RequestRejected
from onrig.runtime.link.messages import LINK_VERSION, Attach, Attached, Offer
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_loading import load_resolved
from onrig.tools.benchmarks.link_policies import untrained
from onrig.tools.benchmarks.loop_rig import CPUS, on_cpus

_NICE: Final = 10


class Swapper:
    """The process; a context that ends it."""

    def __init__(self, config: Path, endpoint: str, every_s: float) -> None:
        with on_cpus(CPUS):
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(config), endpoint, str(every_s)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> Swapper:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def main(arguments: list[str]) -> None:
    """Offer until nobody is there any more."""
    die_with_parent()
    config, every_s = load_resolved(Path(arguments[0])), float(arguments[2])
    leave_cpu(config.realtime)
    os.nice(_NICE)
    client = LinkClient(arguments[1], lambda: False)
    try:
        attached, _ = client.ask(Attach(LINK_VERSION, os.urandom(16), "push", b""))
        if not isinstance(attached, Attached):
            return
        policy_id = attached.next_policy_id
        due_s = time.monotonic()
        while True:
            contract = contract_for(
                config.rig, config.rate_hz, policy_id=policy_id, parent_run="bench", training_step=policy_id
            )
            client.ask(Offer(policy_id), untrained(config, contract, seed=policy_id))
            policy_id += 1
            due_s += every_s
            time.sleep(max(0.0, due_s - time.monotonic()))
    except (LinkClosed, RequestRejected):
        pass
    finally:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1:])
