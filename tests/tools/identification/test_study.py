"""Single twins of the study."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.sim.evaluation import lockstep_session
from onrig.sim.identification.identify import connection_of
from onrig.sim.identification.recording import stretches
from onrig.sim.twin.main import twin_options
from onrig.tools.identification import study
from onrig.tools.identification.driving import N_GENTLE_EXCITATIONS, drive, ranges_of
from onrig.tools.identification.refusal import reversed_channels
from onrig.tools.identification.study import Outcome, run_twin
from onrig.tools.load import load


@pytest.mark.study
def test_a_fit_that_stops_early_does_not_reverse_a_symmetric_plant() -> None:
    """Twin 29's mirror image fits worse from the solution's own reflection than from its own start."""
    outcome = run_twin(load("pendulum-hardware", []), 0, 29)
    assert isinstance(outcome, Outcome)
    assert outcome.signs_correct


@pytest.mark.parametrize("index", [3, 12])
def test_a_large_dead_band_does_not_look_like_a_reversed_actuator(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of friction and dead band under a gentle chirp of 15 %, which hardly moves the rig."""
    for name, value in {"FRICTION": (0.08, 0.1), "DEAD_BAND": (0.08, 0.1), "DELAY_S": 0.016}.items():
        monkeypatch.setattr(study, name, value)
    config = load("pendulum-hardware")
    options = twin_options(config)
    twin = study.draw_twin(options, config, np.random.default_rng((7, index)))
    device = msgspec.structs.replace(config.device, twin=msgspec.to_builtins(twin))
    gentle_excitations = options.plant.excitations(config.rig, ranges_of(config, 1.0))[:N_GENTLE_EXCITATIONS]
    steps = drive(
        config, lockstep_session(msgspec.structs.replace(config, device=device)), gentle_excitations, seed=index
    )
    connection = connection_of(options.plant, config.rig, list(stretches(steps, config.rig, config.period_us)))
    assert reversed_channels(connection, config.rig) == []
