"""Purpose of a table: another rig, task, rate, limits or plant is refused, and so is a plant beyond it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime import registry
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.safety.barrier_file import decode_barrier, encode_barrier
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.barrier.plants import draw_plants, made_for
from onrig.sim.identification.result import Result
from onrig.tools.identification.refusal import find_conflicts
from onrig.tools.load import load, load_for_rig, load_without_table, replace_device
from tests.sim.barrier.beam import BEAM, TESTED, beam, computed, with_table


def problem(folder: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_for_rig(str(folder / "beam.yaml"), overrides)
    return str(refused.value)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("rig", "rig.lease_periods=4"),
        ("rig", "rig.safe_output=released"),
        ("task", "task.episode_s=2.0"),
        ("rate", "rate_hz=40"),
        ("limits", "limits.envelope.velocity.high=0.5"),
        ("limits", "limits.fallback.full_at=0.2"),
        ("limits", "limits.predicted.late_us=2000"),
        ("plant", "limits.predicted.uncertainty.B_velocity_tilt=[6.0, 8.0]"),
        ("plant", "device.twin.plant.A=[[0, 1], [0, -0.61]]"),
    ],
)
def test_a_table_for_something_else_is_refused_by_name(bench: Path, part: str, change: str) -> None:
    with_table(bench)
    assert f"computed for a different {part}: compute it again with `onrig safety CONFIG --barrier`" in problem(
        bench, change
    )


def test_an_identification_whose_table_must_be_recomputed_is_not_unpredictable(bench: Path) -> None:
    with_table(bench)
    config = load_for_rig(str(bench / "beam.yaml"))
    narrow = {"uncertainty": {"A_velocity_velocity": [0.5, 0.7], "B_velocity_tilt": [6.5, 7.5]}}
    result = Result(
        rig="beam", source="", twin={}, predicted=narrow, parameters=(), noise={}, signs={}, not_known=(),
        covariance=(), samples=(),
    )  # fmt: skip
    found = find_conflicts(config, result)
    assert not found.unpredictable
    assert "computed for a different plant: compute it again" in found.settings[0]


def test_a_table_for_a_plant_with_edited_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, found = tmp_path / "beam", []
    shutil.copytree(Path(__file__).parents[3] / "docs/examples/beam", folder)
    plant = folder / "plant.py"
    box = "{kind: sampled, table: none, place: position, velocity: velocity, uncertainty: {rolling: [0, 1]}}"
    for edited in (plant.read_text(), plant.read_text().replace("5.0 / 7.0", "3.0 / 5.0")):
        plant.write_text(edited)
        monkeypatch.setenv("ONRIG_TRUST", hashlib.sha256(edited.encode()).hexdigest())
        monkeypatch.setattr(registry, "_plugin_files", {group: {} for group in registry.GROUPS})
        config = load_without_table(str(folder / "run.yaml"), [f"limits.predicted={box}"])
        assert isinstance(config.limits.predicted, SampledBox)
        found.append(made_for(config, config.limits.predicted))
    assert {name for name in found[0] if found[0][name] != found[1][name]} == {"plant"}


def test_a_matching_table_is_accepted_and_its_hash_is_recorded(bench: Path) -> None:
    with_table(bench)
    config = load_for_rig(str(bench / "beam.yaml"), ["episodes=3", "seed=4"])
    box = config.limits.predicted
    assert box is not None
    assert box.sha256 == box.barrier().sha256  # type: ignore[attr-defined]


def test_a_missing_an_untested_and_a_damaged_table_are_refused(bench: Path, tmp_path: Path) -> None:
    (tmp_path / "beam.yaml").write_text(BEAM)
    assert "`onrig safety CONFIG --barrier` computes it" in problem(tmp_path)
    with_table(bench, tested=None)
    assert "was not tested" in problem(bench)
    with_table(bench, tested=msgspec.structs.replace(TESTED, plants=1, rate=0.95))
    assert "0 of 1 hostile episodes breached" in problem(bench)
    assert "at most 10% is accepted" in problem(bench)
    header, values = computed(bench)
    data = encode_barrier(header, values)
    assert decode_barrier(data).header == header
    for wrong in (data[:-1], data[:-4], data[1:], b"", data.replace(b"onrig-barrier-2", b"onrig-barrier-9")):
        with pytest.raises(ValueError, match=r"not a table|compute it again"):
            decode_barrier(wrong)
    odd = values.copy()
    odd[7] = np.nan
    with pytest.raises(ValueError, match="non-finite"):
        decode_barrier(encode_barrier(header, odd))
    (bench / "beam.barrier").write_bytes(data[:-4])
    assert "values are missing" in problem(bench)


def test_a_table_that_changed_after_the_configuration_was_read_is_refused(bench: Path) -> None:
    config, box = with_table(bench)
    barrier = box.barrier()
    with_table(bench, tested=None)
    with pytest.raises(ValueError, match="has changed"):
        box.prediction(config.limits.context(config.rig, 0.02))
    with_table(bench)
    assert box.barrier() == barrier


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("limits.predicted.uncertainty.mass=[1, 2]", "no parameter 'mass'"),
        ("limits.predicted.uncertainty.delay_s=[0, 0.01]", "set the largest delay there, not delay_s"),
        ("limits.predicted.uncertainty.B_velocity_tilt=[7, 6]", "expected the lower end first"),
        ("limits.predicted.uncertainty.B_velocity_tilt=[-7, 6]", "got -7"),
        ("limits.predicted.place=angle", "no observation 'angle'"),
        (
            "limits.fallback={kind: hold, position: position, velocity: velocity, magnets: {tilt: 0.0}}",
            "'damp' or 'safe'",
        ),
        ("limits.envelope={}", "expected an envelope to guarantee"),
        (
            "rig.observations[1]={name: velocity, unit: m/s, low: -1.0, high: 1.0, derivative_of: position}",
            "a table needs every state measured",
        ),
        ("limits.predicted.late_us=30000", "expected 0 to one period"),
        ("limits.predicted.plant_delay_us=1001", "expected 0 to 1000 us (late_us), got 1001"),
    ],
)
def test_settings_without_a_matching_table_are_refused(bench: Path, change: str, said: str) -> None:
    with_table(bench)
    assert said in problem(bench, change)


PLANT = "{kind: linear, states: [position, velocity], actions: [tilt], A: [[0, 1], [0, -0.6]], B: [[0], [7.0]]}"


def test_a_twin_that_the_uncertainty_does_not_cover_is_refused(bench: Path) -> None:
    with_table(bench)
    heavy = "device.twin.plant.B=[[0], [9.1]]"
    assert "B_velocity_tilt 9.1, but the table covers 6.3 to 7.7" in problem(
        bench, f"limits.predicted.plant={PLANT}", heavy
    )


def test_a_twin_that_acts_later_than_the_table_covers_is_refused(bench: Path) -> None:
    with_table(bench)
    same = f"limits.predicted.plant={PLANT}"
    assert "acts 500 us after the device's output, but the table covers 0 us (plant_delay_us)" in problem(
        bench, same, "device.twin.plant.delay_s=0.0005"
    )
    covered = "limits.predicted.plant_delay_us=500"
    assert "computed for a different limits" in problem(bench, same, covered, "device.twin.plant.delay_s=0.0005")


def test_a_device_on_a_port_keeps_the_plant_of_the_twin(bench: Path) -> None:
    config, _ = with_table(bench)
    moved = replace_device(config, "/dev/null")
    assert moved.device.twin is None
    assert moved.limits.predicted is not None
    assert moved.limits.predicted.plant["kind"] == "linear"  # type: ignore[attr-defined]
    bare = load(str(bench / "beam.yaml"))
    lost = msgspec.structs.replace(bare, device=moved.device)
    from onrig.sim.barrier.plants import plant_problems, table_problems

    assert not [*table_problems(moved, moved.limits.predicted)]  # type: ignore[arg-type]
    assert "needs the plant" in str([*plant_problems(lost, lost.limits.predicted)])  # type: ignore[arg-type]


def test_plants_are_drawn_only_from_their_intervals(bench: Path) -> None:
    config, box = beam(bench)
    draw = draw_plants(config, box, 500, np.random.default_rng(0), includes_corners=False)
    for name, (low, high) in box.uncertainty.items():
        assert low <= draw.parameters[name].min() < draw.parameters[name].max() <= high
    corners = draw_plants(config, box, 8, np.random.default_rng(0), includes_corners=True)
    ends = {
        (round(a, 9), round(b, 9)) for a, b in zip(*(corners.parameters[n][:4] for n in box.uncertainty), strict=True)
    }
    assert ends == {(a, b) for a in (0.45, 0.75) for b in (6.3, 7.7)}
