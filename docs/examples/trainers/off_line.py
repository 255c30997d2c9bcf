"""Offline TD3 on the stored experiences of a run: python off_line.py RUN_FOLDER POLICY.onnx [UPDATES]."""

import sys
from pathlib import Path

import numpy as np
from td3 import Td3

import onrig
from onrig.runtime.policy.contract import contract_for
from onrig.tools.examples.export_sb3 import export

BATCH = 64


def main(folder, out, updates=5000):
    """Train, export the policy with the rig's contract, and return the agent."""
    run, rng = onrig.open_run(folder), np.random.default_rng(0)
    kept = run.experiences
    fields = [np.asarray(kept[name]) for name in ("observation", "action", "reward", "next_observation", "terminated")]
    config = run.config
    agent = Td3(fields[0].shape[1], fields[1].shape[1])
    for k in range(updates):
        at = rng.integers(len(fields[2]), size=BATCH)
        errors = agent.update(*(field[at] for field in fields))
        if k % 1000 == 0:
            print(f"update {k}: mean |TD error| {np.abs(errors).mean():.3g}")
    contract = contract_for(
        config.rig, config.rate_hz, policy_id=1, parent_run=Path(folder).name, training_step=updates,
        signals=config.signals,
    )  # fmt: skip
    Path(out).write_bytes(export([*agent.actor], contract))
    print(f"{out}: see `onrig policy check` and `onrig policy eval`")
    return agent


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
