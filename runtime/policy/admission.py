"""Admission of a policy: all conditions that it must meet before it reaches the loop (docs/architecture.md).

The checks, cheapest and safest first, are: size in bytes; format (``onnx_wire``); operators; a contract that matches
the rig's; shapes and costs (``graph``); then, once onnxruntime has built the model, finite outputs within the
actuators' limits at every probe state, and a latency within the budget.  onnxruntime only receives models that passed
the earlier checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from onrig.runtime.policy.contract import (
    METADATA_KEY,
    ModelRefused,
    PolicyContract,
    Ports,
    Stage,
    contract_mismatch,
    decode_contract,
    ports_for,
)
from onrig.runtime.policy.graph import Cost, check_graph, check_operators, hidden_width
from onrig.runtime.policy.onnx_wire import OnnxModel, read_model
from onrig.runtime.policy.probing import probe, run_session, verify_native
from onrig.runtime.policy.session import PolicySession

WARM_UP_RUNS: Final = 20
LATENCY_RUNS: Final = 100
ABORT_FACTOR: Final = 20.0
"""Multiple of the latency budget; a model that exceeds it in each of its first three runs is refused at once, so that a
slow model cannot block the admission."""


Evaluator = Literal["auto", "onnxruntime"]


class AdmissionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on a policy.  ``latency_is_advisory``: excess latency only causes a warning, because lockstep must not
    depend on wall-clock time."""

    max_bytes: int = 4 << 20
    max_parameters: int = 1_000_000
    max_operations: int = 4_000_000
    """Maximum number of multiply-adds or comparable operations per run."""
    latency_budget_us: float = 200.0
    latency_is_advisory: bool = False
    evaluator: Evaluator = "auto"
    """Whether the C library may evaluate networks that it supports."""


class Admitted(NamedTuple):
    """An admitted policy, with its latencies on this machine."""

    contract: PolicyContract
    latency_p50_us: float
    latency_p99_us: float
    cost: Cost
    ports: Ports
    warnings: tuple[str, ...]
    native: bool
    """Whether the C library evaluates the policy (``onrig.runtime.policy.network``)."""


class Refused(NamedTuple):
    """A refused policy: the step that refused it, and a one-line reason with figures."""

    stage: Stage
    reason: str


def admit(
    model: bytes,
    required: PolicyContract,
    probes: npt.NDArray[np.float32],
    limits: AdmissionLimits | None = None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Admitted | Refused:
    """Check a policy's bytes against the contract that a rig requires.

    ``probes`` are observations in SI units, float32 (k, n), from ``probe_states`` and from the rig's memory; rows with
    non-finite values are ignored.  The median latency decides, because the scheduler hardly affects it; a 99th
    percentile beyond the budget only causes a warning.  Raises ValueError if the probes have the wrong width, but never
    because of the content of ``model``.
    """
    limits = limits or AdmissionLimits()
    if probes.ndim != 2 or probes.shape[1] != len(required.observations):
        raise ValueError(f"probes have shape {probes.shape}, but the rig has {len(required.observations)} observations")
    try:
        return _check(model, required, probes, limits, clock_ns)
    except ModelRefused as refusal:
        return Refused(refusal.stage, refusal.reason)


def _check(
    model: bytes,
    required: PolicyContract,
    probes: npt.NDArray[np.float32],
    limits: AdmissionLimits,
    clock_ns: Callable[[], int],
) -> Admitted:
    if len(model) > limits.max_bytes:
        raise ModelRefused("size", f"{len(model)} bytes; at most {limits.max_bytes} allowed")
    parsed_model = read_model(model)
    check_operators(parsed_model)
    contract, warnings = _read_contract(parsed_model, required)
    ports = ports_for(
        len(required.observations),
        len(required.actions),
        stochastic=contract.stochastic,
        hidden=hidden_width(parsed_model) if contract.format > 1 else 0,
    )
    cost = check_graph(parsed_model, ports, limits.max_parameters, limits.max_operations)
    session = PolicySession(model)
    budget = limits.latency_budget_us
    fastest_us = min(_time_runs(session, 3, clock_ns))
    if fastest_us > ABORT_FACTOR * budget and not limits.latency_is_advisory:
        raise ModelRefused("latency", f"a run takes {fastest_us:.0f} us; {budget:.0f} us allowed")
    is_finite = np.isfinite(probes).all(axis=1)
    if not is_finite.all():
        warnings.append(f"{int((~is_finite).sum())} of {len(probes)} probe states are non-finite and were ignored")
    if is_finite.any():
        probe_outputs = probe(session, probes[is_finite], required)
        if limits.evaluator == "auto":
            native = verify_native(session, parsed_model, probe_outputs, probes[is_finite], required)
            session = native.session or session
            warnings += [native.warning] if native.warning else []
    _time_runs(session, WARM_UP_RUNS, clock_ns)
    p50, p99 = np.percentile(_time_runs(session, LATENCY_RUNS, clock_ns), [50, 99])
    if p99 > budget:
        latency = f"p50 {p50:.1f} us, p99 {p99:.1f} us of {LATENCY_RUNS} runs; {budget:.0f} us allowed"
        if p50 > budget and not limits.latency_is_advisory:
            raise ModelRefused("latency", latency)
        warnings.append(latency)
    return Admitted(contract, float(p50), float(p99), cost, ports, tuple(warnings), session.native)


def _read_contract(model: OnnxModel, required: PolicyContract) -> tuple[PolicyContract, list[str]]:
    """Read the contract from the metadata and compare it with the required one; return it and a list of warnings, or
    raise ModelRefused."""
    text = model.metadata.get(METADATA_KEY)
    if text is None:
        raise ModelRefused("contract", f"no metadata under the key {METADATA_KEY!r}")
    try:
        contract = decode_contract(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelRefused("contract", f"metadata {METADATA_KEY!r}: {error}") from error
    difference = contract_mismatch(contract, required)
    if difference is not None:
        raise ModelRefused("contract", difference)
    for name, value, minimum in (
        ("policy_id", contract.policy_id, -(1 << 63)),  # informational only
        ("training_step", contract.training_step, 0),
    ):
        if not minimum <= value < 1 << 63:
            raise ModelRefused("contract", f"{name} exceeds 64 bits" if value >= 1 << 63 else f"{name} is {value}")
    warnings = []
    if contract.delay_periods < required.delay_periods:
        delay = f"{contract.delay_periods} periods of delay; the rig has {required.delay_periods} periods"
        warnings.append(f"trained for {delay}")
    return contract, warnings


def _time_runs(session: PolicySession, n_runs: int, clock_ns: Callable[[], int]) -> list[float]:
    """Return the durations of ``n_runs`` single runs, in microseconds."""
    durations_us: list[float] = []
    for _ in range(n_runs):
        start_ns = clock_ns()
        run_session(session)
        durations_us.append((clock_ns() - start_ns) / 1e3)
    return durations_us
