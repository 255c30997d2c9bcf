from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithms import Exportable, algorithm_for
from onrig.learner.settings import ALGORITHMS, LearnerSettings, rig_problems


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_section_of_the_settings_builds_its_algorithm_and_a_rig_refuses_what_it_could_not_export(
    name: str,
) -> None:
    settings = msgspec.convert({"algorithm": name}, LearnerSettings)
    algorithm = algorithm_for(settings, 2, 1, [np.random.default_rng(0)])
    assert type(algorithm).__name__.lower() == name
    assert isinstance(algorithm, Exportable) is not bool(rig_problems(settings))
