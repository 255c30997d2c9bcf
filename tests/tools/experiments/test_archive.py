"""Published trials: reading them back from one file per cell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onrig.tools.experiments.archive import pack, write_archive
from onrig.tools.experiments.folder import check_folder
from onrig.tools.experiments.store import (
    Cell,
    CellTrials,
    Trial,
    archive_path,
    missing_seeds,
    read_cells,
    read_spec,
    read_trials,
    write_cells,
    write_trial,
)
from tests.tools.experiments import specs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    cells = specs.small_cells(folder)
    specs.write_spec(folder, specs.SMALL_SPEC, "spec.yaml")
    write_cells(folder, cells)
    for seed in range(3):
        train = np.array([-160.0, -1.0 / 3, -seed])
        write_trial(
            folder, cells[0], seed, Trial(train, np.array([np.nan, -2.0 / 3, -seed]), np.array([0.1, 0.2, 0.3]))
        )
    (folder / "meta.json").write_text('{"git_revision": "abc", "command": ["/home/me"], "resumed": [{"command": []}]}')
    return folder


def test_an_archive_is_read_like_the_folder(folder: Path, tmp_path: Path) -> None:
    cells = read_cells(folder)
    write_archive(folder, tmp_path / "data", cells)
    archived, original = read_trials(tmp_path / "data", cells[0]), read_trials(folder, cells[0])
    assert archived.seeds.tolist() == original.seeds.tolist() == [0, 1, 2]
    np.testing.assert_allclose(archived.train, original.train, rtol=0, atol=160 * 8e-6)
    np.testing.assert_allclose(archived.evaluation, original.evaluation, rtol=0, atol=2 * 8e-6)
    assert archived.batch_noise is not None
    assert archived.batch_noise.tolist() == [[0.1, 0.2, 0.3]] * 3
    assert (archived.replayed, archived.shield) == (None, None)
    assert read_spec(tmp_path / "data").name == "small"
    assert len(read_trials(tmp_path / "data", cells[1]).seeds) == 0


def test_an_archive_names_the_revision_and_no_local_path(folder: Path, tmp_path: Path) -> None:
    write_archive(folder, tmp_path / "data", read_cells(folder))
    meta_text = (tmp_path / "data" / "meta.json").read_text()
    assert "abc" in meta_text
    assert "command" not in meta_text


def test_an_archive_is_replaced(folder: Path, tmp_path: Path) -> None:
    cells = read_cells(folder)
    write_archive(folder, tmp_path / "data", cells)
    previous_path = archive_path(tmp_path / "data", cells[1])
    previous_path.write_bytes(b"of a cell without trials now")
    write_archive(folder, tmp_path / "data", cells)
    assert not previous_path.exists()


@given(arrays(np.float64, (2, 5), elements=st.floats(-1e6, 1e6) | st.just(np.nan)))
def test_rounding_is_within_its_bound_and_keeps_missing_values(values: np.ndarray) -> None:
    codes = pack(CellTrials(np.arange(2), values, values, None, None, None), keep_exact=False)
    if not np.isfinite(values).any():
        assert np.isnan(codes["train"]).all()
        return
    low, step = codes["train.low"], codes["train.step"]
    decoded = np.where(codes["train.codes"] == 65535, np.nan, low + step * codes["train.codes"])
    assert np.isnan(decoded).tolist() == np.isnan(values).tolist()
    span = np.nanmax(values) - np.nanmin(values)
    assert np.all(np.isnan(values) | (np.abs(decoded - values) <= 8e-6 * span + 1e-9))


def test_diverged_scores_are_kept_exactly() -> None:
    values = np.array([[1.0, np.inf]])
    packed = pack(CellTrials(np.arange(1), values, values, None, None, None), keep_exact=False)
    assert packed["train"].tolist() == [[1.0, np.inf]]


def test_a_damaged_archive_names_the_file(folder: Path, tmp_path: Path) -> None:
    cells = read_cells(folder)
    write_archive(folder, tmp_path / "data", cells)
    archive_path(tmp_path / "data", cells[0]).write_bytes(b"PK")
    with pytest.raises(ValueError, match=rf"{cells[0].id}\.npz' is damaged"):
        read_trials(tmp_path / "data", cells[0])


def test_a_copy_of_published_trials_can_be_resumed_and_published_again(folder: Path, tmp_path: Path) -> None:
    cells: list[Cell] = read_cells(folder)  # type: ignore[assignment]
    published_folder, resumed_folder = tmp_path / "data", tmp_path / "again"
    write_archive(folder, published_folder, cells)
    previous = read_trials(published_folder, cells[0])
    check_folder(published_folder, cells, resume=True)
    assert missing_seeds(published_folder, cells[0], range(5)) == [3, 4]
    scores = np.array([-1.0, -2.0, -1.5])
    write_trial(published_folder, cells[0], 3, Trial(scores, scores, np.array([0.4, 0.5, 0.6])))
    write_trial(published_folder, cells[1], 0, Trial(scores, scores))
    write_archive(published_folder, resumed_folder, cells)
    extended_trials = read_trials(resumed_folder, cells[0])
    assert extended_trials.seeds.tolist() == [0, 1, 2, 3]
    assert np.array_equal(
        extended_trials.evaluation[:3], previous.evaluation, equal_nan=True
    )  # not rounded a second time
    np.testing.assert_allclose(extended_trials.evaluation[3], scores, rtol=0, atol=2 * 8e-6)
    assert read_trials(resumed_folder, cells[1]).seeds.tolist() == [0]
