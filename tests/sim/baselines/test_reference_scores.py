"""The cache of the references: a hit equals a fresh result, and every relevant change makes a new entry."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from onrig.runtime.python_files import PythonFile, import_file
from onrig.runtime.task import Normalization
from onrig.sim.baselines import finite_horizon, fuzzy_q_iteration
from onrig.sim.baselines.fuzzy_q_iteration import Grid
from onrig.sim.baselines.reference_scores import (
    cache_folder,
    fuzzy_baseline,
    grids_for,
    horizon_grids_for,
    optimum_baseline,
    random_baseline,
)
from onrig.sim.plants import Pendulum
from tests.sim.baselines.models import HARDWARE, MAGMAN, PENDULUM, with_task

TINY = Grid((8, 9), 3)


def entries(folder: Path) -> int:
    return len(list(folder.iterdir()))


def test_a_hit_equals_a_fresh_result_and_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = fuzzy_baseline(PENDULUM, TINY, tmp_path), random_baseline(PENDULUM, tmp_path, 10)
    assert entries(tmp_path) == 2
    monkeypatch.setattr(fuzzy_q_iteration, "solve", None)
    monkeypatch.setattr("onrig.sim.baselines.reference_scores.random_reward", None)
    assert (fuzzy_baseline(PENDULUM, TINY, tmp_path), random_baseline(PENDULUM, tmp_path, 10)) == fresh


def test_the_optimum_is_also_cached_and_polishing_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = msgspec.structs.replace(PENDULUM, steps=10)
    fresh = optimum_baseline(short, TINY, tmp_path)
    assert fresh.polished >= fresh.look_ahead
    monkeypatch.setattr(finite_horizon, "induce", None)
    assert optimum_baseline(short, TINY, tmp_path) == fresh
    assert entries(tmp_path) == 1


def test_everything_that_a_result_depends_on_gives_another_entry(tmp_path: Path) -> None:
    heavier = msgspec.structs.replace(PENDULUM, plant=Pendulum(mass=0.06))
    cheaper = with_task(PENDULUM, reward=msgspec.structs.replace(PENDULUM.task.reward, action_weights={"voltage": 5.0}))
    shorter = msgspec.structs.replace(PENDULUM, steps=100)
    for n, model in enumerate((PENDULUM, heavier, cheaper, shorter, HARDWARE), 1):
        random_baseline(model, tmp_path, 3)
        assert entries(tmp_path) == n
    random_baseline(PENDULUM, tmp_path, 4)
    assert entries(tmp_path) == 6


def test_names_and_references_of_the_task_share_an_entry(tmp_path: Path) -> None:
    random_baseline(PENDULUM, tmp_path, 3)
    random_baseline(with_task(PENDULUM, name="x", normalization=Normalization(-2.0, -1.0)), tmp_path, 3)
    assert entries(tmp_path) == 1


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", b"not a file of numpy"])
def test_a_damaged_entry_is_rewritten(damage: bytes, tmp_path: Path) -> None:
    fresh = random_baseline(PENDULUM, tmp_path, 3)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for content in (damage, whole[: len(whole) // 2]):
        file.write_bytes(content)
        assert random_baseline(PENDULUM, tmp_path, 3) == fresh
        assert len(file.read_bytes()) == len(whole)
    assert entries(tmp_path) == 1


def test_without_a_writable_folder_the_result_is_still_returned(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert random_baseline(PENDULUM, blocked / "below", 3) == random_baseline(PENDULUM, tmp_path / "there", 3)


def test_the_cache_is_in_the_xdg_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "onrig" / "baselines"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "onrig" / "baselines"


def test_fine_grids_continue_where_coarse_ones_end() -> None:
    for model in (PENDULUM, MAGMAN):
        for ladder in (grids_for, horizon_grids_for):
            coarse, fine = ladder(model, "coarse"), ladder(model, "fine")
            sizes = [grid.nodes for grid in (*coarse, *fine)]
            assert sizes == sorted(sizes)
            assert (len(coarse), len(fine)) == (2, 3)


TERM = """
from onrig.runtime.reward_terms import Alive


class Mine(Alive, frozen=True, tag="mine"):
    pass
"""


def test_a_changed_third_party_reward_term_gives_another_entry(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    reward = PENDULUM.task.reward
    for n, text in enumerate((TERM, TERM + "\nCHANGED = True\n", TERM), 1):
        path = tmp_path / "mine.py"
        path.write_text(text, encoding="utf-8")
        mine = import_file(PythonFile(path, "Mine", hashlib.sha256(text.encode()).hexdigest())).Mine
        with_mine = msgspec.structs.replace(reward, terms={"mine": mine(reward=0.1)})
        random_baseline(with_task(PENDULUM, reward=with_mine), folder, 3)
        assert entries(folder) == min(n, 2)
