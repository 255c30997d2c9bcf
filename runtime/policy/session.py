"""One policy bound to fixed buffers, for the tick to call.

Default sessions busy-wait in a thread per core; this one has no threads of its own, always uses the same two arrays,
and creates no garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from onrig.runtime.policy.contract import INPUT_NAME, OUTPUT_NAME, ModelRefused

MAX_WIDTH: Final = 4096
"""Largest number of components of an observation or an action."""
_SILENT: Final = 4
"""Log severity "fatal": errors are raised as exceptions too, and stderr belongs to the terminal display."""
_OPTIONS: Final = {
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
    # Otherwise bytes in onnxruntime's own format would be accepted, which the checks here do not cover.
    "session.load_model_format": "ONNX",
}


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # BASIC builds in 60 % of the time of ALL, and small networks run no slower.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = _SILENT
    for key, value in _OPTIONS.items():
        options.add_session_config_entry(key, value)
    return options


def _build(model: bytes) -> onnxruntime.InferenceSession:
    onnxruntime.disable_telemetry_events()
    return onnxruntime.InferenceSession(
        model,
        _options(),
        providers=["CPUExecutionProvider"],
        # Otherwise onnxruntime would retry with a message on stdout, and take options from the model.
        enable_fallback=0,
        read_config_from_model=0,
    )


def _width(kind: str, name: str, ports: list[onnxruntime.NodeArg]) -> int:
    """Return the width n of the only port, a float32 tensor (1, n) or (batch, n)."""
    [port] = ports if len(ports) == 1 else [None]
    if port is None or port.name != name or port.type != "tensor(float)":
        got = [f"{p.name}: {p.type}" for p in ports[:8]]
        raise ModelRefused("shapes", f"{kind} must be one tensor(float) named {name!r}, is {got}")
    shape = port.shape
    if len(shape) != 2 or shape[1] not in range(1, MAX_WIDTH + 1) or (isinstance(shape[0], int) and shape[0] != 1):
        raise ModelRefused("shapes", f"{kind} {name!r} has shape {shape}, must be (1, n) with n <= {MAX_WIDTH}")
    return int(shape[1])


class PolicySession:
    """An onnxruntime session of one policy; ``observation`` (1, n) in, ``run``, ``action`` (1, m) out, all float32.

    The arrays belong to the session and never change: write into ``observation``, do not replace it. Raises
    ModelRefused if onnxruntime refuses the model (``format``) or the ports differ (``shapes``). The model is judged
    elsewhere, in ``onrig.runtime.policy.admission``.
    """

    def __init__(self, model: bytes) -> None:
        self.model: Final = model
        """The ONNX bytes it runs."""
        try:
            session = _build(model)
            n = _width("input", INPUT_NAME, session.get_inputs())
            m = _width("output", OUTPUT_NAME, session.get_outputs())
        except ModelRefused:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base below Exception
            raise ModelRefused("format", f"onnxruntime refuses it: {error}") from error
        self.observation: npt.NDArray[np.float32] = np.zeros((1, n), np.float32)
        self.action: npt.NDArray[np.float32] = np.zeros((1, m), np.float32)
        binding = session.io_binding()
        binding.bind_cpu_input(INPUT_NAME, self.observation)
        binding.bind_output(OUTPUT_NAME, "cpu", 0, np.float32, (1, m), self.action.ctypes.data)
        self._session = session
        self._binding = binding
        self._call, self._arguments = _hot_call(session, binding)

    def run(self) -> None:
        """Compute ``action`` from ``observation``; onnxruntime's exceptions have no common base below Exception."""
        self._call(*self._arguments)

    def warm_up(self, runs: int) -> None:
        """Run ``runs`` times, so that buffers, pages and caches are ready for the loop's first call."""
        for _ in range(runs):
            self.run()


def _hot_call(
    session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding
) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Choose the call below ``run_with_iobinding`` if available: the checks for GPUs take 0.4 of 4.4 us."""
    inner = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
    inner_binding = getattr(binding, "_iobinding", None)
    if callable(inner) and inner_binding is not None:
        return inner, (inner_binding, None)
    call: Callable[..., object] = session.run_with_iobinding
    return call, (binding,)
