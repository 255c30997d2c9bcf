"""Session that the tick calls to run one policy, bound to fixed buffers.

By default, onnxruntime's sessions busy-wait in one thread per core; this one starts no threads, reuses its arrays and
creates no garbage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime

from onrig.hw.native import variant
from onrig.runtime.policy.contract import (
    BEHAVIOURS,
    DETERMINISTIC,
    HIDDEN,
    HIDDEN_OUT,
    INPUT_NAME,
    METADATA_KEY,
    NOISE,
    OUTPUT_NAME,
    SQUASHED_GAUSSIAN,
    ModelRefused,
    decode_contract,
    ports_for,
)
from onrig.runtime.policy.network import compile_network
from onrig.runtime.policy.onnx_wire import OnnxModel, read_model

Port = npt.NDArray[np.float32]

MAX_WIDTH: Final = 8192
"""Maximum number of components of an observation or an action."""
_FATAL_ONLY: Final = 4
"""Log severity "fatal": errors are raised as exceptions anyway, and stderr belongs to the terminal display."""
_OPTIONS: Final = {
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
    # Otherwise onnxruntime would also accept bytes in its own format, which the admission does not check.
    "session.load_model_format": "ONNX",
}


def _session_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # BASIC takes 60 % as long to build as ALL, and small networks run equally fast.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = _FATAL_ONLY
    for key, value in _OPTIONS.items():
        options.add_session_config_entry(key, value)
    return options


def _build_session(model: bytes) -> onnxruntime.InferenceSession:
    onnxruntime.disable_telemetry_events()
    return onnxruntime.InferenceSession(
        model,
        _session_options(),
        providers=["CPUExecutionProvider"],
        # Otherwise onnxruntime would retry and print a message to stdout, and would read options from the model.
        enable_fallback=0,
        read_config_from_model=0,
    )


def _port_widths(kind: str, ports: list[onnxruntime.NodeArg]) -> dict[str, int]:
    """Return the widths of all ports by name; each must be a float32 tensor (1, width) or (batch, width)."""
    widths = {}
    for port in ports:
        shape = port.shape
        if port.type != "tensor(float)":
            raise ModelRefused("shapes", f"{kind} {port.name!r} is {port.type}; it must be tensor(float)")
        if len(shape) != 2 or shape[1] not in range(1, MAX_WIDTH + 1) or (isinstance(shape[0], int) and shape[0] != 1):
            raise ModelRefused(
                "shapes", f"{kind} {port.name!r} has shape {shape}; it must be (1, n) with n <= {MAX_WIDTH}"
            )
        widths[port.name] = int(shape[1])
    return widths


def _read_behaviour(metadata: Mapping[str, str]) -> str:
    """Return the distribution named in a stochastic policy's metadata."""
    try:
        behaviour = decode_contract(metadata.get(METADATA_KEY, "")).behaviour
    except msgspec.DecodeError as error:
        raise ModelRefused("contract", f"metadata {METADATA_KEY!r}: {error}") from error
    if behaviour not in BEHAVIOURS or behaviour == DETERMINISTIC:
        raise ModelRefused("contract", f"behaviour is {behaviour!r}, but the graph has the input {NOISE!r}")
    return behaviour


def _format_widths(widths: dict[str, int]) -> str:
    return ", ".join(f"{name} (1, {width})" for name, width in widths.items()) or "none"


_NO_VALUES: Final = np.zeros((1, 0), np.float32)
_INPUT_ORDER: Final = (INPUT_NAME, NOISE, HIDDEN)
_OUTPUT_ORDER: Final = (OUTPUT_NAME, "mean", "std", "drawn", HIDDEN_OUT)


class _BoundModel(NamedTuple):
    """A model ready to run: an array (1, width) for each port, which is a view of the input row or the output row."""

    input_row: memoryview
    inputs: dict[str, Port]
    output_row: memoryview
    outputs: dict[str, Port]
    call: Callable[..., object]
    arguments: tuple[object, ...]
    metadata: Mapping[str, str]
    owner: object
    """Object that must outlive the call."""


def _packed_views(row: Port, widths: Mapping[str, int], order: Sequence[str]) -> dict[str, Port]:
    """Return views of ``row``, one for each port in ``widths``, in a given order."""
    arrays, start = {}, 0
    for name in order:
        if name in widths:
            arrays[name] = row[None, start : start + widths[name]]
            start += widths[name]
    return arrays


def _check_ports(inputs: dict[str, int], outputs: dict[str, int]) -> None:
    n, m, hidden = inputs.get(INPUT_NAME, 0), outputs.get(OUTPUT_NAME, 0), inputs.get(HIDDEN, 0)
    expected = ports_for(n, m, stochastic=NOISE in inputs, hidden=hidden)
    for kind, actual, required in zip(("inputs", "outputs"), (inputs, outputs), expected, strict=True):
        if actual != required:
            raise ModelRefused(
                "shapes", f"{kind} are {_format_widths(actual)}; they must be {_format_widths(required)}"
            )


def _bind_onnxruntime(model: bytes) -> _BoundModel:
    session = _build_session(model)
    inputs, outputs = (
        _port_widths(kind, ports)
        for kind, ports in (("input", session.get_inputs()), ("output", session.get_outputs()))
    )
    _check_ports(inputs, outputs)
    input_row, output_row = (np.zeros(sum(widths.values()), np.float32) for widths in (inputs, outputs))
    input_views = _packed_views(input_row, inputs, _INPUT_ORDER)
    output_views = _packed_views(output_row, outputs, _OUTPUT_ORDER)
    binding = session.io_binding()
    for name, array in input_views.items():
        binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    for name, array in output_views.items():
        binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    metadata = session.get_modelmeta().custom_metadata_map
    call = _fast_call(session, binding)
    return _BoundModel(input_row.data, input_views, output_row.data, output_views, *call, metadata, (session, binding))


def _bind_native(model: bytes, parsed_model: OnnxModel | None) -> _BoundModel:
    parsed_model = read_model(model) if parsed_model is None else parsed_model
    network = compile_network(parsed_model, _INPUT_ORDER, _OUTPUT_ORDER)
    call = None if network is None else network.bind()
    if network is None or call is None:
        raise ModelRefused("format", "the C library does not evaluate this graph, or is missing")
    inputs, outputs = ({name: r.width for name, r in rows.items()} for rows in (network.inputs, network.outputs))
    _check_ports(inputs, outputs)
    n = sum(inputs.values())
    input_row, output_row = network.values[:n], network.values[n : n + sum(outputs.values())]
    input_views = _packed_views(input_row, inputs, _INPUT_ORDER)
    output_views = _packed_views(output_row, outputs, _OUTPUT_ORDER)
    return _BoundModel(
        input_row.data, input_views, output_row.data, output_views, call, (), parsed_model.metadata, network
    )


class PolicySession:
    """A policy ready to run: write its float32 inputs, call ``run``, and read its float32 outputs.

    onnxruntime evaluates the policy or, with ``native``, the C library does; the two differ in rounding.  Admission
    decides which of them a run uses.

    ``onrig.runtime.policy.contract.ports_for`` describes the ports.  The arrays belong to the session: write into them,
    but do not replace them.  Raises ModelRefused if onnxruntime or the C library cannot build the model (``format``),
    if its ports are not those of a policy (``shapes``), or if the metadata of a stochastic policy name no distribution
    (``contract``).  All other checks of the model are in ``onrig.runtime.policy.admission``.
    """

    def __init__(self, model: bytes, *, native: bool = False, parsed_model: OnnxModel | None = None) -> None:
        """``parsed_model``: result of ``read_model``; passing it halves the time taken to build a native session."""
        self.model: Final = model
        """ONNX bytes of the model."""
        self.native: Final = native
        """Whether the C library evaluates the policy."""
        try:
            bound_model = _bind_native(model, parsed_model) if native else _bind_onnxruntime(model)
            stochastic = NOISE in bound_model.inputs
            behaviour = _read_behaviour(bound_model.metadata) if stochastic else DETERMINISTIC
        except ModelRefused:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base below Exception
            raise ModelRefused("format", f"onnxruntime rejects it: {error}") from error
        self._bound_model = bound_model
        self._input_row, self._output_row = bound_model.input_row, bound_model.output_row
        self._call, self._arguments = bound_model.call, bound_model.arguments
        self.observation: Port = bound_model.inputs[INPUT_NAME]
        self.noise: Port | None = bound_model.inputs.get(NOISE)
        self.hidden: Port | None = bound_model.inputs.get(HIDDEN)
        self.action: Port = bound_model.outputs[OUTPUT_NAME]
        self.mean, self.std, self.drawn = (bound_model.outputs.get(name, _NO_VALUES) for name in _OUTPUT_ORDER[1:4])
        self.hidden_out: Port = bound_model.outputs.get(HIDDEN_OUT, _NO_VALUES)
        self.has_basic_ports: Final = not (stochastic or self.hidden is not None)
        """Whether ``observation`` and ``action`` are the only ports."""
        self.squashes: Final = behaviour == SQUASHED_GAUSSIAN
        """Whether the action is the tanh of the draw instead of the clipped draw."""
        n, m = self.observation.shape[1], self.action.shape[1]
        self._pack = struct.Struct(f"{n + (m if stochastic else 0)}f").pack_into
        self._unpack = struct.Struct(f"{4 * m if stochastic else m}f").unpack_from

    def run(self) -> None:
        """Compute the outputs from the inputs; onnxruntime's exceptions have no common base below Exception."""
        self._call(*self._arguments)

    def act(self, values: Sequence[float]) -> tuple[float, ...]:
        """Run the policy on ``values`` and return its ``action`` (m,).

        ``values`` is the observation, followed by the noise for a stochastic policy, whose result is ``action``,
        ``mean``, ``std`` and ``drawn`` in a row, (m,) each.  Values beyond the range of float32 become infinite.
        Raises struct.error if the length is wrong, and onnxruntime's exceptions.  Packing is faster than assigning to
        an array.
        """
        self._pack(self._input_row, 0, *values)
        self._call(*self._arguments)
        return self._unpack(self._output_row)

    def warm_up(self, n_runs: int) -> None:
        """Run ``n_runs`` times to warm up buffers, pages and caches."""
        for _ in range(n_runs):
            self.run()


def _fast_call(
    session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding
) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Return the inner call of ``run_with_iobinding`` and its arguments if it is available, otherwise the public call.

    The inner call skips checks for GPUs, which take 0.4 of 4.4 us.
    """
    inner_call = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
    inner_binding = getattr(binding, "_iobinding", None)
    if callable(inner_call) and inner_binding is not None:
        return inner_call, (inner_binding, None)
    call: Callable[..., object] = session.run_with_iobinding
    return call, (binding,)


def evaluator_of(*, native: bool) -> str:
    """Return the name of a policy's evaluator: ``onnxruntime``, or the variant of the C library (``C x86-64-v3``)."""
    return f"C {variant()}" if native else "onnxruntime"
