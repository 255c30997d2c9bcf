"""Probing of a policy in onnxruntime: its outputs at the probe states must be finite, bounded and consistent.

A stochastic policy is probed with noise 0, +3 and -3, and a recurrent policy for at least 200 consecutive steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.runtime.normalisation import Normalisation
from onrig.runtime.policy.contract import NOISE_CUT, ModelRefused, PolicyContract
from onrig.runtime.policy.onnx_wire import OnnxModel
from onrig.runtime.policy.session import PolicySession

BOUNDS_TOLERANCE: Final = 1e-4
"""Tolerance on an action's limits, as a fraction of the half range; allows for the float32 rounding of a scaled,
saturated tanh."""
PORT_TOLERANCE: Final = 1e-4
"""Tolerance on the agreement between ports, relative for values above 1; allows for float32 rounding."""
NATIVE_TOLERANCE: Final = 1e-5
"""Tolerance on the agreement between onnxruntime and the C library: in half ranges for actions, as above for other
ports.  The two sum float32 values in different orders, which changes the results of networks with 50 to 256 units by up
to 5e-7; a wrong operation changes them by far more."""
_MAX_DESCRIBED: Final = 32
"""Maximum number of observations listed in a message; an image has hundreds."""
RECURRENT_STEPS: Final = 200
"""Minimum number of consecutive steps for which a recurrent policy is probed."""


def probe_states(contract: PolicyContract, n: int, seed: int, range_factor: float = 2.0) -> npt.NDArray[np.float32]:
    """Return probe observations in SI units, float32 (n, width), which depend only on the arguments.

    The first is the centre of the range.  Then follow up to n/4 corners of the range and as many of the widened range
    (all corners, or a random selection if there are more); the others are uniform over the widened range.
    ``range_factor`` widens each half range, because a rig may leave its range, and outputs must be finite and bounded
    there as well.
    """
    rng = np.random.default_rng(seed)
    observations = Normalisation.from_signals(contract.observations)
    width = len(observations.centre)
    count = n // 4 if width >= 30 else min(1 << width, n // 4)
    if width < 20:
        corners = rng.permutation(1 << width)[:count]
        signs = 2.0 * ((corners[:, None] >> np.arange(width)) & 1) - 1.0
    else:
        signs = rng.choice((-1.0, 1.0), size=(count, width))
    uniform = rng.uniform(-range_factor, range_factor, size=(max(n - 1 - 2 * count, 0), width))
    normalised = np.concatenate([np.zeros((1, width)), signs, range_factor * signs, uniform])[:n]
    return observations.to_si(normalised).astype(np.float32)


def run_session(session: PolicySession) -> None:
    """Run once; raises ModelRefused (``format``) if onnxruntime fails."""
    try:
        session.run()
    except Exception as error:  # onnxruntime's exceptions have no common base below Exception
        raise ModelRefused("format", f"onnxruntime fails to run it: {error}") from error


class ProbeOutputs(NamedTuple):
    """Outputs of a policy by port, float32 (k, width) each, for k probes under the same noise."""

    noise: float
    outputs: dict[str, npt.NDArray[np.float32]]


def probe(session: PolicySession, probes: npt.NDArray[np.float32], required: PolicyContract) -> list[ProbeOutputs]:
    """Return the outputs at all probe states, one set for each level of noise.

    Raises ModelRefused (``finite``, ``bounds``, ``ports``) if any output is invalid.
    """
    probes = _probe_sequence(session, probes)
    noises = (0.0,) if session.noise is None else (0.0, NOISE_CUT, -NOISE_CUT)
    probe_outputs = [_probe_outputs(session, probes, noise) for noise in noises]
    for response in probe_outputs:
        for port, values in response.outputs.items():
            if port != "action":
                _check_finite(port, values, response.noise)
        _check_actions(response.outputs["action"], probes, required)
    if session.noise is not None:
        for response in probe_outputs:
            _check_agreement(response, probe_outputs[0], required, squashes=session.squashes)
    return probe_outputs


class NativeVerification(NamedTuple):
    """Result of comparing the C library's evaluation of a policy with onnxruntime's."""

    session: PolicySession | None
    """Session that evaluates the policy in the C library; None if the library cannot, or if the two disagree."""
    warning: str = ""
    """Description of the disagreement; empty if there is none."""


def verify_native(
    session: PolicySession,
    parsed_model: OnnxModel,
    expected: Sequence[ProbeOutputs],
    probes: npt.NDArray[np.float32],
    required: PolicyContract,
) -> NativeVerification:
    """Compare the C library's evaluation of a policy with onnxruntime's at all probe states.

    ``parsed_model``: the session's model; ``expected``: result of ``probe`` for the same states.
    """
    try:
        native_session = PolicySession(session.model, native=True, parsed_model=parsed_model)
    except ModelRefused:
        return NativeVerification(None)
    half_range = Normalisation.from_signals(required.actions).half_range
    for response in expected:
        for port, values in _probe_outputs(
            native_session, _probe_sequence(native_session, probes), response.noise
        ).outputs.items():
            scale = half_range if port == "action" else np.maximum(1.0, np.abs(response.outputs[port]))
            deviation = np.max(np.abs(values.astype(np.float64) - response.outputs[port]) / scale)
            if not deviation <= NATIVE_TOLERANCE:  # also true for NaN
                description = (
                    f"the C library's {port!r} differs by {deviation:.2g}, more than rounding ({NATIVE_TOLERANCE:g})"
                )
                return NativeVerification(None, f"evaluated by onnxruntime, because {description}")
    return NativeVerification(native_session)


def _probe_sequence(session: PolicySession, probes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the probes; for a recurrent policy, one episode of them, repeated if they are too few."""
    if session.hidden is None:
        return probes
    return np.resize(probes, (max(len(probes), RECURRENT_STEPS), probes.shape[1]))


def _probe_outputs(session: PolicySession, probes: npt.NDArray[np.float32], noise: float) -> ProbeOutputs:
    """Run the policy on every probe; a recurrent policy runs them as one episode."""
    ports = {"action": session.action}
    if session.noise is not None:
        session.noise.fill(noise)
        ports |= {"mean": session.mean, "std": session.std, "drawn": session.drawn}
    if session.hidden is not None:
        session.hidden.fill(0.0)
        ports["hidden_out"] = session.hidden_out
    outputs = {name: np.empty((len(probes), port.shape[1]), np.float32) for name, port in ports.items()}
    for row, probe in enumerate(probes):
        session.observation[0] = probe
        run_session(session)
        for name, port in ports.items():
            outputs[name][row] = port[0]
        if session.hidden is not None:
            session.hidden[:] = session.hidden_out
    return ProbeOutputs(noise, outputs)


def _check_finite(port: str, values: npt.NDArray[np.float32], noise: float) -> None:
    non_finite = np.argwhere(~np.isfinite(values))
    if len(non_finite):
        row, column = non_finite[0]
        raise ModelRefused(
            "finite",
            f"output {port!r} is {values[row, column]:.6g} with noise {noise:g}; "
            f"{len(non_finite)} of {values.size} values are non-finite",
        )


def _check_agreement(
    response: ProbeOutputs, without_noise: ProbeOutputs, required: PolicyContract, *, squashes: bool
) -> None:
    """Raise ModelRefused (``ports``) unless noise changes nothing but the draw, and the action follows from the draw.

    ``without_noise``: outputs for the same probes without noise.
    """
    mean, std, drawn, action = (
        response.outputs[port].astype(np.float64) for port in ("mean", "std", "drawn", "action")
    )
    normalised = Normalisation.from_signals(required.actions).normalise(action)
    expected_action = np.tanh(drawn) if squashes else np.clip(drawn, -1.0, 1.0)
    if (std < 0.0).any():
        raise ModelRefused("ports", f"output 'std' is {std.min():.6g}; it must not be negative")
    checks = [("'drawn'", drawn, "'mean' + 'std' x noise", mean + std * response.noise)]
    checks += [
        ("'action', normalised,", normalised, f"'drawn' {'squashed' if squashes else 'clipped'}", expected_action)
    ]
    if "hidden_out" not in without_noise.outputs:  # a recurrent state may depend on the draw
        checks += [
            (f"{port!r} with noise", values, f"{port!r} without", without_noise.outputs[port].astype(np.float64))
            for port, values in (("mean", mean), ("std", std))
        ]
    for subject, actual, expected_subject, expected in checks:
        deviation = np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))
        if (deviation > PORT_TOLERANCE).any():
            index = np.unravel_index(int(np.argmax(deviation)), deviation.shape)
            raise ModelRefused(
                "ports",
                f"output {subject} is {actual[index]:.6g} where {expected_subject} is {expected[index]:.6g} "
                f"(noise {response.noise:g})",
            )


def _check_actions(outputs: npt.NDArray[np.float32], probes: npt.NDArray[np.float32], expected: PolicyContract) -> None:
    """Raise ModelRefused if any action is non-finite (``finite``), or for the action furthest out of bounds
    (``bounds``)."""

    def describe_action(row: int, column: int) -> str:
        values = [f"{s.name} {v:.4g}" for s, v in zip(expected.observations, probes[row], strict=True)]
        remainder = [f"{len(values) - _MAX_DESCRIBED} more"] if len(values) > _MAX_DESCRIBED else []
        state = ", ".join(values[:_MAX_DESCRIBED] + remainder)
        return f"action {expected.actions[column].name!r} is {outputs[row, column]:.6g} at {state}"

    non_finite = np.argwhere(~np.isfinite(outputs))
    if len(non_finite):
        raise ModelRefused(
            "finite", f"{describe_action(*non_finite[0])}; {len(non_finite)} of {outputs.size} outputs are non-finite"
        )
    low, high = (np.array([getattr(a, end) for a in expected.actions]) for end in ("low", "high"))
    tolerance = BOUNDS_TOLERANCE * 0.5 * (high - low)
    excess = np.maximum(low - outputs, outputs - high) - tolerance
    if (excess > 0).any():
        row, column = np.unravel_index(int(np.argmax(excess / (high - low))), excess.shape)
        limit = expected.actions[int(column)]
        raise ModelRefused(
            "bounds",
            f"{describe_action(int(row), int(column))}; allowed: [{limit.low:.6g}, {limit.high:.6g}] {limit.unit}; "
            f"{int((excess > 0).sum())} of {outputs.size} outputs are outside (squash or clip them in the graph)",
        )
