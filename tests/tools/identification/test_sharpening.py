"""`onrig identify RUN --sharpen`: the log of a run and the identification that it began with."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.log.mcap_log import McapLog
from onrig.runtime.record import RecordLayout
from onrig.runtime.run_loading import save_resolved
from onrig.sim.evaluation import lockstep_session
from onrig.sim.identification.result import Result, read_result
from onrig.tools.cli import main
from onrig.tools.identification import driving, sharpening
from onrig.tools.identification.sharpening import PlantDeparted, follow_run
from onrig.tools.load import load
from onrig.tools.sharpened import FITTINGS_FILE, Fitting, read_fittings, write_fitting
from tests.tools.identification.test_verb import SETTINGS, SHORT_EXPERIMENT, short_excitations

SHORT_SETTINGS = [f"{name}={value}" for name, value in SHORT_EXPERIMENT.items()]


@pytest.fixture(scope="module")
def earlier_identification(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an identification."""
    folder = tmp_path_factory.mktemp("earlier")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onrig.sim.plants.Pendulum.excitations", short_excitations)
        assert main(["identify", "pendulum", *SETTINGS, "--out", str(folder)]) == ExitCode.OK
    return folder


def run_folder(earlier_identification: Path, folder: Path, override: str = "device.twin.plant.damping=2e-5") -> Path:
    """Folder of a run that began with the identification, and whose plant may have changed since."""
    config = load("pendulum", [*SHORT_SETTINGS, override])
    parts = short_excitations(config.device.twin["plant"], config.rig, {"voltage": (-3.0, 3.0)})  # type: ignore[index, arg-type]
    steps = driving.drive(config, lockstep_session(config), parts, seed=1)
    save_resolved(config, folder / "config.yaml")
    log = McapLog(config, folder, "session", lambda kind, **values: None)
    log.add(RecordLayout.for_rig(config.rig).pack(steps))
    log.close()
    shutil.copy(earlier_identification / FILE_NAME, folder / FILE_NAME)
    return folder


def widths(result: Result) -> list[float]:
    return [p.high / p.low for p in result.parameters if p.logarithmic]


def test_a_runs_own_data_narrow_its_identification(
    earlier_identification: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(earlier_identification, tmp_path)
    assert main(["identify", str(folder), "--sharpen"]) == ExitCode.OK
    before_sharpening, after_sharpening = (
        read_result(path / FILE_NAME) for path in (earlier_identification, folder / "identification")
    )
    assert all(new < old for new, old in zip(widths(after_sharpening), widths(before_sharpening), strict=True))
    assert "sharpened with the newest" in after_sharpening.source
    gravity = next(p for p in after_sharpening.parameters if p.name == "gravity_per_s2")
    assert gravity.value == pytest.approx(24.08, rel=0.02)
    assert "gravity_per_s2" in capsys.readouterr().out
    assert load("pendulum", [f"identified={folder / 'identification' / FILE_NAME}"]).identified


def test_a_changed_plant_is_named_and_nothing_is_written(
    earlier_identification: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(earlier_identification, tmp_path, "device.twin.plant.torque_constant=0.0586")
    assert main(["identify", str(folder), "--sharpen"]) == ExitCode.PREFLIGHT
    assert "the plant has left the identification: gain_per_v_s2" in capsys.readouterr().err
    assert not (folder / "identification").exists()


def test_a_run_in_progress_is_followed_to_its_end(
    earlier_identification: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(earlier_identification, tmp_path)
    n_logged = iter([500, 2500, 2500, 2600, 6000, 6000, 6400])
    fittings: list[Fitting] = []
    monkeypatch.setattr(sharpening, "_POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(sharpening, "count_logged_steps", lambda folder: next(n_logged))
    states = iter([True, True, True, True])
    monkeypatch.setattr(sharpening, "find_running", lambda folder: next(states, None))
    result = follow_run(folder, tmp_path / "out", fittings.append)
    assert [fitting.ticks for fitting in fittings] == [2500, 6000, 6400]
    assert all(width < previous_width for previous_width, width in fittings[-1].widths.values())
    assert "gain_per_v_s2 ±" in fittings[0].line()
    assert read_result(tmp_path / "out" / FILE_NAME) == result.result
    with (tmp_path / FITTINGS_FILE).open("ab") as file:
        for fitting in fittings:
            write_fitting(file, fitting)
            file.write(b'{"ti\n\n{"ticks": 1, "problem": "\xff"}\n')
    assert read_fittings(tmp_path) == fittings, "damaged lines cost nothing else"


@pytest.mark.parametrize(
    ("override", "expected"),
    [("device.twin.plant.torque_constant=0.0586", [True, True]), ("device.twin.plant.damping=2e-5", [])],
)
def test_a_run_in_progress_is_notified_of_a_changed_plant(
    override: str,
    expected: list[bool],
    earlier_identification: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, notified = run_folder(earlier_identification, tmp_path, override), []
    monkeypatch.setattr(sharpening, "_POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(sharpening, "count_logged_steps", lambda folder: 2500)
    states = iter([True])
    monkeypatch.setattr(sharpening, "find_running", lambda folder: next(states, None))
    monkeypatch.setattr(sharpening, "_report_departure", lambda folder: notified.append(True))
    with contextlib.suppress(PlantDeparted):
        follow_run(folder, tmp_path / "out", lambda fitting: None)
    assert notified == expected


def test_each_fit_has_a_smaller_share_of_the_false_alarms(
    earlier_identification: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, notified = run_folder(earlier_identification, tmp_path), []
    p_values = iter([6e-4, 1.6e-4, 9e-5])

    def depart(folder: Path, *others: object) -> None:
        raise PlantDeparted("run", "gravity has changed", folder, next(p_values))

    n_logged = iter([2500, 2500, 6000, 6000, 9000])
    states = iter([True, True])
    monkeypatch.setattr(sharpening, "_POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(sharpening, "count_logged_steps", lambda folder: next(n_logged))
    monkeypatch.setattr(sharpening, "find_running", lambda folder: next(states, None))
    monkeypatch.setattr(sharpening, "_report_departure", lambda folder: notified.append(True))
    monkeypatch.setattr(sharpening, "_sharpen", depart)
    fittings: list[Fitting] = []
    with pytest.raises(PlantDeparted):
        follow_run(folder, tmp_path / "out", fittings.append)
    assert len(fittings) == 3
    assert len(notified) == 1, "limits of 5e-4, 1.7e-4 and 8.3e-5: only the second fit is significant"
    assert [fitting.has_departed for fitting in fittings] == [False, True, False]


def test_a_resumed_run_is_notified_again_and_continues_to_count_its_fits(
    earlier_identification: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(earlier_identification, tmp_path)
    notified: list[bool] = []
    with (folder / FITTINGS_FILE).open("ab") as file:
        write_fitting(file, Fitting(2500, "gravity has changed", has_departed=True, number=1))

    def depart(folder: Path, *others: object) -> None:
        assert notified == [True], "before the first fit"
        raise PlantDeparted("run", "gravity has changed", folder, 4e-4)

    monkeypatch.setattr(sharpening, "count_logged_steps", lambda folder: 2500)
    monkeypatch.setattr(sharpening, "find_running", lambda folder: None)
    monkeypatch.setattr(sharpening, "_report_departure", lambda folder: notified.append(True))
    monkeypatch.setattr(sharpening, "_sharpen", depart)
    with pytest.raises(PlantDeparted):
        follow_run(folder, tmp_path / "out", lambda fitting: None)
    assert notified == [True], "4e-4 is significant as a first fit (5e-4), but not as a second one (1.7e-4)"


def test_sharpening_needs_a_run_that_began_with_an_identification(
    earlier_identification: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["identify", "pendulum", "--sharpen"]) == ExitCode.CONFIGURATION
    assert "'pendulum' is not the folder of a run" in capsys.readouterr().err
    folder = run_folder(earlier_identification, tmp_path)
    (folder / FILE_NAME).unlink()
    assert main(["identify", str(folder), "--sharpen"]) == ExitCode.CONFIGURATION
    assert "began without an identification" in capsys.readouterr().err
    assert main(["run", "pendulum", "--sharpen", "--run-dir", str(tmp_path / "new")]) == ExitCode.CONFIGURATION
    assert "--sharpen: the run begins without an identification" in capsys.readouterr().err
