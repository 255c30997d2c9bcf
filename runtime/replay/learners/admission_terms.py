"""What a run asks of its policies: the contract, the limits, and the states on which they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Observation, Rig
from onrig.runtime.policy.admission import AdmissionLimits
from onrig.runtime.policy.contract import DETERMINISTIC, GAUSSIAN, PolicyContract, contract_for
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig

_PROBES: Final = 64
_LATENCY_US: Final = 200.0
_LATENCY_SHARE: Final = 0.1
"""Share of a period to which the latency limit is lowered."""


def admission_limits(config: RunConfig) -> AdmissionLimits:
    """Admission limits of a run; latency is advisory in lockstep, where results must not depend on wall time."""
    budget_us = min(_LATENCY_US, _LATENCY_SHARE * config.wall_period_ns / 1000)
    return AdmissionLimits(latency_budget_us=budget_us, latency_is_advisory=config.lockstep, evaluator=config.evaluator)


def wanted_of(
    rig: Rig, rate_hz: float, *, stochastic: bool, signals: Sequence[Observation] | None = None
) -> PolicyContract:
    """Contract that a rig's policies must have."""
    behaviour = GAUSSIAN if stochastic else DETERMINISTIC
    return contract_for(rig, rate_hz, policy_id=0, parent_run="", training_step=0, behaviour=behaviour, signals=signals)


def desk_probes(wanted: PolicyContract, seed: int) -> NDArray[np.float32]:
    """Probe states for every policy of a run, float32 (k, n), SI units."""
    return probe_states(wanted, _PROBES, int(stream(seed, Role.PROBES).integers(1 << 31)))
