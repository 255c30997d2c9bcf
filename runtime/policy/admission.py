"""Admission of a policy: all conditions it must meet before it reaches the loop (docs/architecture.md).

The steps, cheapest and safest first: size in bytes; format (``onnx_wire``); operators; contract equal to the rig's;
shapes and costs (``graph``); then onnxruntime builds it: outputs finite and within the actuators' limits on every probe
state, latency within the budget.  onnxruntime only sees models that passed the earlier steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from onrig.runtime.policy.contract import (
    INPUT_NAME,
    METADATA_KEY,
    OUTPUT_NAME,
    ModelRefused,
    PolicyContract,
    Stage,
    contract_mismatch,
    decode_contract,
)
from onrig.runtime.policy.graph import Cost, check_graph, check_operators
from onrig.runtime.policy.onnx_wire import OnnxModel, read_model
from onrig.runtime.policy.session import PolicySession

BOUNDS_TOLERANCE: Final = 1e-4
"""Share of the half range by which an action may exceed its limit: float32 rounding of a scaled, saturated tanh."""
WARM_UP_RUNS: Final = 20
LATENCY_RUNS: Final = 100
HOPELESS: Final = 20.0
"""Multiple of the latency budget above which the first run is refused at once, so that slow models cannot block."""


class AdmissionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on a policy.  ``latency_is_advisory``: wall time only warns (lockstep must not depend on it)."""

    max_bytes: int = 4 << 20
    max_parameters: int = 1_000_000
    max_operations: int = 4_000_000
    """Multiply-adds, or comparable operations, per run."""
    latency_budget_us: float = 200.0
    latency_is_advisory: bool = False


class Admitted(NamedTuple):
    """An admitted policy; latencies are of one run on this board."""

    contract: PolicyContract
    latency_p50_us: float
    latency_p99_us: float
    cost: Cost
    warnings: tuple[str, ...]


class Refused(NamedTuple):
    """A refused policy: the step that refused it, and a one-line reason with figures."""

    stage: Stage
    reason: str


def admit(
    model: bytes,
    wanted: PolicyContract,
    probes: npt.NDArray[np.float32],
    limits: AdmissionLimits | None = None,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Admitted | Refused:
    """Judge the bytes of a policy for the rig that ``wanted`` describes.

    ``probes`` are observations in SI units, float32 (k, n), from ``probe_states`` and from the rig's own memory; rows
    that are not finite are ignored.  Latency is judged by its median, which the scheduler hardly affects; a p99 beyond
    the budget gives a warning.  Raises ValueError for probes of the wrong width, but never because of the content of
    ``model``.
    """
    limits = limits or AdmissionLimits()
    if probes.ndim != 2 or probes.shape[1] != len(wanted.observations):
        raise ValueError(f"probes have shape {probes.shape}, the rig has {len(wanted.observations)} observations")
    try:
        return _judge(model, wanted, probes, limits, clock_ns)
    except ModelRefused as refusal:
        return Refused(refusal.stage, refusal.reason)


def _judge(
    model: bytes,
    wanted: PolicyContract,
    probes: npt.NDArray[np.float32],
    limits: AdmissionLimits,
    clock_ns: Callable[[], int],
) -> Admitted:
    if len(model) > limits.max_bytes:
        raise ModelRefused("size", f"{len(model)} bytes, at most {limits.max_bytes} allowed")
    parsed = read_model(model)
    check_operators(parsed)
    contract, warnings = _contract(parsed, wanted)
    cost = check_graph(
        parsed,
        (INPUT_NAME, len(wanted.observations)),
        (OUTPUT_NAME, len(wanted.actions)),
        limits.max_parameters,
        limits.max_operations,
    )
    session = PolicySession(model)
    budget = limits.latency_budget_us
    first_us = min(_time_runs(session, 3, clock_ns))
    if first_us > HOPELESS * budget and not limits.latency_is_advisory:
        raise ModelRefused("latency", f"a run takes {first_us:.0f} us, {budget:.0f} us allowed")
    finite = np.isfinite(probes).all(axis=1)
    if not finite.all():
        warnings.append(f"{int((~finite).sum())} of {len(probes)} probe states are not finite and were left out")
    _check_outputs(_outputs(session, probes[finite]), probes[finite], wanted)
    _time_runs(session, WARM_UP_RUNS, clock_ns)
    p50, p99 = np.percentile(_time_runs(session, LATENCY_RUNS, clock_ns), [50, 99])
    if p99 > budget:
        latency = f"p50 {p50:.1f} us, p99 {p99:.1f} us of {LATENCY_RUNS} runs, {budget:.0f} us allowed"
        if p50 > budget and not limits.latency_is_advisory:
            raise ModelRefused("latency", latency)
        warnings.append(latency)
    return Admitted(contract, float(p50), float(p99), cost, tuple(warnings))


def _contract(model: OnnxModel, wanted: PolicyContract) -> tuple[PolicyContract, list[str]]:
    """Compare the contract in the metadata with the rig's; returns it with warnings, or raises ModelRefused."""
    text = model.metadata.get(METADATA_KEY)
    if text is None:
        raise ModelRefused("contract", f"no metadata under the key {METADATA_KEY!r}")
    try:
        contract = decode_contract(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelRefused("contract", f"metadata {METADATA_KEY!r}: {error}") from error
    difference = contract_mismatch(contract, wanted)
    if difference is not None:
        raise ModelRefused("contract", difference)
    for name, value, least in (
        ("policy_id", contract.policy_id, -(1 << 63)),  # stated by the sender; nothing depends on it
        ("training_step", contract.training_step, 0),
    ):
        if not least <= value < 1 << 63:
            raise ModelRefused("contract", f"{name} is beyond 64 bits" if value >= 1 << 63 else f"{name} is {value}")
    warnings = []
    if contract.delay_periods < wanted.delay_periods:
        warnings.append(f"trained for {contract.delay_periods} periods of delay, the rig has {wanted.delay_periods}")
    return contract, warnings


def _run(session: PolicySession) -> None:
    try:
        session.run()
    except Exception as error:  # onnxruntime's exceptions have no common base below Exception
        raise ModelRefused("format", f"onnxruntime fails to run it: {error}") from error


def _time_runs(session: PolicySession, runs: int, clock_ns: Callable[[], int]) -> list[float]:
    """Time single runs, in microseconds."""
    times: list[float] = []
    for _ in range(runs):
        start = clock_ns()
        _run(session)
        times.append((clock_ns() - start) / 1e3)
    return times


def _outputs(session: PolicySession, probes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Run every probe; float32 (k, m)."""
    outputs = np.empty((len(probes), session.action.shape[1]), np.float32)
    for probe, output in zip(probes, outputs, strict=True):
        session.observation[0] = probe
        _run(session)
        output[:] = session.action[0]
    return outputs


def _check_outputs(outputs: npt.NDArray[np.float32], probes: npt.NDArray[np.float32], wanted: PolicyContract) -> None:
    """Raise ModelRefused (``finite``, ``bounds``) for the worst output over all probes."""

    def where(row: int, column: int) -> str:
        state = ", ".join(f"{s.name} {v:.4g}" for s, v in zip(wanted.observations, probes[row], strict=True))
        return f"action {wanted.actions[column].name!r} is {outputs[row, column]:.6g} at {state}"

    bad = np.argwhere(~np.isfinite(outputs))
    if len(bad):
        raise ModelRefused("finite", f"{where(*bad[0])}; {len(bad)} of {outputs.size} outputs are not finite")
    low, high = (np.array([getattr(a, end) for a in wanted.actions]) for end in ("low", "high"))
    slack = BOUNDS_TOLERANCE * 0.5 * (high - low)
    excess = np.maximum(low - outputs, outputs - high) - slack
    if (excess > 0).any():
        row, column = np.unravel_index(int(np.argmax(excess / (high - low))), excess.shape)
        limit = wanted.actions[int(column)]
        raise ModelRefused(
            "bounds",
            f"{where(int(row), int(column))}, allowed is [{limit.low:.6g}, {limit.high:.6g}] {limit.unit}; "
            f"{int((excess > 0).sum())} of {outputs.size} outputs are beyond (squash or clip them in the graph)",
        )


def probe_states(contract: PolicyContract, n: int, seed: int, widen: float = 2.0) -> npt.NDArray[np.float32]:
    """Probe observations for ``admit`` in SI units, float32 (n, width); deterministic in the arguments.

    The centre of the range first; then at most n/4 corners of the range and as many of the widened one (all of them, or
    a random choice if there are more); the rest uniform over the widened range.  ``widen`` is the factor on each half
    range: a rig may leave its range, and the policy's outputs must be finite and bounded there too.
    """
    rng = np.random.default_rng(seed)
    low = np.array([s.low for s in contract.observations])
    high = np.array([s.high for s in contract.observations])
    centre, half = 0.5 * (low + high), 0.5 * (high - low)
    width = len(low)
    count = n // 4 if width >= 30 else min(1 << width, n // 4)
    if width < 20:
        picked = rng.permutation(1 << width)[:count]
        signs = 2.0 * ((picked[:, None] >> np.arange(width)) & 1) - 1.0
    else:
        signs = rng.choice((-1.0, 1.0), size=(count, width))
    rest = rng.uniform(-widen, widen, size=(max(n - 1 - 2 * count, 0), width))
    unit = np.concatenate([np.zeros((1, width)), signs, widen * signs, rest])[:n]
    return np.asarray(centre + half * unit, np.float32)
