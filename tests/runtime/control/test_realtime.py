from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from onrig.runtime.control import realtime
from onrig.runtime.control.cpus import Interrupt
from onrig.runtime.control.realtime import LOOP_CPU, PARENT, loop_cpu, settle_loop_cpu, stay_awake
from onrig.runtime.control.settings import RealTime

CODE = """
import os
from onrig.runtime.config.schema import RealTime
from onrig.runtime.control.realtime import leave_cpu
before = os.sched_getaffinity(0)
leave_cpu(RealTime(cpu={cpu}))
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


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no CPU to give away")
def test_by_default_the_loop_has_a_cpu_to_itself_and_all_agree_on_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOOP_CPU, raising=False)
    settle_loop_cpu()
    mine = loop_cpu(RealTime())
    monkeypatch.setattr(realtime, "read_interrupts", None)  # nobody asks again
    assert mine in os.sched_getaffinity(0)
    assert loop_cpu(RealTime()) == mine
    assert affinity("'auto'")[1] == [c for c in sorted(os.sched_getaffinity(0)) if c != mine]


@pytest.mark.parametrize("settled", ["", "last"])
def test_without_a_word_on_it_each_looks_for_itself(settled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_CPU, settled)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 5})
    interrupts = [Interrupt(7, "disk", {5: 1000}, {5}), Interrupt(8, "network", {0: 500}, {0})]
    monkeypatch.setattr(realtime, "read_interrupts", lambda: interrupts)
    monkeypatch.setattr(realtime, "uptime_s", lambda: 10.0)
    assert loop_cpu(RealTime()) == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {5})
    assert loop_cpu(RealTime()) is None


@pytest.mark.parametrize("cpu", ["None", "100000"])
def test_without_a_cpu_to_leave_nothing_changes(cpu: str) -> None:
    before, after = affinity(cpu)
    assert after == before


def test_the_request_to_stay_awake_is_for_no_latency_and_is_held(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    descriptor = stay_awake(device)
    assert descriptor is not None
    os.fstat(descriptor)  # closing it would withdraw the request
    os.close(descriptor)
    assert struct.unpack("=i", device.read_bytes()) == (0,)


def test_a_machine_without_sleep_states_is_no_problem(tmp_path: Path) -> None:
    assert stay_awake(tmp_path / "missing") is None


@pytest.mark.parametrize(("parent", "code"), [("mine", 0), ("1", -signal.SIGTERM), (None, 0)])
def test_a_process_whose_parent_died_before_it_could_listen_for_that_ends(parent: str | None, code: int) -> None:
    parent = str(os.getpid()) if parent == "mine" else parent
    program = "from onrig.runtime.control.realtime import die_with_parent; die_with_parent()"
    environment = {k: v for k, v in os.environ.items() if k != PARENT} | ({PARENT: parent} if parent else {})
    assert subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False).returncode == code
