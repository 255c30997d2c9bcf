from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.control import realtime
from onrig.runtime.control.realtime import (
    LOOP_CPU_VARIABLE,
    MIN_COUNTED_RATE_HZ,
    PARENT_VARIABLE,
    Interrupt,
    collapse_pages,
    heap_spans,
    loop_cpu,
    quietest_cpu,
    rates_hz,
    read_interrupts,
    resolve_loop_cpu,
    stay_awake,
    uptime_s,
)
from onrig.runtime.process_settings import RealTime

CODE = """
import os
from onrig.runtime.process_settings import RealTime
from onrig.runtime.control.realtime import leave_cpu
before = os.sched_getaffinity(0)
leave_cpu(RealTime(cpu={cpu}))
print(sorted(before), sorted(os.sched_getaffinity(0)), sep=";")
"""


def affinity_before_and_after(cpu: str) -> tuple[list[int], list[int]]:
    """CPUs of a process before and after it has given one up."""
    process = subprocess.run(
        [sys.executable, "-c", CODE.format(cpu=cpu)], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = ([int(c) for c in part.strip("[]\n").split(",")] for part in process.stdout.split(";"))
    return before, after


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other CPU to go to")
def test_a_process_avoids_the_cpu_of_the_loop() -> None:
    loop_cpu_id = min(os.sched_getaffinity(0))
    before, after = affinity_before_and_after(str(loop_cpu_id))
    assert after == [c for c in before if c != loop_cpu_id]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no CPU to give away")
def test_by_default_the_loop_has_its_own_cpu_and_all_processes_agree_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOOP_CPU_VARIABLE, raising=False)
    resolve_loop_cpu()
    loop_cpu_id = loop_cpu(RealTime())
    monkeypatch.setattr(realtime, "read_interrupts", None)  # it is not asked again
    assert loop_cpu_id in os.sched_getaffinity(0)
    assert loop_cpu(RealTime()) == loop_cpu_id
    assert affinity_before_and_after("'auto'")[1] == [c for c in sorted(os.sched_getaffinity(0)) if c != loop_cpu_id]


@pytest.mark.parametrize("chosen_by", ["", "last"])
def test_without_a_valid_setting_each_process_determines_the_cpu_itself(
    chosen_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOOP_CPU_VARIABLE, chosen_by)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 5})
    interrupts = [Interrupt(7, "disk", {5: 1000}, {5}), Interrupt(8, "network", {0: 500}, {0})]
    monkeypatch.setattr(realtime, "read_interrupts", lambda: interrupts)
    monkeypatch.setattr(realtime, "uptime_s", lambda: 10.0)
    assert loop_cpu(RealTime()) == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {5})
    assert loop_cpu(RealTime()) is None


@pytest.mark.parametrize("cpu", ["None", "100000"])
def test_if_no_cpu_can_be_spared_nothing_changes(cpu: str) -> None:
    before, after = affinity_before_and_after(cpu)
    assert after == before


def test_the_request_to_stay_awake_demands_zero_latency_and_is_held(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    fd = stay_awake(device)
    assert fd is not None
    os.fstat(fd)  # closing it would withdraw the request
    os.close(fd)
    assert struct.unpack("=i", device.read_bytes()) == (0,)


def test_a_machine_without_sleep_states_is_supported(tmp_path: Path) -> None:
    assert stay_awake(tmp_path / "missing") is None


@pytest.mark.parametrize(("parent", "code"), [("mine", 0), ("1", -signal.SIGTERM), (None, 0)])
def test_a_process_whose_parent_died_before_it_could_detect_it_ends(parent: str | None, code: int) -> None:
    parent = str(os.getpid()) if parent == "mine" else parent
    program = "from onrig.runtime.control.realtime import die_with_parent; die_with_parent()"
    environment = {k: v for k, v in os.environ.items() if k != PARENT_VARIABLE} | (
        {PARENT_VARIABLE: parent} if parent else {}
    )
    assert subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False).returncode == code


TABLE = """\
           CPU0       CPU1       CPU3
 24:          1          0          7   IO-APIC   5-edge      ACPI:Ged
 36:          0       3000     520000   PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 50:          0          0      12000
LOC:    8281810    9545505    9545505   Local timer interrupts
ERR:          0
"""
FILES = {
    "proc/interrupts": TABLE,
    "proc/uptime": "10000.0 20000.1\n",
    "proc/irq/36/effective_affinity_list": "3\n",
    "proc/irq/36/smp_affinity_list": "0-3\n",
    "proc/irq/50/smp_affinity_list": "0,3\n",
}


def machine(root: Path, **changes: str) -> Path:
    for path, text in {**FILES, **changes}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_the_table_is_read_by_cpu_without_per_cpu_lines(tmp_path: Path) -> None:
    assert read_interrupts(machine(tmp_path)) == [
        Interrupt(24, "ACPI:Ged", {0: 1, 1: 0, 3: 7}, set()),
        Interrupt(36, "virtio1-req.0", {0: 0, 1: 3000, 3: 520000}, {3}),
        Interrupt(50, "", {0: 0, 1: 0, 3: 12000}, {0, 3}),
    ]


def test_a_rate_is_attributed_to_the_cpu_that_a_device_interrupts_now(tmp_path: Path) -> None:
    rates = rates_hz(read_interrupts(machine(tmp_path)), uptime_s(tmp_path))
    assert rates == {0: 0.0, 3: pytest.approx(52.0 + 1.2)}


@pytest.mark.parametrize("table", ["", "nonsense\n 1: 2\n", " CPU0 CPU1\n 7: x 3 thing\n 8: 4\n : 1 2\n"])
def test_an_unreadable_table_gives_no_interrupts(table: str, tmp_path: Path) -> None:
    assert read_interrupts(machine(tmp_path, **{"proc/interrupts": table})) == []


def test_without_a_table_and_without_a_time_there_are_no_rates(tmp_path: Path) -> None:
    assert read_interrupts(tmp_path) == []
    assert uptime_s(tmp_path) == 0.0
    assert uptime_s(machine(tmp_path, **{"proc/uptime": "long"})) == 0.0
    assert rates_hz([Interrupt(1, "disk", {0: 9}, {0})], 0.0) == {}


def test_the_last_cpu_is_chosen_unless_another_has_fewer_interrupts() -> None:
    assert quietest_cpu({0, 1, 2, 3}, {}) == 3
    assert quietest_cpu({0, 1, 2, 3}, {0: 100.0}) == 3
    assert quietest_cpu({0, 1}, {0: 0.9, 1: 34.4}) == 0
    assert quietest_cpu({0, 1}, {0: 0.9, 1: 1.2}) == 1, "that little does not matter"
    assert quietest_cpu({4}, {}) is None


@given(
    st.sets(st.integers(0, 63), min_size=2),
    st.dictionaries(st.integers(0, 63), st.floats(0, 1e5)),
)
def test_the_choice_is_one_of_the_cpus_and_none_is_much_quieter(cpus: set[int], rates: dict[int, float]) -> None:
    quietest = quietest_cpu(cpus, rates)
    assert quietest in cpus
    assert all(rates.get(quietest, 0.0) < rates.get(cpu, 0.0) + MIN_COUNTED_RATE_HZ for cpu in cpus)


MAPS = """\
00400000-00a00000 r-xp 00000000 fe:00 1234 /usr/bin/python3.11
01234000-01a00000 rw-p 00000000 00:00 0    [heap]
7f0000100000-7f0000500000 rw-p 00000000 00:00 0
7f0000600000-7f00006ff000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-s 00000000 00:18 77 /dev/shm/ring
7f0002000000-7f0002400000 rw-p 00000000 fe:00 99 /usr/lib/lib.so
7ffd00000000-7ffd00400000 rw-p 00000000 00:00 0    [stack]
"""


def test_huge_pages_are_for_private_anonymous_memory_and_lie_completely_within_it() -> None:
    assert heap_spans(MAPS) == [(0x1400000, 0x1A00000), (0x7F0000200000, 0x7F0000400000)]


def test_the_contents_of_collapsed_pages_are_unchanged() -> None:
    values = list(range(1_000_000))
    collapse_pages()
    assert values == list(range(1_000_000))
