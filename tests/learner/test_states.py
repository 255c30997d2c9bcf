from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.hw.native import executor, executor_of
from onrig.learner.states import MAX_STATES, States, StatesConflictError, state_fault
from tests.learner.test_agent import agent, learn_and_collect


def save_states(folder: Path, *episodes: int) -> States:
    states = States(folder, pytest.fail)
    a = agent()
    for episode in episodes:
        learn_and_collect(a, 3)
        a.last_completed_episode = episode
        states.save(a)
    return states


def test_the_last_few_states_are_kept(tmp_path: Path) -> None:
    states = save_states(tmp_path, 0, 5, 10, 15, 20)
    assert states.episodes() == [20, 15, 10][:MAX_STATES]
    assert len(list(tmp_path.iterdir())) == MAX_STATES


def test_the_newest_state_up_to_an_episode_is_restored_and_later_ones_are_deleted(tmp_path: Path) -> None:
    states = save_states(tmp_path, 5, 10, 15)
    a = agent()
    assert states.restore(a, last_episode=12)
    assert (a.last_completed_episode, a.updates) == (10, 6)
    assert states.episodes() == [10, 5]


def test_without_a_bound_the_newest_state_is_restored(tmp_path: Path) -> None:
    states = save_states(tmp_path, 5, 10)
    a = agent()
    assert states.restore(a, last_episode=None)
    assert a.last_completed_episode == 10
    assert states.episodes() == [10, 5]


def test_states_after_the_current_episode_are_deleted_first(tmp_path: Path) -> None:
    states = save_states(tmp_path, 498, 499, 500)
    a = agent()
    assert states.restore(a, last_episode=None)
    for episode in (51, 52):
        a.last_completed_episode = episode
        states.save(a)
    assert states.episodes() == [52, 51]


def test_a_damaged_state_is_skipped(tmp_path: Path) -> None:
    states = save_states(tmp_path, 5, 10)
    states.path(10).write_bytes(states.path(10).read_bytes()[:-40])
    a, warnings = agent(), list[str]()
    assert States(tmp_path, warnings.append).restore(a, last_episode=10)
    assert a.last_completed_episode == 5
    assert warnings == [f"{states.path(10)} is damaged; it is skipped"]


def test_every_bit_of_a_state_is_checked(tmp_path: Path) -> None:
    states = save_states(tmp_path, 5)
    data = states.path(5).read_bytes()
    assert state_fault(states.path(5), "") is None
    for position in range(200, len(data), len(data) // 25):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        states.path(5).write_bytes(damaged)
        if state_fault(states.path(5), "") is None:  # an attribute of the archive: the state is unchanged
            a, b = agent(), agent()
            assert a.restore(states.path(5))
            states.path(5).write_bytes(data)
            assert b.restore(states.path(5))
            a.save(tmp_path / "a")
            b.save(tmp_path / "b")
            assert content(tmp_path / "a") == content(tmp_path / "b")


def content(path: Path) -> dict[str, bytes]:
    with np.load(path) as archive:
        return {name: archive[name].tobytes() for name in archive.files}


def test_a_state_copied_to_another_episode_is_skipped(tmp_path: Path) -> None:
    states = save_states(tmp_path, 5)
    states.path(9).write_bytes(states.path(5).read_bytes())
    a, warnings = agent(), list[str]()
    assert States(tmp_path, warnings.append).restore(a, last_episode=None)
    assert a.last_completed_episode == 5
    assert "is the state after episode 5" in warnings[0]


@pytest.mark.parametrize("other_identity", ["another", ""], ids=["another run", "an earlier version"])
def test_a_folder_of_another_run_is_refused_and_left_unchanged(tmp_path: Path, other_identity: str) -> None:
    states_before = States(tmp_path, pytest.fail)
    states_before.claim(other_identity)
    states_before.save(agent())
    left = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        StatesConflictError, match=r"learner-00000000\.npz belongs to another run; choose another folder"
    ):
        States(tmp_path, pytest.fail).claim("mine")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == left


def test_a_folder_whose_states_are_all_damaged_may_belong_to_another_run(tmp_path: Path) -> None:
    states = States(tmp_path, pytest.fail)
    states.claim("mine")
    states.save(agent())
    States(tmp_path, pytest.fail).claim("mine")
    states.path(0).write_bytes(b"PK")
    with pytest.raises(StatesConflictError, match="damaged and may belong"):
        States(tmp_path, pytest.fail).claim("mine")
    assert states.path(0).exists()


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_without_a_state_nothing_is_restored(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    a = agent()
    assert not States(tmp_path / folder, pytest.fail).restore(a, last_episode=None)
    assert a.updates == 0


def test_a_full_disk_is_reported_once_until_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    states, a = States(tmp_path, warnings.append), agent()

    def raise_no_space(*arguments: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("onrig.learner.agent.replace_own_file", raise_no_space)
            states.save(a)
            states.save(a)
        assert (states.has_save_failed, states.episodes()) == (True, [])
        states.save(a)
        assert not states.has_save_failed
        states.path(a.last_completed_episode).unlink()
    assert warnings == ["cannot save the learner's state: No space left on device; will retry"] * 2


def test_states_computed_by_another_executor_are_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("onrig.learner.agent.executor", lambda: executor_of("riscv64"))
        states = save_states(tmp_path, 5)
    content_before = states.path(5).read_bytes()
    expected = (
        r"learner-00000005.npz: computed by the C library \(riscv64\); here .*; or choose another folder with --state"
    )
    with pytest.raises(StatesConflictError, match=expected):
        states.claim("")
    assert states.path(5).read_bytes() == content_before


def test_states_name_their_executor(tmp_path: Path) -> None:
    states = save_states(tmp_path, 5, 10)
    assert states.executor() == executor()
    states.claim("")
    states.path(10).write_bytes(b"damaged")
    assert states.executor() == executor()
    states.path(5).unlink()
    assert states.executor() is None
