"""What the checksums of a run folder prove about its files, at moments at which a run may be killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from onrig.runtime.replay.evidence import Evidence, faults
from onrig.runtime.run_state.checksums import SUMMARY_FILE, FileList, measure


@pytest.mark.parametrize("is_final", [False, True])
def test_a_run_killed_between_its_replay_process_and_its_supervisor_has_lost_nothing(
    tmp_path: Path, is_final: bool
) -> None:
    """The replay process lists the files, then the supervisor adds an event and finalises the list."""
    for name in ("events.jsonl", SUMMARY_FILE):
        (tmp_path / name).write_text('{"kind": "policy"}\n')
    names = ("events.jsonl", SUMMARY_FILE) if is_final else ("events.jsonl",)
    file_list = FileList({name: measure(tmp_path / name) for name in names})
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"kind": "actuators"}\n')
    fault_messages = [str(fault) for fault in faults(tmp_path, Evidence(file_list))]
    assert fault_messages == (["events.jsonl has 22 bytes more than the run wrote"] if is_final else [])
    (tmp_path / "events.jsonl").write_text("{}\n")
    assert len(faults(tmp_path, Evidence(file_list))) == 1, "a list that is not final still shows what was cut"
