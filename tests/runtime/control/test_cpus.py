"""Which CPU suits the loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.control.cpus import MATTERS_HZ, Interrupt, quietest, rates_hz, read_interrupts, uptime_s

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


def test_the_table_is_read_by_cpu_and_without_the_cpus_own_lines(tmp_path: Path) -> None:
    assert read_interrupts(machine(tmp_path)) == [
        Interrupt(24, "ACPI:Ged", {0: 1, 1: 0, 3: 7}, set()),
        Interrupt(36, "virtio1-req.0", {0: 0, 1: 3000, 3: 520000}, {3}),
        Interrupt(50, "", {0: 0, 1: 0, 3: 12000}, {0, 3}),
    ]


def test_a_rate_counts_where_a_device_interrupts_from_now_on(tmp_path: Path) -> None:
    rates = rates_hz(read_interrupts(machine(tmp_path)), uptime_s(tmp_path))
    assert rates == {0: 0.0, 3: pytest.approx(52.0 + 1.2)}


@pytest.mark.parametrize("table", ["", "nonsense\n 1: 2\n", " CPU0 CPU1\n 7: x 3 thing\n 8: 4\n : 1 2\n"])
def test_what_cannot_be_read_is_left_out(table: str, tmp_path: Path) -> None:
    assert read_interrupts(machine(tmp_path, **{"proc/interrupts": table})) == []


def test_without_a_table_and_without_a_time_there_are_no_rates(tmp_path: Path) -> None:
    assert read_interrupts(tmp_path) == []
    assert uptime_s(tmp_path) == 0.0
    assert uptime_s(machine(tmp_path, **{"proc/uptime": "long"})) == 0.0
    assert rates_hz([Interrupt(1, "disk", {0: 9}, {0})], 0.0) == {}


def test_the_last_cpu_is_taken_unless_another_is_interrupted_less() -> None:
    assert quietest({0, 1, 2, 3}, {}) == 3
    assert quietest({0, 1, 2, 3}, {0: 100.0}) == 3
    assert quietest({0, 1}, {0: 0.9, 1: 34.4}) == 0
    assert quietest({0, 1}, {0: 0.9, 1: 1.2}) == 1, "that little does not matter"
    assert quietest({4}, {}) is None


@given(
    st.sets(st.integers(0, 63), min_size=2),
    st.dictionaries(st.integers(0, 63), st.floats(0, 1e5)),
)
def test_the_choice_is_one_of_the_cpus_and_none_is_much_quieter(cpus: set[int], rates: dict[int, float]) -> None:
    chosen = quietest(cpus, rates)
    assert chosen in cpus
    assert all(rates.get(chosen, 0.0) < rates.get(cpu, 0.0) + MATTERS_HZ for cpu in cpus)
