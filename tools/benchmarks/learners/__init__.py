"""The subjects of ``onrig bench learner``: each module builds, for a case, the call that is timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final, Protocol, cast

from onrig.tools.benchmarks.learner_cases import LIMIT, ONRIG, PEER, LearnerCase
from onrig.tools.benchmarks.peers import Unavailable

MODULES: Final = {ONRIG: "onrig", PEER: "stable_baselines3", LIMIT: "limit"}
"""Module of this folder for each subject."""


class Learner(Protocol):
    """One module of this folder."""

    def build(self, case: LearnerCase, updates: int, seed: int) -> Callable[[], object]:
        """Make ready what does ``updates`` updates of all the case's trials; raises ``Unavailable``."""


def load(subject: str) -> Learner:
    """Import a subject; raises ``Unavailable`` when that fails."""
    try:
        return cast(Learner, importlib.import_module(f"onrig.tools.benchmarks.learners.{MODULES[subject]}"))
    except ImportError as error:
        raise Unavailable(f"cannot be imported: {error}") from error
