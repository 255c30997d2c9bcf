"""``onrig safety CONFIG --barrier``, and the value of its table on plants outside its sample."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.hw.rig import Sensor
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.record import Rule
from onrig.runtime.replay.promise_watch import WINDOW, SlidingWindowTest, claimed_fraction
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.barrier_file import read_barrier, write_barrier
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.barrier.one_step import OneStepCheck, Steps
from onrig.sim.barrier.table import compute
from onrig.tools import barrier
from onrig.tools.barrier import upper_bound
from onrig.tools.cli import main
from onrig.tools.load import load_for_rig
from onrig.tools.safety_case.sampled import Outcome, run_sampled
from tests.sim.barrier.beam import BEAM, beam

EPISODES = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a beam with the table made by the verb."""
    path = tmp_path_factory.mktemp("barrier")
    (path / "beam.yaml").write_text(BEAM)
    assert main(["safety", str(path / "beam.yaml"), "--barrier", "--plants", "12", "--tests", "100"]) == ExitCode.OK
    return path


def load_with_box(folder: Path) -> tuple[RunConfig, SampledBox]:
    config = load_for_rig(str(folder / "beam.yaml"))
    assert isinstance(config.limits.predicted, SampledBox)
    return config, config.limits.predicted


def test_the_table_has_its_counts_and_a_run_accepts_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = read_barrier(str(folder / "beam.barrier")).header
    assert header.tested is not None
    assert (header.plants, header.tested.plants, header.tested.breaches) == (12, 100, 0)
    assert header.tested.rate == pytest.approx(0.0295, abs=1e-3)
    assert main(["check", str(folder / "beam.yaml"), "--explain"]) == ExitCode.OK
    output = capsys.readouterr().out
    assert "the promise: sampled: plants drawn from the stated uncertainty" in output
    assert "0 of 100 other plants breached it: at most 3 % of hostile episodes breach it, at 95 % confidence" in output
    assert re.search(r"predicted .* position, velocity: .* A_velocity_velocity 0.45 .. 0.75", output)


def test_plants_outside_the_sample_stay_inside_and_the_envelope_alone_does_not_keep_them(folder: Path) -> None:
    config, box = load_with_box(folder)
    without_prediction = msgspec.structs.replace(config, limits=msgspec.structs.replace(config.limits, predicted=None))
    shielded, unshielded = (run_sampled(c, box, EPISODES, seed=77) for c in (config, without_prediction))
    header = box.barrier().header
    assert header.tested is not None
    assert shielded.breaches <= header.tested.rate * EPISODES
    assert unshielded.breaches >= 10 * max(1, shielded.breaches)
    assert shielded.campaign["pushing"].rules[Rule.PREDICTED] > 0, "the adversary is too tame"
    assert shielded.campaign["broken"].rules[Rule.FINITE] > 0
    assert not is_withdrawn(shielded, box)


def is_withdrawn(outcome: Outcome, box: SampledBox) -> bool:
    """Whether the first ``WINDOW`` episodes withdraw the promise, in any of the rigs that ten episodes each make."""
    was_withdrawn = False
    for start in range(0, len(outcome.outside), WINDOW):
        test = SlidingWindowTest(claimed_fraction(box))
        outside_fractions = outcome.outside[start : start + WINDOW]
        was_withdrawn = (
            max([test.add(round(1000 * fraction), 1000) for fraction in outside_fractions.tolist()]) or was_withdrawn
        )
    return was_withdrawn


def test_thirty_percent_beyond_the_uncertainty_is_detected_within_ten_episodes(folder: Path) -> None:
    config, box = load_with_box(folder)
    for fraction, scale in ((1.3, 1.0), (1.0, 1.0)):
        # As in a run: the same plant in every episode, at the strong end of the interval and then beyond.
        widened = {**box.uncertainty, "B_velocity_tilt": (7.7 * scale, 7.7 * scale)}
        narrow_box = msgspec.structs.replace(box, uncertainty=widened)
        limits = msgspec.structs.replace(config.limits, predicted=narrow_box)
        strong_config = msgspec.structs.replace(config, limits=limits)
        outcome = run_sampled(strong_config, box, 3 * WINDOW, seed=5, scaled={"B_velocity_tilt": fraction})
        assert is_withdrawn(outcome, box) == (fraction > 1.0)


def test_a_sensor_that_no_observation_shows_does_not_prevent_the_test(folder: Path) -> None:
    config, box = load_with_box(folder)
    rig = msgspec.structs.replace(config.rig, sensors=(Sensor("temperature", "degC", 0.1), *config.rig.sensors))
    outcomes = [run_sampled(c, box, 10, seed=3) for c in (config, msgspec.structs.replace(config, rig=rig))]
    assert outcomes[0].campaign == outcomes[1].campaign


def test_an_episode_too_short_to_count_does_not_raise_the_share_claimed_by_a_promise(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, box = load_with_box(folder)
    calls = itertools.count()

    def mark_every_tenth(self: OneStepCheck, steps: Steps) -> NDArray[np.bool_]:
        return np.full(len(steps.switch_s), next(calls) % 10 == 0)

    monkeypatch.setattr(OneStepCheck, "unexplained_steps", mark_every_tenth)
    assert run_sampled(config, box, 40, seed=3).outside.max() <= 0.15


def test_a_table_covers_a_delay_behind_the_device_after_the_hosts_death(tmp_path: Path) -> None:
    late_settings = ["limits.predicted.late_us=20000", "limits.predicted.horizon_s=3.0"]
    world, delayed_box = beam(tmp_path, [*late_settings, "limits.predicted.plant_delay_us=20000"])
    worst_fractions = []
    for config, box in ((world, delayed_box), beam(tmp_path, late_settings)):
        header, values = compute(config, box, 8, 0, lambda progress: None, workers=1)
        path = tmp_path / "delayed.barrier"
        digest = write_barrier(path, header, values)
        tested_box = msgspec.structs.replace(delayed_box, table=str(path), sha256=digest)
        limits = msgspec.structs.replace(world.limits, predicted=tested_box)
        outcome = run_sampled(msgspec.structs.replace(world, limits=limits), tested_box, EPISODES, seed=5)
        assert outcome.breaches == 0
        worst_fractions.append(min(tally.worst_margin for tally in outcome.campaign.values()))
    assert worst_fractions[0] > worst_fractions[1] + 0.02, "the delay is simulated, and only the first table knows it"


def test_an_interrupted_computation_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "beam.yaml").write_text(BEAM)

    def raise_interrupt(*arguments: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(barrier, "compute", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            barrier.build_barrier(str(tmp_path / "beam.yaml"), (), 4, 4, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["beam.yaml"]


def test_another_kind_of_prediction_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["safety", "pendulum", "--barrier"]) == ExitCode.CONFIGURATION
    assert "needs limits.predicted of kind 'sampled'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("n_breaches", "episodes", "expected_bound"), [(0, 3000, 0.000998), (0, 100, 0.0295), (3, 1000, 0.00773)]
)
def test_the_bound_is_that_of_clopper_and_pearson(n_breaches: int, episodes: int, expected_bound: float) -> None:
    assert upper_bound(n_breaches, episodes, 0.95) == pytest.approx(expected_bound, rel=2e-3)
