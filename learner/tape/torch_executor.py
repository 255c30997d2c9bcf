"""Programs run by torch, on a CPU or a GPU, as a float64 reference or for networks wide enough for a GPU.

This is the only module of the learner that imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onrig.learner.tape.executor import Run, check_arrays
from onrig.learner.tape.operations import COLUMNS, MASKED, N_SEEDS, OPERATIONS, operand_shapes
from onrig.learner.tape.program import Program
from onrig.learner.tape.windows import Windows

Kernel = Callable[[], object]
_SOFTPLUS_LINEAR: Final = 20.0


class TorchExecutor:
    """Executor whose programs have one state, one record and one scratch space on a device, which trials and updates
    use in turn.

    The host waits for the device only once a trial's updates are done.
    """

    def __init__(self, device: str, dtype: np.dtype[np.floating]) -> None:
        """Open a device; raise RuntimeError or AssertionError if torch does not know it."""
        self.name = f"torch {device}"
        self.dtype = dtype
        self._device = torch.zeros(1, device=device).device

    def bind(self, program: Program) -> Run:
        torch_dtype = torch.float32 if self.dtype == np.float32 else torch.float64
        spaces = [torch.zeros(int(size), dtype=torch_dtype, device=self._device) for size in program.sizes]
        kernels = [(1 << int(op["section"]), _bind_kernel(op, spaces)) for op in program.operations]
        dtype, (state_space, record_space, _) = self.dtype, spaces

        @torch.no_grad()
        def run(state: NDArray[Any], records: NDArray[Any], sections: NDArray[np.uint32] | None) -> None:
            check_arrays(program, dtype, state, records, sections)
            masks = [1] * records.shape[1] if sections is None else (sections | 1).tolist()
            for trial_state, trial_records in zip(torch.from_numpy(state), torch.from_numpy(records), strict=True):
                state_space.copy_(trial_state)
                device_records = trial_records.to(self._device)
                for record, mask in zip(device_records, masks, strict=True):
                    record_space.copy_(record)
                    for section, kernel in kernels:
                        if section & mask:
                            kernel()
                    record.copy_(record_space)
                trial_records.copy_(device_records)
                trial_state.copy_(state_space)

        return run


def _bind_kernel(op: np.void, spaces: Sequence[Tensor]) -> Kernel:
    views = []
    for i, shape in enumerate(operand_shapes(op)):
        offset, strides = int(op["at"][i]), (int(op["by_row"][i]), int(op["by_col"][i]))
        views.append(spaces[int(op["space"][i])].as_strided(shape, strides, offset))
    out, *inputs = views
    name, x, y = OPERATIONS[int(op["code"])].name, float(op["x"]), float(op["y"])
    if name in _OUT_FUNCTIONS:
        kernel = _OUT_FUNCTIONS[name]
        return lambda: kernel(*inputs, out=out)
    if name in _FUNCTIONS:
        value = _FUNCTIONS[name]
        return lambda: out.copy_(value(*inputs))
    if name in _CONSTANT_KERNELS:
        kernel_with_constants = _CONSTANT_KERNELS[name]
        return lambda: kernel_with_constants(out, x, y, *inputs)
    if name == "adam":
        beta1, beta2 = (float(beta) for beta in op["more"])
        return lambda: _adam(out, x, y, beta1, beta2, *inputs)
    if name.startswith("standardise"):
        return _standardise(out, int(op["post"]), y, *inputs)
    if name.startswith("patches"):
        return _patches(out, name == "patches_slope", Windows.from_operation(op), *inputs)
    if name == "drop":
        return _drop(out, x, int(op["inner"]), *inputs)
    return _PRODUCTS[name](out, int(op["post"]), *inputs)


_OUT_FUNCTIONS: Final[dict[str, Callable[..., object]]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "minimum": torch.minimum,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
"""Kernels that take their output as the keyword ``out``."""


def _zero(value: Tensor) -> Tensor:
    return torch.zeros((), dtype=value.dtype, device=value.device)


def _where(condition: Tensor, value: Tensor) -> Tensor:
    return torch.where(condition, value, _zero(value))


_FUNCTIONS: Final[dict[str, Callable[..., Tensor]]] = {
    "copy": lambda a: a,
    "softplus": lambda a: torch.where(a > _SOFTPLUS_LINEAR, a, torch.log1p(torch.exp(a.clamp(max=_SOFTPLUS_LINEAR)))),
    "softsign": lambda a: a / (1.0 + a.abs()),
    "where_positive": lambda a, b: _where(a > 0.0, b),
    "where_less": lambda a, b, c: _where(a <= b, c),
    "where_more": lambda a, b, c: _where(a > b, c),
    "tanh_slope": lambda y, g: g * (1.0 - y * y),
    "sigmoid_slope": lambda y, g: g * (y * (1.0 - y)),
    "softsign_slope": lambda y, g: g * (1.0 - y.abs()).square(),
    "equal": lambda a, b: a == b,
    "sum": lambda a: a.sum().reshape(1, 1),
    "sum_of_squares": lambda a: a.square().sum().reshape(1, 1),
    "row_sum": lambda a: a.sum(1, keepdim=True),
    "row_max": lambda a: a.amax(1, keepdim=True),
    "row_argmax": lambda a: a.argmax(1, keepdim=True),
    "column_sum": lambda a: a.sum(0, keepdim=True),
}
"""Functions of the inputs, whose results are copied into the output."""


def _project(out: Tensor, low: float, high: float, p: Tensor, reward: Tensor, discount: Tensor) -> None:
    atoms = out.shape[1]
    z = torch.linspace(low, high, atoms, dtype=torch.float64, device=out.device).to(out.dtype)
    position = ((reward + discount * z).clamp(low, high) - low) / ((high - low) / (atoms - 1))
    # Each atom gathers from every position, weighted by distance, because a scattered addition has no defined order.
    weights = 1.0 - (position[:, :, None] - torch.arange(atoms, device=out.device)).abs()
    out.copy_((p[:, :, None] * weights.clamp(min=0.0)).sum(1))


_CONSTANT_KERNELS: Final[dict[str, Callable[..., object]]] = {
    "fill": lambda out, x, y: out.fill_(x),
    "affine": lambda out, x, y, a: out.copy_(a * x + y),
    "clamp": lambda out, x, y, a: torch.clamp(a, x, y, out=out),
    "inside": lambda out, x, y, a, b: out.copy_(torch.where((a < x) | (a > y), _zero(b), b)),
    "add_scaled": lambda out, x, y, a: out.add_(a, alpha=x),
    "follow": lambda out, x, y, a: out.add_(a - out, alpha=x),
    "fold": lambda out, x, y, a: torch.sum(a.reshape(len(a), -1, out.shape[1]), 1, out=out),
    "tile": lambda out, x, y, a: out.copy_(a.repeat(1, out.shape[1] // a.shape[1])),
    "project": _project,
}
"""Kernels that are called with their output, constants and inputs."""


def _standardise(out: Tensor, post: int, eps: float, a: Tensor, *gradient: Tensor) -> Kernel:
    axis = 0 if post == COLUMNS else 1

    def kernel() -> None:
        centred = a - a.mean(axis, keepdim=True)
        std = (centred.square().mean(axis, keepdim=True) + eps).sqrt()
        standardised = centred / std
        if not gradient:
            out.copy_(standardised)
            return
        g = gradient[0]
        gradient_part = g - g.mean(axis, keepdim=True) - standardised * (g * standardised).mean(axis, keepdim=True)
        torch.div(gradient_part, std, out=out)

    return kernel


def _patches(out: Tensor, is_slope: bool, windows: Windows, a: Tensor) -> Kernel:
    height, width, channels, side, stride = windows
    images, parts = (out, a) if is_slope else (a, out)
    pixels = images.reshape(-1, height, width, channels)
    view = pixels.unfold(1, side, stride).unfold(2, side, stride).permute(0, 1, 2, 4, 5, 3)
    parts = parts.reshape(view.shape)
    if not is_slope:
        return lambda: parts.copy_(view)
    rows, (grid_height, grid_width) = len(images), windows.grid
    channels_first = parts.permute(0, 5, 3, 4, 1, 2)

    def kernel() -> None:
        columns = channels_first.reshape(rows, windows.patch, grid_height * grid_width)
        summed_gradients = torch.nn.functional.fold(columns, (height, width), side, stride=stride)
        pixels.copy_(summed_gradients.permute(0, 2, 3, 1))

    return kernel


def _hash(bits: Tensor) -> Tensor:
    """Return ``numpy_kernels._hash`` of 32-bit words, each held in a 64-bit element."""
    word_mask = 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & word_mask
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & word_mask
    return bits ^ (bits >> 16)


def _drop(out: Tensor, rate: float, use_index: int, a: Tensor, seed: Tensor) -> Kernel:
    word_mask, golden_ratio = 0xFFFFFFFF, 0x9E3779B9
    elements = torch.arange(out.numel(), device=out.device).reshape(out.shape) * golden_ratio & word_mask
    use_hash = _hash(torch.tensor((use_index + golden_ratio) & word_mask, device=out.device))
    threshold, factor, zero = int(rate * 2.0**32), 1.0 / (1.0 - rate), _zero(out)

    def kernel() -> None:
        valid_seed = torch.where((seed >= 0.0) & (seed < N_SEEDS), seed, zero).long()
        bits = _hash((elements + _hash(valid_seed ^ use_hash)) & word_mask)
        torch.where(bits >= threshold, a * factor, zero, out=out)

    return kernel


def _adam(
    out: Tensor, lr: float, eps: float, beta1: float, beta2: float, gradient: Tensor, moments: Tensor, factor: Tensor
) -> None:
    n = out.shape[1]
    mean, square, step = moments[:, :n], moments[:, n : 2 * n], moments[:, 2 * n :]
    step += 1.0
    n_steps = step.double()
    mean.lerp_(gradient, 1.0 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    denominator = square.sqrt().mul_((1.0 / (1.0 - beta2**n_steps).sqrt()).to(out.dtype)).add_(eps)
    torch.div(mean, denominator, out=denominator)
    out -= denominator.mul_((lr * factor.double() / (1.0 - beta1**n_steps)).to(out.dtype))


def _product(out: Tensor, post: int, a: Tensor, b: Tensor, bias: Tensor) -> Kernel:
    if post:
        return lambda: torch.addmm(bias, a, b, out=out).clamp_(min=0.0)
    return lambda: torch.addmm(bias, a, b, out=out)


def _product_nt(out: Tensor, post: int, a: Tensor, b: Tensor, *mask: Tensor) -> Kernel:
    b_transposed = b.T
    if post == MASKED:
        zero = _zero(out)
        return lambda: torch.where(mask[0] > 0.0, torch.mm(a, b_transposed, out=out), zero, out=out)
    return lambda: torch.mm(a, b_transposed, out=out)


def _product_tn(out: Tensor, post: int, a: Tensor, b: Tensor) -> Kernel:
    a_transposed = a.T
    return lambda: torch.mm(a_transposed, b, out=out)


_PRODUCTS: Final[dict[str, Callable[..., Kernel]]] = {
    "product": _product,
    "product_nt": _product_nt,
    "product_tn": _product_tn,
}
