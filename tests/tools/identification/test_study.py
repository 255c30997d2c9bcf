"""One twin of the study."""

from __future__ import annotations

import pytest

from onrig.tools.identification.study import Outcome, run_twin
from onrig.tools.load import load


@pytest.mark.study
def test_a_fit_that_stops_early_does_not_turn_a_symmetric_plant_around() -> None:
    """Twin 29's mirror image fits worse from the solution's own reflection than from its own start."""
    found = run_twin(load("pendulum-hardware", []), 0, 29)
    assert isinstance(found, Outcome)
    assert found.signs_correct
