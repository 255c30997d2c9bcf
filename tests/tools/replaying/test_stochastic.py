"""Runs of stochastic policies, recorded and replayed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.runtime.explore.noise import unit_signal
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.record import Flag, Kind
from tests.tools.replaying.runs import LoggedRun
from tests.tools.replaying.test_verification import Alteration, assert_equal, tamper_with_record, verify

OWN_NOISE = "exploration={process: own, amplitude: [[1, 1.0], [2, 0.5]]}"
GATED_NOISE = (
    "exploration={process: own, quiet: {every: 3}, near_envelope: {from: 0.9}, budgets: {episode: {driven_s: 0.5}}}"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoggedRun:
    return LoggedRun(tmp_path_factory.mktemp("runs") / "run", "magman", OWN_NOISE).run()


def episode_records(run: LoggedRun, kind: Kind, episode: int) -> np.ndarray:
    """The records of an episode in which the policy was evaluated."""
    rows = np.array(run.records)
    action_records: np.ndarray = rows[
        (rows["kind"] == kind) & (rows["episode"] == episode) & (rows["flags"] & Flag.NO_ACTION == 0)
    ]
    return action_records


def test_the_noise_is_that_of_the_episodes_stream_times_the_amplitude(run: LoggedRun) -> None:
    for episode, amplitude in ((1, 1.0), (2, 0.5)):
        rows = episode_records(run, Kind.TRAIN, episode)
        rng = stream(run.config.seed, Role.EXPLORATION, episode)
        noise = np.array(unit_signal(run.config.exploration, rng, len(rows), 4))
        # The recorded spread is that of the draw.
        np.testing.assert_allclose(rows["drawn"], rows["mean"] + rows["std"] * noise, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(rows["amplitude"], amplitude)
        restrained = rows["flags"] & Flag.RESTRAINED != 0
        assert restrained.all() == restrained.any() == (amplitude < 1)


def test_exploration_is_measured_from_the_action_without_noise(run: LoggedRun) -> None:
    rows, actuators = episode_records(run, Kind.TRAIN, 1), run.config.rig.actuators
    centre, half_range = (np.array([getattr(a, name) for a in actuators]) for name in ("centre", "half_range"))
    np.testing.assert_allclose((rows["policy"] - centre) / half_range, np.tanh(rows["mean"]), atol=1e-6)
    np.testing.assert_allclose((rows["explored"] - centre) / half_range, np.tanh(rows["drawn"]), atol=1e-6)
    distance = np.abs(np.tanh(rows["drawn"]) - np.tanh(rows["mean"])).sum(axis=1)
    np.testing.assert_allclose(rows["exploration"], distance, atol=1e-5)
    assert distance.min() > 0


def test_an_evaluation_has_no_noise(run: LoggedRun) -> None:
    rows = episode_records(run, Kind.EVAL, 1)
    assert (rows["exploration"] == 0).all()
    assert (rows["drawn"] == rows["mean"]).all()
    assert (rows["std"] == 0).all()
    assert (rows["explored"] == rows["policy"]).all()
    assert not (rows["flags"] & Flag.RESTRAINED).any()


def test_a_replayed_run_decides_the_same(run: LoggedRun) -> None:
    assert_equal(verify(run), len(run.records))
    assert verify(run, tolerance=1e-6).comparison.first is None


@pytest.mark.parametrize("lockstep", [True, False])
def test_gates_budgets_and_swaps_are_recomputed(tmp_path: Path, lockstep: bool) -> None:
    limits = ("limits.predicted=null", "limits.envelope.velocity.high=1", "limits.envelope.velocity.low=-1")
    actions_at = {12: lambda run: run.admit_policy(2)}
    run = LoggedRun(
        tmp_path / "run", "pendulum", "episodes=3", GATED_NOISE, *limits, lockstep=lockstep, actions_at=actions_at
    ).run()
    amplitudes = episode_records(run, Kind.TRAIN, 1)["amplitude"].ravel().tolist()
    assert min(amplitudes) < 0.5 < max(amplitudes)
    assert (episode_records(run, Kind.TRAIN, 3)["flags"] & Flag.RESTRAINED != 0).all(), (
        "a quiet episode's actions are not its own"
    )
    assert {1, 2} <= {int(r["policy_id"]) for r in run.records}
    assert_equal(verify(run), len(run.records))


def test_answers_of_a_missing_policy_are_taken_from_the_records(run: LoggedRun, tmp_path: Path) -> None:
    path = run.folder / "policies" / "1.onnx"
    moved_path = path.rename(tmp_path / "1.onnx")
    try:
        verification = verify(run)
    finally:
        moved_path.rename(path)
    assert verification.comparison.first is None
    assert verification.comparison.ticks.total() == len(run.records)
    assert verification.unverified.total() > 0


def test_a_changed_draw_is_found_and_named(run: LoggedRun) -> None:
    def change_field(name: str) -> Alteration:
        def tamper(row: np.ndarray) -> None:
            row[name][0, 1] += 1e-3

        return tamper

    for name in ("drawn", "mean", "std"):
        assert verify(run, tamper_with_record(run, 12, change_field(name))).comparison.fields == {name: 1}


def test_a_recurrent_policy_starts_each_episode_at_zero_and_is_not_swapped_within_one(tmp_path: Path) -> None:
    actions_at = {12: lambda run: run.admit_policy(2)}
    settings = ("exploration.process=ou", "exploration.amplitude=[[1, 0.2]]")
    run = LoggedRun(
        tmp_path / "run", "pendulum", *settings, lockstep=False, actions_at=actions_at, recurrent=True
    ).run()
    action_records = episode_records(run, Kind.TRAIN, 1)
    assert set(action_records["policy_id"].tolist()) == {1}
    assert set(episode_records(run, Kind.TRAIN, 2)["policy_id"].tolist()) == {2}
    # The state sums the angles: h' = h / 2 + angle, and the action is 3 tanh(h').
    for rows in (action_records, episode_records(run, Kind.TRAIN, 2)):
        h = 0.0
        for row in rows:
            h = 0.5 * h + float(row["observation"][0])
            assert row["policy"][0] == pytest.approx(3 * np.tanh(h), rel=1e-4, abs=1e-5)
    assert_equal(verify(run), len(run.records))
