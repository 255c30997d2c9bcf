from __future__ import annotations

from pathlib import Path

import pytest

from onrig.learner.states import KEPT, States
from tests.learner.test_agent import agent, learned


def saved(folder: Path, *episodes: int) -> States:
    states = States(folder, pytest.fail)
    a = agent()
    for episode in episodes:
        learned(a, 3)
        a.handled = episode
        states.save(a)
    return states


def test_the_last_few_states_are_kept(tmp_path: Path) -> None:
    states = saved(tmp_path, 0, 5, 10, 15, 20)
    assert states.episodes() == [20, 15, 10][:KEPT]
    assert len(list(tmp_path.iterdir())) == KEPT


def test_the_newest_one_not_after_an_episode_is_taken_and_later_ones_are_forgotten(tmp_path: Path) -> None:
    states = saved(tmp_path, 5, 10, 15)
    a = agent()
    assert states.restore(a, upto=12)
    assert (a.handled, a.updates) == (10, 6)
    assert states.episodes() == [10, 5]


def test_without_a_bound_it_is_the_newest(tmp_path: Path) -> None:
    states = saved(tmp_path, 5, 10)
    a = agent()
    assert states.restore(a, upto=None)
    assert a.handled == 10
    assert states.episodes() == [10, 5]


def test_those_of_an_earlier_run_give_way_to_the_first_of_a_new_one(tmp_path: Path) -> None:
    states = saved(tmp_path, 498, 499, 500)
    a = agent()
    assert states.restore(a, upto=None)
    for episode in (51, 52):
        a.handled = episode
        states.save(a)
    assert states.episodes() == [52, 51]


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    states = saved(tmp_path, 5, 10)
    states.path(10).write_bytes(states.path(10).read_bytes()[:-40])
    a = agent()
    assert states.restore(a, upto=10)
    assert a.handled == 5


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_where_there_is_none_nothing_is_taken(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    a = agent()
    assert not States(tmp_path / folder, pytest.fail).restore(a, upto=None)
    assert a.updates == 0


def test_a_full_disk_is_told_of_once_until_there_is_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    states, a = States(tmp_path, told.append), agent()

    def full(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("onrig.learner.agent.replace_own_file", full)
            states.save(a)
            states.save(a)
        assert (states.unwritten, states.episodes()) == (True, [])
        states.save(a)
        assert not states.unwritten
        states.path(a.handled).unlink()
    assert told == ["cannot save the learner's state: No space left on device; will retry"] * 2
