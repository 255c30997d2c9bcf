from __future__ import annotations

from typing import get_args, get_type_hints

import numpy as np

from onrig.learner.algorithms import Exportable
from onrig.learner.algorithms.registry import ALGORITHMS, algorithm_for
from onrig.learner.settings import LearnerSettings, rig_problems


def test_configurations_know_every_algorithm_and_no_other() -> None:
    assert set(get_args(get_type_hints(LearnerSettings)["algorithm"])) == set(ALGORITHMS)


def test_a_rig_refuses_what_it_could_not_export() -> None:
    for name in ALGORITHMS:
        settings = LearnerSettings(algorithm=name)  # type: ignore[arg-type]
        algorithm = algorithm_for(settings, 2, 1, [np.random.default_rng(0)])
        assert isinstance(algorithm, Exportable) is not bool(rig_problems(settings))
