"""The rig's verdict on a policy, without a rig."""

from __future__ import annotations

from pathlib import Path

from onrig.runtime.policy.admission import Admitted, Refused, admit
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.replay.learners.policy_desk import admission_limits, desk_probes
from onrig.runtime.run_config import RunConfig


def judge(model: bytes, config: RunConfig) -> Admitted | Refused:
    """Admit a policy or refuse it as the rig would that has nothing in its memory yet."""
    wanted = contract_for(config.rig, config.rate_hz, policy_id=0, parent_run="", training_step=0)
    return admit(model, wanted, desk_probes(wanted, config.seed), admission_limits(config))


def read_model(path: Path, config: RunConfig) -> bytes | Refused:
    """A policy's bytes; refused unread where they are too many.  Raises OSError."""
    max_bytes = admission_limits(config).max_bytes
    size = path.stat().st_size
    if size > max_bytes:
        return Refused("size", f"{size} bytes, at most {max_bytes} allowed")
    return path.read_bytes()
