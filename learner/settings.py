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
    """A rig runs DDPG; DQN is for trials on plants (000 §6.3)."""
    ddpg: DdpgConfig = DdpgConfig()
    dqn: DqnConfig = DqnConfig()
    per_alpha: Exponent = 0.7
    """Exponent of rank-based prioritised sampling (PER; 000 eq. 7)."""
    updates_per_episode: Annotated[int, msgspec.Meta(le=10_000_000)] | None = None
    """Batch updates after every training episode (000 §B.1; 100 for its 200 steps)."""
    updates_per_transition: float | None = None
    """Batch updates per experience, as they come in, instead (real time only)."""
    threads: Annotated[int, msgspec.Meta(le=1024)] = 1
    """torch threads; one in lockstep, whatever stands here."""
    backlog: Annotated[int, msgspec.Meta(le=1_000_000_000)] = 2000
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
    if settings.updates_per_episode is not None and settings.updates_per_episode < 1:
        problems.append(("updates_per_episode", "expected at least 1"))
    if settings.updates_per_transition is not None and not 0 < settings.updates_per_transition <= 100:
        problems.append(("updates_per_transition", "expected more than 0, at most 100"))
    if lockstep and settings.updates_per_transition is not None:
        problems.append(("updates_per_transition", "lockstep learns between episodes: use 'updates_per_episode'"))
    if settings.threads < 1:
        problems.append(("threads", "expected at least 1"))
    if settings.backlog < 1:
        problems.append(("backlog", "expected at least 1"))
    return problems


def rig_problems(settings: LearnerSettings) -> list[tuple[str, str]]:
    """List what a rig's learner cannot do though trials on plants can, as (path, message) pairs."""
    return [("algorithm", _ON_A_RIG)] if settings.algorithm != "ddpg" else []
