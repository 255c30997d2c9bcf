from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.tools.reports.run.memory_chart import MemorySample, read_memory_sample, read_surface, shown_axes
from tests.runtime.samples import MAGMAN
from tests.tools.reports.run.folders import load_config, write_memory, write_policy

CONFIG = load_config()


def test_the_memory_is_read_back_in_the_rigs_units(tmp_path: Path) -> None:
    write_memory(tmp_path, CONFIG, 300)
    contents = read_memory_sample(tmp_path, CONFIG)
    assert isinstance(contents, MemorySample)
    assert (contents.n_stored, contents.capacity, len(contents.points)) == (300, 500, 300)
    assert (contents.x.name, contents.y.name) == ("angle", "velocity")
    assert contents.points[:, 0].min() == pytest.approx(-3.0, abs=1e-5)
    assert contents.points[:, 0].max() == pytest.approx(3.0, abs=0.05)
    assert contents.points[:, 1].max() == pytest.approx(29.0, abs=1e-3)
    assert contents.age.tolist() == list(range(299, -1, -1)), "writes since"
    # 300 angles, and velocities that rise once in 30 steps: at most one cell each.
    assert 0 < contents.covered_fraction <= 300 / 1600


def test_a_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    assert read_memory_sample(tmp_path, CONFIG) == "it has no checkpoint"


def test_a_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    write_memory(tmp_path, CONFIG)
    for manifest in (tmp_path / "buffer").glob("manifest-*.json"):
        manifest.write_bytes(b"nonsense")
    message = read_memory_sample(tmp_path, CONFIG)
    assert isinstance(message, str)
    assert "cannot be read" in message


def test_the_policy_is_evaluated_over_the_complete_range(tmp_path: Path) -> None:
    write_policy(tmp_path, CONFIG)
    surface = read_surface(tmp_path, CONFIG, None)
    assert surface is not None
    assert surface.policy_id == 1
    assert surface.action.shape == (1, len(surface.y), len(surface.x))
    assert (surface.x[0], surface.x[-1]) == (CONFIG.rig.signals[0].low, CONFIG.rig.signals[0].high)
    assert np.isfinite(surface.action).all()
    assert np.ptp(surface.action) > 0
    assert surface.fixed_signals == ()


@pytest.mark.parametrize("content", [b"no model", b""])
def test_an_invalid_policy_has_no_surface(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "1.onnx").write_bytes(content)
    assert read_surface(tmp_path, CONFIG, 1) is None


def test_both_shipped_rigs_have_two_observations_to_show() -> None:
    assert shown_axes(CONFIG) == shown_axes(MAGMAN) == (0, 1)
