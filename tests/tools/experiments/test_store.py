"""The folder of an experiment: saved trials are read back, damaged ones are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.learner.trials.step_run import REPLAY_MEASURES
from onrig.runtime import registry
from onrig.runtime.config.problem import ConfigError
from onrig.tools.experiments.spec import load_spec
from onrig.tools.experiments.store import (
    Cell,
    Trial,
    missing_seeds,
    read_cells,
    read_spec,
    read_trials,
    remove_unfinished,
    write_cells,
    write_trial,
)
from tests.tools.experiments import specs


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return specs.small_cells(tmp_path)[0]


def trial(seed: float, *, has_noise: bool = True) -> Trial:
    train = np.array([-1.0, -1.0 / 3, seed])
    return Trial(train, train * 2, np.array([0.1, 0.2, seed]) if has_noise else None)


def test_cells_are_read_back_unchanged(tmp_path: Path) -> None:
    cells_written = specs.small_cells(tmp_path)
    write_cells(tmp_path, cells_written)
    assert read_cells(tmp_path) == cells_written


def test_the_spec_is_read_from_the_copy_in_the_results_folder(tmp_path: Path) -> None:
    specs.write_spec(tmp_path, specs.SMALL_SPEC, "spec.yaml")
    assert (read_spec(tmp_path).name, read_spec(tmp_path).trials) == ("small", 4)


def test_the_spec_of_a_folder_reads_no_python_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    plugin = "    python: {samplers: {Missing: missing.py:Missing, Evil: evil.py:Evil}}\n"
    path = specs.write_spec(tmp_path, specs.SMALL_SPEC.rstrip(" ") + plugin, "spec.yaml")
    write_cells(tmp_path, [])
    assert read_spec(tmp_path).name == "small"
    assert "Evil" not in registry.names(registry.SAMPLERS)
    with pytest.raises(ConfigError, match=r"'evil\.py' lacks the SHA-256"):
        load_spec(path)


def test_trials_are_read_back_by_ascending_seed_bit_for_bit(tmp_path: Path, cell: Cell) -> None:
    for seed in (10, 2, 7):
        write_trial(tmp_path, cell, seed, trial(seed))
    trials = read_trials(tmp_path, cell)
    assert trials.seeds.tolist() == [2, 7, 10]
    assert trials.train.tolist() == [trial(s).train.tolist() for s in (2, 7, 10)]
    assert trials.evaluation.tolist() == [trial(s).evaluation.tolist() for s in (2, 7, 10)]
    assert trials.batch_noise is not None
    assert trials.batch_noise.tolist() == [[0.1, 0.2, s] for s in (2, 7, 10)]


def test_measures_missing_in_an_older_version_are_nan(tmp_path: Path, cell: Cell) -> None:
    errors_and_targets = np.arange(6.0).reshape(2, 3)
    write_trial(tmp_path, cell, 0, trial(1.0)._replace(replayed=errors_and_targets))
    write_trial(tmp_path, cell, 1, trial(1.0)._replace(replayed=np.ones((len(REPLAY_MEASURES), 3))))
    replayed = read_trials(tmp_path, cell).replayed
    assert replayed is not None
    assert replayed.shape == (2, len(REPLAY_MEASURES), 3)
    assert replayed[0, :2].tolist() == errors_and_targets.tolist()
    assert np.isnan(replayed[0, 2:]).all()


def test_a_cell_without_trials_has_empty_arrays_of_the_right_length(tmp_path: Path, cell: Cell) -> None:
    trials = read_trials(tmp_path, cell)
    assert trials.train.shape == trials.evaluation.shape == (0, 3)
    assert (trials.seeds.tolist(), trials.batch_noise) == ([], None)


def test_trials_without_noise_have_no_noise_measures(tmp_path: Path, cell: Cell) -> None:
    write_trial(tmp_path, cell, 1, trial(1, has_noise=False))
    assert read_trials(tmp_path, cell).batch_noise is None


def test_the_same_trial_gives_the_same_file(tmp_path: Path, cell: Cell) -> None:
    for folder in ("a", "b"):
        write_trial(tmp_path / folder, cell, 3, trial(3))
    assert specs.trial_files(tmp_path / "a") == specs.trial_files(tmp_path / "b") != {}


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "other length", "encrypted", "no archive"])
def test_a_damaged_trial_counts_as_missing_and_is_rewritten(tmp_path: Path, cell: Cell, damage: str) -> None:
    write_trial(tmp_path, cell, 1, trial(1))
    write_trial(tmp_path, cell, 2, trial(2))
    path = tmp_path / "trials" / cell.id / "1.npz"
    content = path.read_bytes()
    if damage == "other length":
        with path.open("wb") as file:
            np.savez(file, train=np.zeros(2), evaluation=np.zeros(2))
    elif damage == "no archive":
        with path.open("wb") as file:
            np.save(file, np.zeros(2))
    elif damage == "encrypted":  # one bit of the archive's directory
        header_offset = content.index(b"PK\x01\x02") + 8
        path.write_bytes(content[:header_offset] + bytes([content[header_offset] ^ 1]) + content[header_offset + 1 :])
    else:
        header_offset = content.index(trial(1).train.tobytes())
        damaged = content[:header_offset] + bytes([content[header_offset] ^ 1]) + content[header_offset + 1 :]
        path.write_bytes({"cut": content[: len(content) // 2], "flipped": damaged, "emptied": b""}[damage])
    assert missing_seeds(tmp_path, cell, range(4)) == [0, 1, 3]
    assert read_trials(tmp_path, cell).seeds.tolist() == [2]
    write_trial(tmp_path, cell, 1, trial(1))
    assert path.read_bytes() == content


def test_a_complete_trial_is_never_overwritten(tmp_path: Path, cell: Cell) -> None:
    write_trial(tmp_path, cell, 1, trial(1))
    write_trial(tmp_path, cell, 1, trial(99))
    assert read_trials(tmp_path, cell).train[0, 2] == 1


def test_a_file_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_fsync(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onrig.tools.experiments.store.os.fsync", fail_fsync)
    with pytest.raises(OSError, match="No space left"):
        write_trial(tmp_path, cell, 1, trial(1))
    assert specs.trial_files(tmp_path) == {}


def test_partial_files_are_swept_away(tmp_path: Path, cell: Cell) -> None:
    write_trial(tmp_path, cell, 1, trial(1))
    unfinished_file = tmp_path / "trials" / cell.id / ".2.npz.unfinished"
    unfinished_file.write_bytes(b"PK")
    assert read_trials(tmp_path, cell).seeds.tolist() == [1]
    remove_unfinished(tmp_path)
    assert not unfinished_file.exists()
    assert missing_seeds(tmp_path, cell, [1, 2]) == [2]


def test_damaged_cells_are_reported_by_their_file(tmp_path: Path) -> None:
    (tmp_path / "cells.json").write_bytes(b"[{")
    with pytest.raises(ValueError, match=r"cells\.json' is damaged"):
        read_cells(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"config": "', '"confug": "', "neither 'config' nor 'world' in its label"),
        ('"FIFO[Uniform]"', '"FIFO[Unifrom]"', "unknown sampling 'Unifrom'"),
    ],
)
def test_cells_with_invalid_values_are_reported_by_their_file(
    tmp_path: Path, cell: Cell, old: str, new: str, message: str
) -> None:
    write_cells(tmp_path, [cell])
    text = (tmp_path / "cells.json").read_text()
    assert old in text
    (tmp_path / "cells.json").write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=rf"cells\.json' is damaged.*{message}"):
        read_cells(tmp_path)
