"""Networks in plain torch, float64, that start in the state of a traced algorithm: references for its updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

Tensors = dict[str, torch.Tensor]


def trial_parameters(state: Mapping[str, NDArray[np.generic]], trial: int, nets: Iterable[str]) -> Tensors:
    """One trial's parameters of these groups, by their names in the state, with gradients."""
    names = [name for name in state if name.partition("/")[0] in nets]
    return {name: torch.tensor(np.asarray(state[name][trial], np.float64), requires_grad=True) for name in names}


def net_parameters(parameters: Tensors, net: str) -> list[torch.Tensor]:
    """Parameters of one group."""
    return [value for name, value in parameters.items() if name.partition("/")[0] == net]


def mlp(
    parameters: Tensors, net: str, x: torch.Tensor, units: Callable[[torch.Tensor], torch.Tensor] = torch.tanh
) -> torch.Tensor:
    """Linear outputs after hidden layers."""
    *hidden, last_layer = range(len(net_parameters(parameters, net)) // 2)
    for layer in hidden:
        x = units(x @ parameters[f"{net}/weight{layer}"] + parameters[f"{net}/bias{layer}"])
    return x @ parameters[f"{net}/weight{last_layer}"] + parameters[f"{net}/bias{last_layer}"]


def assert_state_close(
    state: Mapping[str, NDArray[np.generic]],
    trial: int,
    parameters: Tensors,
    *,
    rtol: float = 1e-9,
    atol: float = 1e-12,
) -> None:
    """Check one trial's parameters."""
    for name, value in parameters.items():
        np.testing.assert_allclose(state[name][trial], value.detach(), rtol=rtol, atol=atol, err_msg=name)
