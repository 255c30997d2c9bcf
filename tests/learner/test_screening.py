"""The test of policies before the rig receives them (with a pretraining: tests/tools/pretraining)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.learner.export import export_policy
from onrig.learner.screening import Screening, ScreeningPlants, read_screening_plants
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.sim.plants.pendulum import Pendulum

SAMPLES = {name: [0.9 * value, 1.1 * value] for name, value in Pendulum().lumped.items()}
PLANTS = ScreeningPlants({"plant": {"kind": "pendulum"}, "samples": SAMPLES}, (-1.0, -1.0), seed=3)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return load_run("pendulum", ["task.episode_s=0.6"])


def constant_policy(config: RunConfig, action: float) -> bytes:
    """Policy whose normalised action is tanh(action) everywhere."""
    contract = contract_for(
        config.rig, config.rate_hz, policy_id=1, parent_run="", training_step=0, signals=config.signals
    )
    weights = np.zeros((len(config.signals), 1))
    return export_policy([(weights, np.array([action]))], contract)


def test_every_plant_needs_a_sufficient_score(config: RunConfig) -> None:
    n_beats: list[int] = []
    screening = Screening(config, PLANTS, lambda: n_beats.append(1))
    assert screening.failure(constant_policy(config, 0.0)) == ""
    assert len(n_beats) == 2, "a heartbeat for each plant"
    demanding = Screening(config, msgspec.structs.replace(PLANTS, min_scores=(-1.0, 2.0)), lambda: None)
    message = demanding.failure(constant_policy(config, 0.0))
    assert message.startswith("score ")
    assert message.endswith(" on plant 2 of 2, but 2 is required")


def test_the_same_policy_always_has_the_same_result(config: RunConfig) -> None:
    demanding = msgspec.structs.replace(PLANTS, min_scores=(2.0, 2.0))
    messages = {Screening(config, demanding, lambda: None).failure(constant_policy(config, 0.3)) for _ in range(3)}
    assert len(messages) == 1


def test_an_unusable_policy_fails(config: RunConfig) -> None:
    assert Screening(config, PLANTS, lambda: None).failure(b"no model") != ""


def test_unusable_plants_are_reported(config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "screening.json"
    path.write_bytes(msgspec.json.encode(PLANTS))
    assert read_screening_plants(path).min_scores == PLANTS.min_scores
    path.write_bytes(b"{")
    with pytest.raises(ValueError, match=r"screening\.json"):
        read_screening_plants(path)
    for twin in ({"speed": 3}, {**PLANTS.twin, "samples": {"gravity": [1.0, 2.0]}}, {**PLANTS.twin, "samples": {}}):
        with pytest.raises(ValueError, match="plants for the screening: "):
            Screening(config, msgspec.structs.replace(PLANTS, twin=twin), lambda: None)
    slow_twin = {**PLANTS.twin, "period_min_us": 30_000}
    with pytest.raises(ValueError, match="plants for the screening: the device refused"):
        Screening(config, msgspec.structs.replace(PLANTS, twin=slow_twin), lambda: None)


def test_a_policy_under_which_the_plants_code_fails_does_not_pass(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    screening = Screening(config, PLANTS, lambda: None)

    def fail(*arguments: object, **options: object) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr(Pendulum, "derivative", fail)
    assert "plant 1 of 2: the plant 'pendulum' raises ValueError" in screening.failure(constant_policy(config, 0.0))
