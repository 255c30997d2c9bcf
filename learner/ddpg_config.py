"""The hyper-parameters of DDPG; reading them needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import NotNegative, Positive

Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=65_536)]


class DdpgConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DDPG of de Bruin et al. 2018; the defaults are those of its pendulum."""

    network: Literal["small", "ddpg_original"] = "small"
    """Sizes of Table 8."""
    batch: Batch = 16
    gamma: Fraction = 0.95
    tau: Rate = 1e-2
    """Target update per step; the paper does not state it."""
    actor_lr: Positive = 1e-4
    critic_lr: Positive = 1e-3
    critic_decay: NotNegative = 5e-3
    """Weight decay of the critic's weights."""
    decay: Literal["decoupled", "coupled"] = "decoupled"
    """The paper's L2 is ``coupled``; at these reward scales that stops learning."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    adam_eps: Positive = 1e-8
    reward_scale: Positive = 1e-3
    """Factor on every reward before it is learned from; 1e-3 pendulum, 0.1 magman."""
