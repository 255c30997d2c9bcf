"""The ``learner`` section of a run's configuration; reading it needs no torch."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from onrig.learner.ddpg_config import DdpgConfig
from onrig.learner.dqn_config import DqnConfig, epsilon_problems
from onrig.runtime.replay.memory.keepers.ranked import MAX_EXPONENT

Exponent = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_EXPONENT)]
_ON_A_RIG: Final = "the rig's learner exports DDPG policies; dqn is for `onrig experiment`"


class LearnerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What learns, how much, and on how many threads."""

    algorithm: Literal["ddpg", "dqn"] = "ddpg"
    """A rig runs DDPG; DQN is for trials on plants (de Bruin et al. 2018, §6.3)."""
    ddpg: DdpgConfig = DdpgConfig()
    dqn: DqnConfig = DqnConfig()
    per_alpha: Exponent = 0.7
    """Exponent of rank-based prioritised sampling (PER; de Bruin et al. 2018, eq. 7)."""
    updates_per_episode: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    """Batch updates after every training episode (100 for 200 steps and batches of 16
    replay each experience 8 times: de Bruin et al. 2018, §B.1)."""
    updates_per_transition: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] | None = None
    """Batch updates per experience, as they come in, instead (real time only)."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    """torch threads; one in lockstep, whatever stands here."""
    backlog: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 2000
    """Most updates the learner may owe in real time; what it cannot keep up with is not made up for later."""

    @property
    def batch(self) -> int:
        """Experiences in a minibatch of the algorithm that learns."""
        return self.dqn.batch if self.algorithm == "dqn" else self.ddpg.batch


def settings_problems(settings: LearnerSettings, *, lockstep: bool) -> list[tuple[str, str]]:
    """List what does not fit together, as (path, message) pairs."""
    problems = [(f"dqn.{at}", message) for at, message in epsilon_problems(settings.dqn)]
    if (settings.updates_per_episode is None) == (settings.updates_per_transition is None):
        problems.append(("", "expected exactly one of 'updates_per_episode' and 'updates_per_transition'"))
    if lockstep and settings.updates_per_transition is not None:
        problems.append(("updates_per_transition", "lockstep learns between episodes: use 'updates_per_episode'"))
    return problems


def rig_problems(settings: LearnerSettings) -> list[tuple[str, str]]:
    """List what a rig's learner cannot do though trials on plants can, as (path, message) pairs."""
    return [("algorithm", _ON_A_RIG)] if settings.algorithm != "ddpg" else []
