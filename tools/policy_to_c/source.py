"""C99 source of a policy: the function, its description for Onrig's firmware, and a check against onnxruntime."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from onrig.hw.renewal import policy_name
from onrig.runtime.policy.admission import AdmissionLimits
from onrig.runtime.policy.contract import (
    METADATA_KEY,
    ModelRefused,
    PolicyContract,
    Signal,
    decode_contract,
    ports_for,
    sanitise,
)
from onrig.runtime.policy.graph import check_graph, check_operators, hidden_width
from onrig.runtime.policy.onnx_wire import OnnxModel, read_model
from onrig.runtime.policy.probing import probe, probe_states
from onrig.runtime.policy.session import PolicySession
from onrig.tools.policy_to_c.operators import body_of
from onrig.tools.policy_to_c.workspace import Body, literal

N_CHECKS: Final = 32
"""Number of states in the generated file's check."""
_CHECK_HALF_RANGES: Final = 4.0
"""Maximum magnitude of these states, in half-ranges of the observations."""

_TEMPLATE: Final = """\
/* Policy '{run}', id {id}, as C99: no allocation, <math.h> in single precision. Made by onrig policy to-c.
 *
 * SHA-256 of the ONNX model: {digest}
 * {behaviour}, for the rig '{rig}' at {rate:g} Hz, after {steps} training steps.
 * Constants: {constants} bytes (flash); static data: {work} bytes (RAM).
 *
 * observation: {observations}
 * action: {actions}
 *
 * Both in SI units, in this order. The function keeps static data: call it from one thread or interrupt level.
 * It is not a safety layer: clamp what it returns, and check that it is finite.
 */
#include <math.h>

void {name}_act(const float observation[{n}], float action[{m}]);

{tables}

void {name}_act(const float observation[{n}], float action[{m}]) {{
{statements}
}}

#if defined ONRIG_POLICY /* built into Onrig's firmware: make -C hw/firmware POLICY=FILE */
#include "core/policy.h"

static const struct onrig_signal signals[{n_signals}] = {{
{signals}
}};

const struct onrig_policy onrig_policy = {{
    .digest = {{{prefix}}},
    .period_us = {period_us}u,
    .n_observations = {n},
    .n_actions = {m},
    .signals = signals,
    .act = {name}_act,
}};
#endif

#if defined ONRIG_POLICY_CHECK /* the function's deviation from onnxruntime on the processor that runs it */
float onrig_policy_check(void);

static const float check_observations[{checks}][{n}] = {{
{check_observations}
}};
static const float check_actions[{checks}][{m}] = {{
{check_actions}
}};

/* Largest difference from onnxruntime's actions, in SI units; NaN if an action is. */
float onrig_policy_check(void) {{
    float worst = 0.0f, action[{m}];
    for (int i = 0; i < {checks}; i++) {{
        {name}_act(check_observations[i], action);
        for (int j = 0; j < {m}; j++) {{
            const float off = fabsf(action[j] - check_actions[i][j]);
            if (!(off <= worst)) worst = off;
            if (worst != worst) return worst;
        }}
    }}
    return worst;
}}
#endif
"""


class Source(NamedTuple):
    """Generated C file."""

    text: str
    contract: PolicyContract
    constant_bytes: int
    work_bytes: int


def source_of(model: bytes, name: str) -> Source:
    """Translate a policy; ``name`` is the prefix of the function.

    Raises ModelRefused, with stage and reason, for a model that no rig would admit, or that has no contract, a hidden
    state or an unsupported operator.
    """
    limits = AdmissionLimits()
    if len(model) > limits.max_bytes:
        raise ModelRefused("size", f"more than {limits.max_bytes} bytes")
    parsed = read_model(model)
    check_operators(parsed)
    contract = _contract(parsed)
    if hidden_width(parsed):
        raise ModelRefused("ports", "the C function does not support a hidden state: export a policy without memory")
    ports = ports_for(len(contract.observations), len(contract.actions), stochastic=contract.stochastic)
    check_graph(parsed, ports, limits.max_parameters, limits.max_operations)
    body = body_of(parsed, ports.inputs)
    states = probe_states(contract, N_CHECKS, 0, _CHECK_HALF_RANGES)
    actions = probe(PolicySession(model), states, contract)[0].outputs["action"]
    return Source(
        _source_text(model, name, contract, body, states, actions), contract, body.constant_bytes, body.work_bytes
    )


def _contract(model: OnnxModel) -> PolicyContract:
    text = model.metadata.get(METADATA_KEY)
    if text is None:
        raise ModelRefused("contract", "missing; add the contract of the rig with onrig policy stamp")
    try:
        return decode_contract(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelRefused("contract", f"metadata {METADATA_KEY!r}: {error}") from error


def _source_text(
    model: bytes,
    name: str,
    contract: PolicyContract,
    body: Body,
    states: npt.NDArray[np.float32],
    actions: npt.NDArray[np.float32],
) -> str:
    signals = (*contract.observations, *contract.actions)
    return _TEMPLATE.format(
        name=name,
        run=_comment(contract.parent_run),
        id=contract.policy_id,
        digest=hashlib.sha256(model).hexdigest(),
        behaviour="Deterministic" if not contract.stochastic else f"Mean of a {_comment(contract.behaviour)}",
        rig=_comment(contract.rig),
        rate=contract.rate_hz,
        steps=contract.training_step,
        constants=body.constant_bytes,
        work=body.work_bytes,
        observations=_signal_list(contract.observations),
        actions=_signal_list(contract.actions),
        n=len(contract.observations),
        m=len(contract.actions),
        tables=body.constants,
        statements=body.statements,
        n_signals=len(signals),
        signals="\n".join(f"    {{{_string_literal(s.name)}, {_string_literal(s.unit)}}}," for s in signals),
        prefix=", ".join(f"0x{byte:02x}" for byte in policy_name(model)),
        period_us=round(1e6 / contract.rate_hz),
        checks=len(states),
        check_observations=_array_rows(states),
        check_actions=_array_rows(actions),
    )


def c_name(stem: str) -> str:
    """Return a prefix for C identifiers, derived from a file name."""
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    return name if name.isidentifier() else f"policy_{name}"


def _signal_list(signals: Sequence[Signal]) -> str:
    text = ", ".join(f"{_comment(s.name)} ({_comment(s.unit)}, {s.low:g} to {s.high:g})" for s in signals)
    return ("\n *" + " " * 9).join(textwrap.wrap(text, 100))


def _comment(text: str) -> str:
    """Make untrusted text safe for a comment."""
    return sanitise(text).replace("*/", "* /").replace("/*", "/ *")


def _string_literal(text: str) -> str:
    """Return a C string literal of untrusted text, in ASCII."""
    return '"' + "".join(c if c in _PLAIN else f"\\{ord(c):03o}" for c in text.encode().decode("latin-1")) + '"'


_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.^/()%*+")


def _array_rows(array: npt.NDArray[np.float32]) -> str:
    return "\n".join(f"    {{{', '.join(literal(float(v)) for v in row)}}}," for row in array)
