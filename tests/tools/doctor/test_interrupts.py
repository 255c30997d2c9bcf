"""Devices that interrupt the loop's CPU are named, with the command that moves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from onrig.runtime.control.realtime import Interrupt
from onrig.tools.doctor.cpus import check_interrupts, examine_interrupts
from onrig.tools.doctor.finding import Needs
from onrig.tools.machine import Machine
from tests.tools.doctor.boards import LOCKSTEP_NEEDS, PI_5, make_board, verdicts
from tests.tools.doctor.boards import RIG as ANY_CPU

RIG = ANY_CPU._replace(cpu=3)
TABLE = """\
           CPU0       CPU1       CPU3
 24:          1          0          7   IO-APIC   5-edge      ACPI:Ged
 36:          0       3000     520000   PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 41:       9000          0          0   PCI-MSIX-0000:00:04.0   1-edge      virtio3-rx
 50:          0          0      12000
LOC:    8281810    9545505    9545505   Local timer interrupts
ERR:          0
"""


def machine(root: Path, served_by: str = "3", **extra_files: str) -> Machine:
    files = {
        **PI_5,
        "proc/interrupts": TABLE,
        "proc/uptime": "10000.5 20000.1\n",
        "sys/devices/system/cpu/online": "0-3\n",
        "proc/self/status": "Cpus_allowed_list:\t0-3\n",
        "proc/irq/36/effective_affinity_list": f"{served_by}\n",
        "proc/irq/36/smp_affinity_list": "0-3\n",
        "proc/irq/50/smp_affinity_list": "0-3\n",
        "proc/irq/24/effective_affinity_list": "3\n",
        "proc/irq/41/effective_affinity_list": "0\n",
    }
    return make_board(root, {**files, **extra_files})


def test_frequent_interrupts_on_the_loops_cpu_are_named_most_frequent_first(tmp_path: Path) -> None:
    (check,) = examine_interrupts(machine(tmp_path), RIG)
    assert verdicts([check]) == {"interrupts": "WARN"}
    assert "CPU 3: virtio1-req.0 (36): 52/s, a device (50): 1.2/s" in check.finding
    assert "24" not in check.finding
    assert check.remedy.startswith("for n in 36 50; do echo 0-2 | sudo tee /proc/irq/$n/smp_affinity_list; done")
    assert "irqaffinity=0-2/' /boot/firmware/cmdline.txt" in check.remedy


def test_an_interrupt_that_has_been_moved_away_passes_even_if_frequent_before(tmp_path: Path) -> None:
    moved_machine = machine(tmp_path, served_by="0", **{"proc/irq/50/smp_affinity_list": "0-2\n"})
    assert verdicts(examine_interrupts(moved_machine, RIG)) == {"interrupts": "PASS"}


@pytest.mark.parametrize(
    ("needs", "changed_files"),
    [
        (LOCKSTEP_NEEDS, {}),
        (RIG._replace(cpu=None), {}),
        (RIG, {"sys/devices/system/cpu/online": "3\n"}),
        (RIG, {"proc/interrupts": ""}),
        (RIG, {"proc/interrupts": "nonsense\n 1: 2\n"}),
        (RIG, {"proc/uptime": ""}),
        (RIG, {"proc/uptime": "long"}),
    ],
)
def test_nothing_is_reported_if_nothing_is_late_or_can_be_done_or_is_known(
    needs: Needs, changed_files: dict[str, str], tmp_path: Path
) -> None:
    assert list(examine_interrupts(machine(tmp_path, **changed_files), needs)) == []


def test_a_loop_free_to_choose_has_already_taken_another_cpu(tmp_path: Path) -> None:
    (check,) = examine_interrupts(machine(tmp_path), ANY_CPU)
    assert "no device interrupts CPU 2" in check.finding


def test_the_finding_shortens_a_long_list_but_the_remedy_has_all(tmp_path: Path) -> None:
    interrupts = [Interrupt(n, f"nvme0q{n}", {3: 1000}, {3}) for n in range(1, 7)]
    (check,) = check_interrupts(interrupts, 10.0, 3, {0, 1, 2}, Machine(tmp_path))
    assert "and 2 more" in check.finding
    assert "for n in 1 2 3 4 5 6;" in check.remedy
