"""The parts of a replay process that have a past, and of which its checkpoints and its summary speak."""

from __future__ import annotations

from typing import NamedTuple

from onrig.runtime.replay.desk import LearnerDesk
from onrig.runtime.replay.episodes import EpisodeAccounts, EpisodeFile
from onrig.runtime.replay.memory.experiences import Memory
from onrig.runtime.replay.memory.transitions import TransitionBuilder
from onrig.runtime.replay.policy_desk import PolicyDesk
from onrig.runtime.replay.policy_watch import PolicyWatch
from onrig.runtime.replay.run_figures import RunFigures
from onrig.runtime.shm.keepsake import Keepsake
from onrig.runtime.shm.ring import RingReader


class Parts(NamedTuple):
    """In the order in which a record passes them."""

    ring: RingReader
    keepsake: Keepsake
    builder: TransitionBuilder
    memory: Memory
    figures: RunFigures
    accounts: EpisodeAccounts
    rows: EpisodeFile
    policies: PolicyDesk
    desk: LearnerDesk
    watch: PolicyWatch
