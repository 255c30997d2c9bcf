"""Adam (Kingma & Ba 2015) on a flat parameter vector, in place and preallocated, with masked weight decay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.networks import Layout

Step = Callable[[], object]


class Moments(NamedTuple):
    """Flat tensors that a step reads and updates; ``step`` is a scalar."""

    parameters: torch.Tensor
    gradient: torch.Tensor
    mean: torch.Tensor
    square: torch.Tensor
    step: torch.Tensor
    """Step count, including the current step."""


class Rates(NamedTuple):
    """Hyper-parameters of a step."""

    lr: float
    beta1: float
    beta2: float
    eps: float


def fused_step(m: Moments, rates: Rates) -> Step:
    """Adam step by torch's kernel, bound to its tensors."""
    return partial(
        torch._fused_adamw_,
        [m.parameters],
        [m.gradient],
        [m.mean],
        [m.square],
        [],
        [m.step],
        lr=rates.lr,
        beta1=rates.beta1,
        beta2=rates.beta2,
        weight_decay=0.0,
        eps=rates.eps,
        amsgrad=False,
        maximize=False,
    )


def plain_step(m: Moments, rates: Rates) -> Step:
    """Adam step by public operations, bound to its tensors."""

    def take() -> None:
        taken = float(m.step)
        m.mean.lerp_(m.gradient, 1.0 - rates.beta1)
        m.square.mul_(rates.beta2).addcmul_(m.gradient, m.gradient, value=1.0 - rates.beta2)
        root = (m.square / (1.0 - rates.beta2**taken)).sqrt_().add_(rates.eps)
        m.parameters.addcdiv_(m.mean, root, value=-rates.lr / (1.0 - rates.beta1**taken))

    return take


@cache
def has_fused_step() -> bool:
    """Whether torch has the kernel with the expected signature and results; probed once."""
    rates = Rates(1e-2, 0.9, 0.999, 1e-8)
    four = torch.ones(4, dtype=torch.float64)
    fused, plain = (Moments(four * 1.0, four * -2.0, four * 0.5, four * 0.25, torch.tensor(3.0)) for _ in range(2))
    try:
        fused_step(fused, rates)()
    except (AttributeError, TypeError, RuntimeError):
        return False
    plain_step(plain, rates)()
    return all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(fused, plain, strict=True))


class Adam:
    """Adam for the S trials of one network.

    ``decay`` shrinks weights only, never biases: decoupled, by a factor 1 - lr * decay before each step (AdamW), or
    ``coupled``, as decay * weight added to the gradient (the L2 term of de Bruin et al. 2018, App. B.1, which stops
    learning at these reward scales).

    The step is torch's fused kernel where this torch has it: ``torch.optim`` would cost several times as much for
    networks of this size, but the kernel is private and may change.  Otherwise it is ``plain_step``, equal within
    rounding.
    """

    def __init__(
        self,
        parameters: torch.Tensor,
        layout: Layout,
        trials: int,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decay: float = 0.0,
        coupled: bool = False,
        rest: tuple[int, float] | None = None,
    ) -> None:
        """``rest``: first of the last layers, whose step size is ``lr`` times a factor; without ``decay``."""
        self._layout = layout
        self._trials = trials
        self._parameters = parameters
        self._mean = torch.zeros_like(parameters)
        self._square = torch.zeros_like(parameters)
        self._step = torch.zeros((), dtype=torch.float32)
        self._rates = Rates(lr, *betas, eps)
        self._gradient = torch.empty(0)
        self._steps: list[Step] = []
        weights = layout.weights(trials).to(parameters) if decay else None
        self._decay = None if weights is None or coupled else decay * weights
        self._first_lr = lr
        self._parts = [(slice(None), 1.0)]
        if rest is not None:
            cut = trials * sum(layer.rows * layer.cols for layer in layout.layers[: rest[0]])
            self._parts = [(slice(cut), 1.0), (slice(cut, None), rest[1])]
        self._shrink = None if weights is None or coupled else 1.0 - lr * decay * weights
        self._penalty = None if weights is None or not coupled else decay * weights

    def anneal(self, factor: float) -> None:
        """Take the next steps at the first rate times this."""
        lr = self._first_lr * factor
        if lr != self._rates.lr:
            self._rates = self._rates._replace(lr=lr)
            self._gradient = torch.empty(0)  # bound anew
            self._shrink = None if self._decay is None else 1.0 - lr * self._decay

    def step(self, gradient: torch.Tensor) -> None:
        """Apply one step down ``gradient`` (flat, masked; a coupled decay is added to it in place)."""
        p = self._parameters
        if self._shrink is not None:
            p.mul_(self._shrink)
        if self._penalty is not None:
            gradient.addcmul_(p, self._penalty)
        self._step += 1.0
        if self._gradient is not gradient:  # most callers have one buffer for it
            self._steps = [self._bound(gradient, part, factor) for part, factor in self._parts]
            self._gradient = gradient
        for step in self._steps:
            step()

    def _bound(self, gradient: torch.Tensor, part: slice, factor: float) -> Step:
        moments = Moments(self._parameters[part], gradient[part], self._mean[part], self._square[part], self._step)
        bind = fused_step if has_fused_step() else plain_step
        return bind(moments, self._rates._replace(lr=self._rates.lr * factor))

    def state(self) -> dict[str, NDArray[np.floating]]:
        """Copy the state out: first and second moments (S, P), and the number of steps taken."""
        return {
            "mean": self._layout.read(self._mean, self._trials),
            "square": self._layout.read(self._square, self._trials),
            "step": self._step.numpy().copy(),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``; raises KeyError or ValueError if it does not fit."""
        for name, target in (("mean", self._mean), ("square", self._square)):
            self._layout.write(target, np.asarray(state[name], dtype=np.float64), self._trials, constant=0.0)
        self._step.fill_(float(state["step"]))


class AdamByTrial:
    """Adam for ``nets`` networks of one layout that are not always stepped together; each counts its own steps."""

    def __init__(self, parameters: torch.Tensor, layout: Layout, nets: int, *, lr: float) -> None:
        self._layout, self._nets, self._parameters = layout, nets, parameters
        self._mean = torch.zeros_like(parameters)
        self._square = torch.zeros_like(parameters)
        self._steps = torch.zeros(nets, dtype=torch.float32)
        self._rates = Rates(lr, 0.9, 0.999, 1e-8)

    def step(self, gradient: torch.Tensor, nets: Sequence[int]) -> None:
        """Apply one step of these networks down ``gradient`` (flat, masked); the others stay, moments included."""
        flats = (self._parameters, gradient, self._mean, self._square)
        for net in nets:
            self._steps[net] += 1.0
            for p, g, m, v in zip(*(self._layout.blocks(flat, self._nets) for flat in flats), strict=True):
                plain_step(Moments(p[net], g[net], m[net], v[net], self._steps[net]), self._rates)()

    def state(self) -> dict[str, NDArray[np.floating]]:
        """Copy the state out: first and second moments (nets, P), and the numbers of steps taken (nets,)."""
        return {
            "mean": self._layout.read(self._mean, self._nets),
            "square": self._layout.read(self._square, self._nets),
            "step": self._steps.numpy().copy(),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``; raises KeyError or ValueError if it does not fit."""
        for name, target in (("mean", self._mean), ("square", self._square)):
            self._layout.write(target, np.asarray(state[name], dtype=np.float64), self._nets, constant=0.0)
        self._steps.copy_(torch.from_numpy(np.asarray(state["step"], dtype=np.float32).reshape(self._nets)))
