from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import os
from runtime.control.realtime import leave_cpu
before = os.sched_getaffinity(0)
leave_cpu({cpu})
print(sorted(before), sorted(os.sched_getaffinity(0)), sep=";")
"""


def affinity(cpu: str) -> tuple[list[int], list[int]]:
    """CPUs of a process before and after it has left one."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(cpu=cpu)], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = ([int(c) for c in part.strip("[]\n").split(",")] for part in done.stdout.split(";"))
    return before, after


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other CPU to go to")
def test_a_process_leaves_the_cpu_of_the_loop() -> None:
    mine = min(os.sched_getaffinity(0))
    before, after = affinity(str(mine))
    assert after == [c for c in before if c != mine]


@pytest.mark.parametrize("cpu", ["None", "100000"])
def test_without_a_cpu_to_leave_nothing_changes(cpu: str) -> None:
    before, after = affinity(cpu)
    assert after == before
