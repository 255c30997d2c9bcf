"""A policy's C source, compiled for this machine, next to onnxruntime."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.runtime.policy.contract import PolicyContract
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.policy.session import PolicySession
from onrig.tools.policy_to_c.source import source_of
from tests.hw.firmware.build import need

STRICT_FLAGS: Final = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wdouble-promotion"]
STRICT_PROTOTYPE_FLAGS: Final = ["-Wstrict-prototypes", "-Wmissing-prototypes", "-Werror"]

Actions = npt.NDArray[np.float32]


class CompiledPolicy(NamedTuple):
    """The function of a generated file."""

    library: ctypes.CDLL
    contract: PolicyContract

    def actions(self, observations: Actions) -> Actions:
        actions = np.empty((len(observations), len(self.contract.actions)), np.float32)
        act, observations_pointer, actions_pointer = (
            self.library.policy_act,
            observations.ctypes.data,
            actions.ctypes.data,
        )
        act.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        for row in range(len(observations)):
            act(observations_pointer + row * observations.strides[0], actions_pointer + row * actions.strides[0])
        return actions

    def check(self) -> float:
        """Result of the file's own check."""
        self.library.onrig_policy_check.restype = ctypes.c_float
        return float(self.library.onrig_policy_check())


def compile_policy(model: bytes, folder: Path) -> CompiledPolicy:
    """Translate and compile a policy, without any warning."""
    need("gcc")
    source = source_of(model, "policy")
    stem = folder / hashlib.sha256(model).hexdigest()[:12]
    stem.with_suffix(".c").write_text(source.text)
    flags = [*STRICT_FLAGS, *STRICT_PROTOTYPE_FLAGS, "-O1", "-DONRIG_POLICY_CHECK", "-shared", "-fPIC"]
    files = ["-o", str(stem.with_suffix(".so")), str(stem.with_suffix(".c")), "-lm"]
    subprocess.run(["gcc", *flags, *files], check=True, timeout=60)
    return CompiledPolicy(ctypes.CDLL(str(stem.with_suffix(".so"))), source.contract)


def run_in_onnxruntime(model: bytes, observations: Actions) -> Actions:
    """Actions without noise."""
    session = PolicySession(model)
    actions = np.empty((len(observations), session.action.shape[1]), np.float32)
    for row, observation in enumerate(observations):
        session.observation[0] = observation
        session.run()
        actions[row] = session.action[0]
    return actions


def states(contract: PolicyContract, n: int, max_width: float) -> Actions:
    """States inside and outside the observations' ranges, up to ``max_width`` times as far."""
    widths = np.geomspace(1.0, max_width, 4).tolist()
    return np.concatenate([probe_states(contract, n // 4, seed, factor) for seed, factor in enumerate(widths)])


def max_deviation(model: bytes, folder: Path, n: int, max_width: float = 100.0) -> float:
    """Largest difference between the C function and onnxruntime; the file's own check must agree."""
    function = compile_policy(model, folder)
    observations = states(function.contract, n, max_width)
    expected = run_in_onnxruntime(model, observations)
    assert np.isfinite(expected).all()
    assert np.ptp(expected, axis=0).min() > 0.1  # not a constant
    assert function.check() <= 1e-5
    return float(np.abs(function.actions(observations).astype(np.float64) - expected).max())
