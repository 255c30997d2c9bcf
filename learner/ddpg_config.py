"""The hyper-parameters of DDPG as 000 uses it, apart from ``learner.ddpg`` so that reading them needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from onrig.hw.bounds import NotNegative, Positive

Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=65_536)]


class DdpgConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DDPG of de Bruin et al. 2018; the defaults are METHODS App. B ``exp000`` (pendulum)."""

    network: Literal["small", "ddpg_original"] = "small"
    """Sizes of 000 Table 8."""
    batch: Batch = 16
    gamma: Fraction = 0.95
    tau: Rate = 1e-2
    """Target update per step; 000 does not state it (METHODS S3)."""
    actor_lr: Positive = 1e-4
    critic_lr: Positive = 1e-3
    critic_decay: NotNegative = 5e-3
    """Weight decay of the critic's weights."""
    decay: Literal["decoupled", "coupled"] = "decoupled"
    """000's L2 is ``coupled``; at these reward scales that stops learning (METHODS S2)."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    adam_eps: Positive = 1e-8
    reward_scale: Positive = 1e-3
    """Factor on every reward before it is learned from; 1e-3 pendulum, 0.1 magman (METHODS S1)."""
