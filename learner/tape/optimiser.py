"""Adam on a tape, and Polyak averaging of targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from onrig.learner.tape.array import Array
from onrig.learner.tape.operations import Space
from onrig.learner.tape.spaces import Field, Group, Layout
from onrig.learner.tape.trace import Tape


class Adam:
    """Adam (Kingma and Ba 2015) for the parameters of a group; each trial has its own step count.

    ``decay`` applies to ``decayed_fields`` (weights, not biases).  It is decoupled, a factor 1 - lr * decay before each
    step (AdamW), or, if ``is_coupled``, decay * weight is added to the gradient.
    """

    def __init__(
        self,
        state: Layout,
        group: Group,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decay: float = 0.0,
        is_coupled: bool = False,
        decayed_fields: Sequence[Field] = (),
    ) -> None:
        self.group: Final = group
        self.moments: Final = state.add(f"adam/{group.flat_field.name}", 1, 2 * group.flat_field.size + 1)
        """Means, mean squares, and the number of steps."""
        self._lr, self._betas, self._eps = lr, betas, eps
        self._decay, self._is_coupled, self._decayed_fields = decay, is_coupled, decayed_fields if decay else ()

    def step(self, tape: Tape, gradient: Array, factor: Array | None = None) -> None:
        """Take a step along the negative ``gradient``, with the learning rate times ``factor`` (1, 1)."""
        for f in self._decayed_fields:
            weight = tape.read(f)
            if self._is_coupled:
                offset = gradient.offset + f.offset - self.group.flat_field.offset
                decayed_array = Array(tape, gradient.space, offset, f.shape)
                tape.emit("add_scaled", f.shape, [weight], out=decayed_array, x=self._decay)
            elif factor is None:
                tape.emit("affine", f.shape, [weight], out=weight, x=1.0 - self._lr * self._decay)
            else:
                decay_factor = factor.affine(-self._lr * self._decay, 1.0)
                tape.emit("multiply", f.shape, [weight, decay_factor], out=weight)
        parameters = Array(tape, Space.STATE, self.group.flat_field.offset, self.group.flat_field.shape)
        factor = tape.filled((1, 1), 1.0) if factor is None else factor
        inputs = [gradient, tape.read(self.moments), factor]
        tape.emit("adam", parameters.shape, inputs, out=parameters, x=self._lr, y=self._eps, more=self._betas)
        tape.mark_changed(self.group)


def descend(
    tape: Tape,
    loss: Array,
    optimisers: Sequence[Adam],
    *,
    factor: Array | None = None,
    max_norm: float | None = None,
) -> None:
    """Take one step of each optimiser along the negative gradient of ``loss``; the gradient's norm over all optimisers
    is clipped to ``max_norm``."""
    gradients = tape.gradient(loss, [optimiser.group for optimiser in optimisers])
    if max_norm is not None:
        clip_norm(tape, gradients, max_norm)
    for optimiser, gradient in zip(optimisers, gradients, strict=True):
        optimiser.step(tape, gradient, factor)


def clip_norm(tape: Tape, gradients: Sequence[Array], max_norm: float) -> None:
    """Scale gradients in place so that their common norm is at most ``max_norm``; NaN is preserved."""
    squares = [tape.emit("sum_of_squares", (1, 1), [g], of=g.shape) for g in gradients]
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    norm = tape.emit("sqrt", (1, 1), [total])
    factor = max_norm / tape.emit("clamp", (1, 1), [norm], x=max_norm, y=math.inf)
    for g in gradients:
        tape.emit("multiply", g.shape, [g, factor], out=g)


def polyak_average(tape: Tape, target: Group, online: Group, step: float) -> None:
    """Polyak-average the target: move it by the fraction ``step`` towards the online parameters (1: copy)."""
    destination, source = (Array(tape, Space.STATE, g.flat_field.offset, g.flat_field.shape) for g in (target, online))
    if step == 1.0:
        tape.emit("copy", destination.shape, [source], out=destination)
    else:
        tape.emit("follow", destination.shape, [source], out=destination, x=step)
    tape.mark_changed(target)
