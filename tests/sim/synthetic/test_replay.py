"""The resynthesiser of a run: policies from its folder, numbers from its seed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.explore.noise import episode_noise
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.settings import Selection, Synthetic
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig
from onrig.sim.synthetic.replay import PolicyFolder, RunResynthesiser
from tests.runtime.policy.models import policy, reference, serialized
from tests.runtime.samples import PENDULUM
from tests.sim.synthetic.samples import measured, model_of, rows_equal

SI = np.array([np.pi, 30.0])


def config(synthetic: Synthetic, strategy: str = "FIFO[Uniform]", capacity: int = 500, seed: int = 0) -> RunConfig:
    selection = Selection(strategy=strategy, capacity=capacity, synthetic=synthetic)
    return msgspec.structs.replace(PENDULUM, selection=selection, seed=seed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with policy 7."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "7.onnx").write_bytes(serialized(policy()))
    return tmp_path


def part(t: Transitions, a: int, b: int) -> Transitions:
    return Transitions(*(column[a:b] for column in t))  # type: ignore[arg-type]


def test_policies_answer_in_normalised_units(folder: Path) -> None:
    observations = np.random.default_rng(0).uniform(-1, 1, (6, 2)).astype(np.float32)
    ids = np.array([7, 7, 9, 7, 9, 7], np.uint32)
    answers = PolicyFolder(PENDULUM.rig, folder / "policies").actions(ids, observations)
    wanted = reference(policy(), (observations * SI).astype(np.float32)) / 3.0
    np.testing.assert_allclose(answers[ids == 7], wanted[ids == 7], atol=1e-5)
    assert np.isnan(answers[ids == 9]).all(), "policy 9 is missing"


def test_a_file_that_is_not_a_policy_counts_as_missing(folder: Path) -> None:
    (folder / "policies" / "3.onnx").write_bytes(b"rubbish")
    policies = PolicyFolder(PENDULUM.rig, folder / "policies")
    assert np.isnan(policies.actions(np.array([3], np.uint32), np.zeros((1, 2), np.float32))).all()


def test_the_action_in_a_new_state_has_the_noise_of_the_loop_in_that_tick(folder: Path) -> None:
    run = config(Synthetic(states=1.0))
    before = part(measured(run, 450), 150, 430)  # from the middle of episode 1 into episode 3
    after = RunResynthesiser(run, folder)(before).transitions
    noise = [
        episode_noise(run.exploration, stream(0, Role.EXPLORATION, e), e, 200, ["voltage"])[k]
        for e, k in zip(before.episode.tolist(), before.step.tolist(), strict=True)
    ]
    wish = np.clip(reference(policy(), (after.observation * SI).astype(np.float32)) / 3.0, -1, 1)
    np.testing.assert_allclose(after.action, np.clip(wish + np.array(noise), -1, 1), atol=1e-5)
    outcome = model_of(run)(after.observation, after.action)
    assert (after.next_observation == outcome.next_observation).all()


def test_random_numbers_depend_only_on_seed_episode_and_step(folder: Path) -> None:
    run = config(Synthetic(states=0.3, actions=0.3, refresh=0.5))
    before = measured(run, 900)
    whole = RunResynthesiser(run, folder)(before)
    # Another process takes over half-way, and receives its transitions in other portions.
    later = RunResynthesiser(run, folder)
    for a, b in ((455, 456), (456, 777), (777, 900)):
        piece = later(part(before, a, b))
        assert rows_equal(piece.transitions, part(whole.transitions, a, b)).all()
        assert (piece.may_overwrite == whole.may_overwrite[a:b]).all()
    other = RunResynthesiser(config(Synthetic(states=0.3, actions=0.3), seed=1), folder)(before)
    assert not rows_equal(other.transitions, whole.transitions).all()


def test_the_fraction_of_synthetic_experiences_does_not_depend_on_the_refresh_probability(folder: Path) -> None:
    fractions = []
    for refresh in (1.0, 0.3, 0.0):
        run = config(Synthetic(actions=0.2, refresh=refresh), capacity=1000)
        memory = Memory(run, RunResynthesiser(run, folder))
        for _ in range(2):
            batch = measured(run, 4000)
            memory.insert(batch._replace(episode=(batch.episode + memory.offered // 200).astype(np.uint32)))
        fractions.append(np.count_nonzero(memory.storage.meta & Flag.SYNTHETIC) / 1000)
    assert np.abs(np.array(fractions) - 0.2).max() < 4.5 * np.sqrt(0.2 * 0.8 / 1000)
