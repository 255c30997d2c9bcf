"""Requirements that a run places on its policies: contract, limits and probe states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Observation, Rig
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.policy.admission import AdmissionLimits, Admitted, Refused, admit
from onrig.runtime.policy.contract import DETERMINISTIC, GAUSSIAN, PolicyContract, contract_for
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig

_PROBES: Final = 64
_LATENCY_US: Final = 200.0
_LATENCY_FRACTION: Final = 0.1
"""Upper bound on the latency limit, as a fraction of the period."""
_MAX_RECORDED: Final = 64
"""Number of observations from the buffer that serve as additional probe states."""


def admission_limits(config: RunConfig) -> AdmissionLimits:
    """Return the admission limits of a run; latency is advisory in lockstep, which must not depend on wall time."""
    budget_us = min(_LATENCY_US, _LATENCY_FRACTION * config.wall_period_ns / 1000)
    return AdmissionLimits(latency_budget_us=budget_us, latency_is_advisory=config.lockstep, evaluator=config.evaluator)


def required_contract(
    rig: Rig, rate_hz: float, *, stochastic: bool, signals: Sequence[Observation] | None = None
) -> PolicyContract:
    """Return the contract that a rig's policies must have."""
    behaviour = GAUSSIAN if stochastic else DETERMINISTIC
    return contract_for(rig, rate_hz, policy_id=0, parent_run="", training_step=0, behaviour=behaviour, signals=signals)


def standard_probes(required: PolicyContract, seed: int) -> NDArray[np.float32]:
    """Return the probe states for every policy of a run, float32 (k, n), in SI units."""
    return probe_states(required, _PROBES, int(stream(seed, Role.PROBES).integers(1 << 31)))


class Examination:
    """Check of policies against the contract ``required`` and ``limits``, on probe states drawn from ``seed``."""

    def __init__(self, required: PolicyContract, limits: AdmissionLimits, seed: int) -> None:
        self._required, self._limits = required, limits
        self._probes = standard_probes(required, seed)
        self._observations = Normalisation.from_signals(required.observations)

    def examine(self, model: bytes, recorded_observations: NDArray[np.float32] | None = None) -> Admitted | Refused:
        """Check the bytes of a policy; ``recorded_observations``: (k, n), normalised, used as further probe states."""
        probes = self._probes
        if recorded_observations is not None:
            recorded_si = self._observations.to_si(recorded_observations[:_MAX_RECORDED])
            probes = np.concatenate([probes, recorded_si.astype(np.float32)])
        return admit(model, self._required, probes, self._limits)

    def repeat(self, model: bytes) -> Admitted | Refused:
        """Check a policy again, except for its latency, which was measured when it was admitted."""
        return admit(
            model, self._required, self._probes, msgspec.structs.replace(self._limits, latency_is_advisory=True)
        )


def examination(config: RunConfig) -> Examination:
    """Return the check for the policies of a run."""
    contract = required_contract(config.rig, config.rate_hz, stochastic=config.stochastic, signals=config.signals)
    return Examination(contract, admission_limits(config), config.seed)
