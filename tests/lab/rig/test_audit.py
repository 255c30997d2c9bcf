from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.storage import Storage
from tests.lab.rig.audit import Observed, differences, differing, findings, losses, policy_differences
from tests.lab.rig.folders import CONFIG, complete_folder, row
from tests.lab.rig.run_folder import Episode, FolderContents, LoggedRun, ReportedCounts

FINISHED = Observed(ExitCode.OK)


def log_of(contents: FolderContents) -> LoggedRun:
    assert contents.log is not None
    return contents.log


def without_rows(*numbers: int) -> FolderContents:
    contents = complete_folder()
    rows = [r for r in contents.rows if r.kind == "eval" or r.episode not in numbers]
    return contents._replace(
        rows=rows, checkpoint=ReportedCounts(offered=sum(r.steps for r in rows if r.kind == "train"), digest="d")
    )


def reported(contents: FolderContents) -> FolderContents:
    return contents._replace(summary={**contents.summary, "whole": {"complete": False, "lost": ["something"]}})


def test_a_complete_run_has_no_findings() -> None:
    assert losses(complete_folder(), CONFIG, FINISHED) == []
    assert findings(complete_folder(), CONFIG, FINISHED) == []


DAMAGED: list[tuple[FolderContents, str]] = [
    (without_rows(2, 3), "training episodes 2-3 of 4"),
    (without_rows(4), "training episodes 4 of 4"),
    (
        complete_folder()._replace(rows=[*complete_folder().rows, row(1)], checkpoint=ReportedCounts(offered=1000)),
        "episodes 1 are there twice",
    ),
    (
        complete_folder()._replace(rows=[r for r in complete_folder().rows if r != row(2, "eval")]),
        "evaluation episodes 2",
    ),
    (complete_folder()._replace(rows_problem="half a row"), "half a row"),
    (complete_folder()._replace(checkpoint=ReportedCounts(offered=700)), "700 experiences of 800"),
    (complete_folder()._replace(checkpoint=None), "no checkpoint"),
    (complete_folder()._replace(policies=frozenset({1, 3, 4})), "policies 2 acted"),
    (complete_folder()._replace(log=log_of(complete_folder())._replace(missing=3)), "lacks 3 records"),
    (complete_folder()._replace(log=log_of(complete_folder())._replace(problem="no mcap")), "cannot be read: no mcap"),
    (complete_folder()._replace(log=log_of(complete_folder())._replace(episodes={})), "records of episodes 1-4"),
    (
        complete_folder()._replace(
            log=log_of(complete_folder())._replace(
                episodes={**log_of(complete_folder()).episodes, (3, "train"): Episode(199, frozenset({3}))}
            )
        ),
        "199 steps of train episode 3, its row 200",
    ),
]


@pytest.mark.parametrize(("contents", "message"), DAMAGED, ids=[message for _, message in DAMAGED])
def test_only_unreported_losses_are_findings(contents: FolderContents, message: str) -> None:
    (line,) = [line for line in findings(contents, CONFIG, FINISHED) if message in line]
    assert line.startswith("lost without a report (exit 0)")
    assert findings(reported(contents), CONFIG, Observed(ExitCode.INCOMPLETE)) == []


def test_closed_episodes_have_rows_after_any_end() -> None:
    contents = complete_folder()._replace(summary={"exit_reason": "interrupted"})
    assert findings(contents, CONFIG, Observed(ExitCode.INTERRUPTED, closed=4)) == []
    (line,) = findings(contents, CONFIG, Observed(ExitCode.INTERRUPTED, closed=6))
    assert "training episodes 5-6 of 6" in line


def test_summary_and_exit_code_must_agree() -> None:
    contents = without_rows(3)
    assert findings(reported(contents), CONFIG, FINISHED) == [
        "summary.json says that data are missing, and the exit code is 0"
    ]
    found = findings(complete_folder(), CONFIG, Observed(ExitCode.INCOMPLETE))
    assert found == ["the exit code says that data are missing, and summary.json does not"]


def test_a_wrong_count_is_found() -> None:
    contents = complete_folder()._replace(summary={"whole": {"complete": True, "rows": {"expected": 7, "present": 7}}})
    assert findings(contents, CONFIG, FINISHED) == ["summary.json counts 7 rows, episodes.csv holds 6"]


def test_missing_data_are_named() -> None:
    contents = complete_folder()._replace(summary={"whole": {"complete": False, "lost": []}})
    (line,) = findings(contents, CONFIG, Observed(ExitCode.INCOMPLETE))
    assert line.endswith("not which")


def test_unfinished_files_are_found() -> None:
    contents = complete_folder()._replace(unfinished_files=["8.tmp", "9.tmp"])
    assert findings(contents, CONFIG, FINISHED) == ["2 files were left half-written: 8.tmp, 9.tmp"]


def test_only_a_run_that_ends_must_leave_a_summary() -> None:
    contents = complete_folder()._replace(summary={})
    assert findings(contents, CONFIG, FINISHED) == ["ended with 0 and left no summary.json"]
    assert findings(contents, CONFIG, Observed(-9)) == []


def test_without_a_log_the_other_accounts_are_compared() -> None:
    assert findings(complete_folder()._replace(log=None), CONFIG, FINISHED) == []


def test_a_difference_from_an_undisturbed_run_is_located() -> None:
    other = complete_folder()._replace(checkpoint=ReportedCounts(offered=797, digest="e"))
    other.rows[3] = row(3, steps=197)
    assert differences(other, complete_folder()) == [
        "episodes.csv differs: from row 4 on",
        "the memory differs: 797 experiences offered, 800 when left alone",
    ]
    assert differences(without_rows(4)._replace(rows=complete_folder().rows[:4]), complete_folder()) == [
        "episodes.csv differs: 4 of 6"
    ]
    assert differences(complete_folder(), complete_folder()) == []
    assert policy_differences({1: b"a", 2: b"b"}, {1: b"a", 2: b"c", 3: b"d"}) == ["policies differ: 2-3"]
    assert policy_differences({1: b"a"}, {1: b"a"}) == []


CAPACITY = 16


def storages(writes: int, seen: int, *, cyclic: bool, seed: int) -> tuple[Storage, Storage]:
    """Return a memory after ``writes`` writes, and a mirror of it that stopped at ``seen``."""
    rng = np.random.default_rng(seed)
    memory, mirror = (Storage(CAPACITY, Layout(2, 1), cyclic=cyclic) for _ in range(2))
    for n in range(writes):
        slot = n % CAPACITY if cyclic or n < CAPACITY else int(rng.integers(CAPACITY))
        memory.insert(slot, rng.normal(size=2), rng.normal(size=1), float(rng.normal()), rng.normal(size=2), 0, 1, 0.5)
        if n + 1 == seen:
            mirror.write_rows(memory.rows(memory.changed_since(0)))
    return memory, mirror


@given(st.integers(1, 60), st.integers(0, 60), st.booleans(), st.integers(0, 99))
@settings(max_examples=60)
def test_a_mirror_and_a_memory_agree_at_any_progress(writes: int, seen: int, cyclic: bool, seed: int) -> None:
    memory, mirror = storages(writes, min(seen, writes), cyclic=cyclic, seed=seed)
    assert differing(mirror, memory) == 0
    assert differing(memory, mirror) == 0


@given(st.integers(0, CAPACITY - 1), st.integers(0, 6), st.integers(0, 31), st.booleans())
@settings(max_examples=40)
def test_a_single_bit_is_found(slot: int, word: int, bit: int, cyclic: bool) -> None:
    memory, mirror = storages(40, 40, cyclic=cyclic, seed=1)
    mirror.words[slot, word % mirror.words.shape[1]] ^= np.uint32(1 << bit)
    assert differing(mirror, memory) == 1


@pytest.mark.parametrize("cyclic", [True, False])
def test_a_write_to_a_wrong_slot_is_found(cyclic: bool) -> None:
    memory, mirror = storages(CAPACITY, CAPACITY, cyclic=cyclic, seed=2)
    mirror.words[[0, 1]] = mirror.words[[1, 0]]
    assert differing(mirror, memory) == 2


def test_slots_rewritten_in_only_one_copy_are_ignored() -> None:
    memory, mirror = storages(CAPACITY + 5, CAPACITY, cyclic=True, seed=3)
    assert (mirror.words != memory.words).any(axis=1).sum() == 5
    assert differing(mirror, memory) == 0
