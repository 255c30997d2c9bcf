"""Screening: a test of policies on the plants of a pretraining, before the rig receives them.

A learner that keeps improving a good policy passes through bad ones: near the edge of an envelope, a little more speed
is enough to make the shield act.  A policy that fails on an identified plant would probably fail on the rig.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from onrig.hw.identity import DeviceMismatch
from onrig.hw.session import RequestRefused
from onrig.hw.transport import LinkError
from onrig.runtime.files import MAX_JSON_BYTES, read_file
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.run_config import Device, RunConfig
from onrig.sim.plants.trial import PlantFailure
from onrig.sim.twin.options import TwinOptions, sampled_options

SCREENING: Final = "start/screening.json"
"""Path in a run folder of the file with the plants, next to the initial networks."""

_INVALID_TWIN: Final = (msgspec.ValidationError, ValueError, KeyError, IndexError)


class ScreeningPlants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plants of a pretraining, and the score that a policy must reach on each."""

    twin: dict[str, Any]
    """Options of the twin, whose ``samples`` are the plants."""
    min_scores: tuple[float, ...]
    """Minimum score on each plant, in the task's measure."""
    seed: int
    """Seed of the episodes."""


def read_screening_plants(path: Path) -> ScreeningPlants:
    """Read the plants of a run; raise OSError, or ValueError if the file has invalid content."""
    try:
        return msgspec.json.decode(read_file(path, MAX_JSON_BYTES), type=ScreeningPlants)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from None


class Screening:
    """Test of a run's policies, with the tick, shield and twin of a run in lockstep."""

    def __init__(self, config: RunConfig, plants: ScreeningPlants, heartbeat: Callable[[], object]) -> None:
        """``heartbeat`` is called before each plant.  Raises ValueError for a twin that is unsuitable for the run."""
        # Imported here because it loads the tick, which learners without screening do not need.
        from onrig.sim.evaluation import lockstep_session

        self._config, self._plants, self._heartbeat = config, plants, heartbeat
        try:
            self._options = msgspec.convert(plants.twin, TwinOptions)
            for index in range(len(plants.min_scores)):
                twin = msgspec.to_builtins(sampled_options(self._options, index))
                lockstep_session(msgspec.structs.replace(config, device=Device(twin=twin, pace="lockstep")))
        except (*_INVALID_TWIN, LinkError, RequestRefused, DeviceMismatch) as error:
            raise ValueError(f"plants for the screening: {error}") from None

    def failure(self, model: bytes) -> str:
        """Return why a policy fails, and on which plant; empty if it passes."""
        from onrig.sim.evaluation import score_on_plants

        scores = score_on_plants(self._config, model, self._options, self._plants.seed)
        n_plants = len(self._plants.min_scores)
        try:
            for number, min_score in enumerate(self._plants.min_scores, 1):
                self._heartbeat()
                score = next(scores)
                if not score >= min_score:
                    return f"score {score:.3g} on plant {number} of {n_plants}, but {min_score:.3g} is required"
        except (LinkError, PlantFailure) as error:
            return f"plant {number} of {n_plants}: {error}"
        except ModelRefused as error:
            return str(error)
        return ""
