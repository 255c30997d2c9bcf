from __future__ import annotations

import pytest

from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.shield import Shield
from tests.lab.mutants import rehearsal
from tests.runtime.samples import MAGMAN, PENDULUM


@pytest.mark.parametrize("config", [PENDULUM, MAGMAN], ids=["pendulum", "magman"])
def test_a_shipped_configuration_builds_sound_numbers(config: RunConfig) -> None:
    assert rehearsal.rehearse(config) is None


def test_numbers_of_built_objects_are_checked() -> None:
    shield = Shield(PENDULUM.limits, PENDULUM.rig, PENDULUM.period_us * 1e-6)
    assert len(list(rehearsal._numbers(shield))) > 5
    assert list(rehearsal._numbers(Explorer(PENDULUM)))
