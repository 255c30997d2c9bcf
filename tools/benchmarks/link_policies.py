"""Policies of the size of 000's, untrained: what admission and the link have to carry."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from onrig.learner.export import export_policy
from onrig.runtime.policy.contract import PolicyContract, contract_for
from onrig.runtime.run_config import RunConfig

HIDDEN: Final = (50, 20)
"""Units of the actor's hidden layers (000 §B.1)."""


def untrained(config: RunConfig, contract: PolicyContract | None = None, seed: int = 0) -> bytes:
    """Return ONNX bytes of a random actor for the rig of ``config``, by default with id 1."""
    wanted = contract or contract_for(config.rig, config.rate_hz, policy_id=1, parent_run="bench", training_step=0)
    rng = np.random.default_rng(seed)
    widths = (len(config.rig.signals), *HIDDEN, len(config.rig.actuators))
    layers = [(0.1 * rng.standard_normal(shape), np.zeros(shape[1])) for shape in itertools.pairwise(widths)]
    return export_policy(layers, wanted)
