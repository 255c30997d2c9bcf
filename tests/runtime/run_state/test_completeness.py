"""Completeness of a run, and the report of missing data."""

from __future__ import annotations

from pathlib import Path

import pytest

from onrig.runtime.run_state.checksums import FileChecksum, measure
from onrig.runtime.run_state.completeness import (
    Account,
    FolderContents,
    ItemCount,
    LogAccount,
    assess,
    assess_without_account,
    judge,
    sequence_gap,
    summary_line,
)
from onrig.runtime.run_state.episodes import EpisodeFile
from onrig.runtime.run_state.policy_index import PolicyIndex
from tests.runtime.run_state.test_episodes import ROW

COMPLETE_ACCOUNT = Account(
    rows=2, read=400, unread=0, dropped=0, lost=0, newer=0, is_covered=True, log=LogAccount(400, 0), n_deviations=0
)
FOLDER_CONTENTS = FolderContents(rows=2, acted=2)


def test_a_run_with_all_its_data_is_complete() -> None:
    completeness = judge(COMPLETE_ACCOUNT, FOLDER_CONTENTS)
    assert completeness.complete
    assert completeness.reproducible
    assert summary_line(completeness) == "data complete: 2 rows, 400 records, 2 policies, 400 logged"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 5}, "rows: 3 of 5 are not in episodes.csv"),
        ({"dropped": 7}, "experiences: 7 step records are missing (7 found the ring full)"),
        ({"lost": 3, "unread": 4}, "7 step records are missing (3 were lost with a replay process, 4 were not read)"),
        ({"rows": 1}, "rows: episodes.csv has 1 rows more than closed episodes"),
        ({"newer": 26}, "26 step records are missing (26 were newer than the checkpoint when the run was killed)"),
        ({"is_covered": False}, "the last checkpoint of the memory could not be written"),
        ({"log": LogAccount(400, 9, "No space left on device")}, "log: 9 of 400 step records are not in it (No space"),
    ],
)
def test_missing_data_are_counted_and_named(changes: dict[str, int], message: str) -> None:
    completeness = judge(COMPLETE_ACCOUNT._replace(**changes), FOLDER_CONTENTS)  # type: ignore[arg-type]
    assert not completeness.complete
    assert message in summary_line(completeness)
    assert summary_line(completeness).startswith("DATA INCOMPLETE: ")


def test_policies_that_acted_must_be_present() -> None:
    completeness = judge(COMPLETE_ACCOUNT, FOLDER_CONTENTS._replace(acted=8, missing=(1, 2, 3, 4, 5, 6), altered=(7,)))
    assert completeness.lost == (
        "policies: 6 of 8 that acted are not stored (1, 2, 3, 4, 5, ...)",
        "policies: 1 of 8 that acted have changed (7)",
    )
    assert completeness.policies == ItemCount(8, 1)


def test_a_log_that_the_configuration_ended_lacks_nothing() -> None:
    log_account = LogAccount(400, 300, "the log has reached log.max_bytes (1000)", ended_by_limit=True)
    assert judge(COMPLETE_ACCOUNT._replace(log=log_account), FOLDER_CONTENTS).complete


@pytest.mark.parametrize(
    ("changes", "reproducible"),
    [({"n_deviations": 1}, False), ({"lost": 1}, False), ({"unread": 5}, True), ({"n_deviations": None}, None)],
)
def test_data_repeated_by_a_resumed_run_are_reproducible(changes: dict[str, int | None], reproducible: bool) -> None:
    completeness = judge(COMPLETE_ACCOUNT._replace(**changes), FOLDER_CONTENTS)  # type: ignore[arg-type]
    assert completeness.reproducible is reproducible
    assert ("NOT REPRODUCIBLE" in summary_line(completeness)) is (reproducible is False)


def test_files_are_checked_and_not_trusted(tmp_path: Path) -> None:
    file = EpisodeFile(tmp_path / "episodes.csv")
    for episode in (1, 2):
        file.append(ROW._replace(episode=episode, policy_id=episode))
    file.close()
    (tmp_path / "policies").mkdir()
    index = PolicyIndex(tmp_path / "policies")
    for policy_id, model in ((1, b"first"), (2, b"second"), (3, b"third")):
        index.add(policy_id, model)
        (tmp_path / "policies" / f"{policy_id}.onnx").write_bytes(model)
    files = {name: measure(tmp_path / name) for name in ("episodes.csv", "policies/index.csv")}
    completeness = assess(COMPLETE_ACCOUNT, tmp_path, acted=[3], files=files)
    assert completeness.complete
    assert (completeness.rows.present, completeness.policies, completeness.files) == (
        2,
        ItemCount(3, 3),
        ItemCount(2, 2),
    )

    (tmp_path / "policies" / "2.onnx").unlink()
    (tmp_path / "policies" / "3.onnx").write_bytes(b"Third")
    logs = {"log.mcap": FileChecksum(7, 1), "log-2.mcap": FileChecksum(7, 1)}
    (tmp_path / "log-2.mcap").write_bytes(b"half")
    completeness = assess(COMPLETE_ACCOUNT, tmp_path, acted=[3], files=files | logs, damaged=["meta.json", "log.mcap"])
    assert completeness.lost == (
        "policies: 1 of 3 that acted are not stored (2)",
        "policies: 1 of 3 that acted have changed (3)",
        "files: log.mcap is missing",
        "files: log-2.mcap is truncated to 4 of 7 bytes",
        "files: meta.json was missing or damaged when the run was resumed",
    )
    assert (completeness.policies, completeness.files) == (ItemCount(3, 1), ItemCount(5, 2))


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ("1t 1e 2t 3t 3e", ""),
        ("", ""),
        ("1t 3t", "train episode 3 after train episode 1"),
        ("1t 1e 1t 1e", "train episode 1 after eval episode 1"),
        ("1t 1e 1e", "eval episode 1 after eval episode 1"),
        ("1t 2e", "eval episode 2 after train episode 1"),
        ("2t", "train episode 2 after the heading"),
    ],
)
def test_rows_are_consecutive(episodes: str, message: str, tmp_path: Path) -> None:
    kinds = {"t": "train", "e": "eval"}
    rows = [ROW._replace(episode=int(name[0]), kind=kinds[name[1]]) for name in episodes.split()]
    assert sequence_gap(rows) == message
    folder_contents = FOLDER_CONTENTS._replace(sequence_gap=message)
    assert judge(COMPLETE_ACCOUNT, folder_contents).complete is not bool(message)


def test_without_the_replay_process_nothing_is_assumed_complete(tmp_path: Path) -> None:
    EpisodeFile(tmp_path / "episodes.csv").close()
    completeness = assess_without_account(6, tmp_path)
    assert not completeness.complete
    assert "rows: 6 of 6 are not in episodes.csv" in completeness.lost
