"""Completeness of a run, and the report of missing data."""

from __future__ import annotations

from pathlib import Path

import pytest

from onrig.runtime.run_state.episodes import EpisodeFile
from onrig.runtime.run_state.wholeness import Account, LogAccount, judge, told, unaccounted, whole_of
from tests.runtime.run_state.test_episodes import ROW

WHOLE = Account(rows=2, taken=400, waiting=0, dropped=0, lost=0, covered=True, log=LogAccount(400, 0), departures=0)


def test_a_run_that_has_everything_is_complete() -> None:
    whole = judge(WHOLE, rows=2, acted=[1, 2], filed_policies={1, 2})
    assert whole.complete
    assert whole.reproducible
    assert told(whole) == "data complete: 2 rows, 400 records, 2 policies, 400 logged"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": 5}, "rows: 3 of 5 are not in episodes.csv"),
        ({"dropped": 7}, "experiences: 7 step records are missing (7 found the ring full)"),
        ({"lost": 3, "waiting": 4}, "7 step records are missing (3 died with a replay process, 4 were not taken in)"),
        ({"covered": False}, "the last checkpoint of the memory could not be written"),
        ({"log": LogAccount(400, 9, "No space left on device")}, "log: 9 of 400 step records are not in it (No space"),
    ],
)
def test_what_is_missing_is_counted_and_named(change: dict[str, int], says: str) -> None:
    whole = judge(WHOLE._replace(**change), rows=2, acted=[1, 2], filed_policies={1, 2})  # type: ignore[arg-type]
    assert not whole.complete
    assert says in told(whole)
    assert told(whole).startswith("DATA INCOMPLETE: ")


def test_policies_that_acted_are_to_be_there() -> None:
    whole = judge(WHOLE, rows=2, acted=list(range(1, 9)), filed_policies={8})
    assert whole.lost == ("policies: 7 of 8 that acted are not stored (1, 2, 3, 4, 5, ...)",)


def test_a_log_that_the_configuration_ended_lacks_nothing() -> None:
    ended = LogAccount(400, 300, "the log has reached log.max_bytes (1000)", by_request=True)
    assert judge(WHOLE._replace(log=ended), rows=2, acted=[], filed_policies=set()).complete


@pytest.mark.parametrize(
    ("change", "reproducible"),
    [({"departures": 1}, False), ({"lost": 1}, False), ({"waiting": 5}, True), ({"departures": None}, None)],
)
def test_what_a_resumed_run_makes_again_is_reproducible(change: dict[str, int | None], reproducible: bool) -> None:
    whole = judge(WHOLE._replace(**change), rows=2, acted=[], filed_policies=set())  # type: ignore[arg-type]
    assert whole.reproducible is reproducible
    assert ("NOT REPRODUCIBLE" in told(whole)) is (reproducible is False)


def test_files_are_looked_at_and_not_believed(tmp_path: Path) -> None:
    file = EpisodeFile(tmp_path / "episodes.csv")
    for episode in (1, 2):
        file.append(ROW._replace(episode=episode, policy_id=episode))
    file.close()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "1.onnx").write_bytes(b"")
    whole = whole_of(WHOLE, tmp_path, acted=[2])
    assert (whole.rows.present, whole.policies and whole.policies.present) == (2, 1)
    assert whole.lost == ("policies: 1 of 2 that acted are not stored (2)",)


def test_without_the_replay_process_nothing_is_taken_for_granted(tmp_path: Path) -> None:
    EpisodeFile(tmp_path / "episodes.csv").close()
    whole = unaccounted(6, tmp_path)
    assert not whole.complete
    assert "rows: 6 of 6 are not in episodes.csv" in whole.lost
