"""Adam (Kingma & Ba 2015) on a flat parameter vector, in place and preallocated, with masked weight decay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.networks import Layout


class Adam:
    """Adam for the S trials of one network.

    ``decay`` shrinks weights only, never biases: ``decoupled`` by a factor 1 - lr * decay per step before the step
    (AdamW), ``coupled`` as decay * weight added to the gradient (the L2 term of 000 App. B.1; METHODS §1.1 S2 tells why
    it is not the default).

    The step itself is torch's fused kernel.  It is not public under that name, hence torch's exact pin; calling
    it through ``torch.optim`` would cost several times the kernel for networks of this size.
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
    ) -> None:
        self._layout = layout
        self._trials = trials
        self._parameters = parameters
        self._mean = torch.zeros_like(parameters)
        self._square = torch.zeros_like(parameters)
        self._step = torch.zeros((), dtype=torch.float32)
        self._lr, self._eps = lr, eps
        self._beta1, self._beta2 = betas
        weights = layout.weights(trials).to(parameters) if decay else None
        self._shrink = None if weights is None or coupled else 1.0 - lr * decay * weights
        self._penalty = None if weights is None or not coupled else decay * weights

    def step(self, gradient: torch.Tensor) -> None:
        """Apply one step down ``gradient`` (flat, masked; a coupled decay is added to it in place)."""
        p = self._parameters
        if self._shrink is not None:
            p.mul_(self._shrink)
        if self._penalty is not None:
            gradient.addcmul_(p, self._penalty)
        self._step += 1.0
        torch._fused_adamw_(
            [p],
            [gradient],
            [self._mean],
            [self._square],
            [],
            [self._step],
            lr=self._lr,
            beta1=self._beta1,
            beta2=self._beta2,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> dict[str, NDArray[np.floating]]:
        """Copy the state out: first and second moments (S, P), and the number of steps taken."""
        return {
            "mean": self._layout.read(self._mean, self._trials),
            "square": self._layout.read(self._square, self._trials),
            "step": self._step.numpy().copy(),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take up a state of ``state()``; raises KeyError or ValueError when it does not fit."""
        for name, target in (("mean", self._mean), ("square", self._square)):
            self._layout.write(target, np.asarray(state[name], dtype=np.float64), self._trials, constant=0.0)
        self._step.fill_(float(state["step"]))
