"""What a table is made for: another rig, task, rate, limits or plant is refused, and so is a plant beyond it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime import registry
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.safety.barrier_file import decode, encode
from onrig.sim.barrier.plants import draw_plants, table_problems
from onrig.tools.load import load, load_for_rig, replace_device
from tests.sim.barrier.beam import BEAM, beam, computed, with_table


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
def test_a_table_of_something_else_is_refused_by_name(bench: Path, part: str, change: str) -> None:
    with_table(bench)
    assert f"computed for another {part}: compute it again with `onrig safety CONFIG --barrier`" in problem(
        bench, change
    )


def test_a_table_for_other_code_of_the_plant_is_refused(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, box = with_table(bench)
    assert not list(table_problems(config, box))
    edited = registry.Origin("plant.py", "", "a" * 64)
    monkeypatch.setattr(registry, "origin_of", lambda group, name: edited)
    [(_, message)] = table_problems(config, box)
    assert "computed for another plant" in message


def test_a_table_that_fits_is_accepted_and_its_hash_is_recorded(bench: Path) -> None:
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
    header, values = computed(bench)
    data = encode(header, values)
    assert decode(data).header == header
    for wrong in (data[:-1], data[:-4], data[1:], b"", data.replace(b"onrig-barrier-1", b"onrig-barrier-9")):
        with pytest.raises(ValueError, match=r"not a table|compute it again"):
            decode(wrong)
    odd = values.copy()
    odd[7] = np.nan
    with pytest.raises(ValueError, match="non-finite"):
        decode(encode(header, odd))
    (bench / "beam.barrier").write_bytes(data[:-4])
    assert "values are missing" in problem(bench)


def test_a_table_that_changed_after_the_configuration_was_read_is_refused(bench: Path) -> None:
    config, box = with_table(bench)
    barrier = box.barrier()
    with_table(bench, tested=None)
    with pytest.raises(ValueError, match="has changed"):
        box.prediction(config.limits.setting(config.rig, 0.02))
    with_table(bench)
    assert box.barrier() == barrier


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("limits.predicted.uncertainty.mass=[1, 2]", "no parameter 'mass'"),
        ("limits.predicted.uncertainty.delay_s=[0, 0.01]", "state the largest one there, not delay_s"),
        ("limits.predicted.uncertainty.B_velocity_tilt=[7, 6]", "expected the lower end first"),
        ("limits.predicted.uncertainty.B_velocity_tilt=[-7, 6]", "got -7"),
        ("limits.predicted.place=angle", "no observation 'angle'"),
        (
            "limits.fallback={kind: hold, position: position, velocity: velocity, magnets: {tilt: 0.0}}",
            "'damp' or 'safe'",
        ),
        ("limits.envelope={}", "expected an envelope to guarantee"),
        ("limits.predicted.late_us=30000", "expected 0 to one period"),
        ("limits.predicted.plant_delay_us=1001", "expected 0 to 1000 us (late_us), got 1001"),
    ],
)
def test_settings_that_no_table_has_are_refused(bench: Path, change: str, said: str) -> None:
    with_table(bench)
    assert said in problem(bench, change)


PLANT = "{kind: linear, states: [position, velocity], actions: [tilt], A: [[0, 1], [0, -0.6]], B: [[0], [7.0]]}"


def test_a_twin_that_the_uncertainty_does_not_cover_is_refused(bench: Path) -> None:
    with_table(bench)
    heavy = "device.twin.plant.B=[[0], [9.1]]"
    assert "B_velocity_tilt 9.1, the table covers 6.3 to 7.7" in problem(
        bench, f"limits.predicted.plant={PLANT}", heavy
    )


def test_a_twin_that_acts_later_than_the_table_covers_is_refused(bench: Path) -> None:
    with_table(bench)
    same = f"limits.predicted.plant={PLANT}"
    assert "acts 500 us after the device's output, the table covers 0 us (plant_delay_us)" in problem(
        bench, same, "device.twin.plant.delay_s=0.0005"
    )
    covered = "limits.predicted.plant_delay_us=500"
    assert "computed for another limits" in problem(bench, same, covered, "device.twin.plant.delay_s=0.0005")


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


def test_plants_are_drawn_from_their_intervals_alone(bench: Path) -> None:
    config, box = beam(bench)
    draw = draw_plants(config, box, 500, np.random.default_rng(0), corners=False)
    for name, (low, high) in box.uncertainty.items():
        assert low <= draw.parameters[name].min() < draw.parameters[name].max() <= high
    corners = draw_plants(config, box, 8, np.random.default_rng(0), corners=True)
    ends = {
        (round(a, 9), round(b, 9)) for a, b in zip(*(corners.parameters[n][:4] for n in box.uncertainty), strict=True)
    }
    assert ends == {(a, b) for a in (0.45, 0.75) for b in (6.3, 7.7)}
