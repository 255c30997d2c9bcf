from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.doctor.finding import Needs
from onrig.tools.doctor.kernel import KernelFacts, check_kernel, read_kernel
from onrig.tools.doctor.wheels import check_python
from tests.tools.doctor.boards import GENERAL_NEEDS, LOCKSTEP_NEEDS, RIG, make_board, verdicts

STOCK_KERNEL = KernelFacts("Linux", "6.6.31", "#1 SMP PREEMPT Debian", None, "aarch64")


@pytest.mark.parametrize(
    "facts", [STOCK_KERNEL._replace(version="#1 SMP PREEMPT_RT Debian"), STOCK_KERNEL._replace(realtime_flag=1)]
)
def test_a_realtime_kernel_is_recognised_by_its_name_or_its_flag(facts: KernelFacts) -> None:
    assert verdicts(check_kernel(facts, RIG)) == {"kernel": "PASS", "preempt-rt": "PASS"}


@pytest.mark.parametrize("needs", [RIG, GENERAL_NEEDS])
def test_an_ordinary_kernel_is_a_warning_with_the_figures(needs: Needs) -> None:
    _, check = check_kernel(STOCK_KERNEL, needs)
    assert check.verdict.value == "WARN"
    assert "37 ms" in check.finding
    assert "docs/real-time.md" in check.remedy


def test_in_lockstep_an_ordinary_kernel_is_as_good() -> None:
    assert verdicts(check_kernel(STOCK_KERNEL, LOCKSTEP_NEEDS))["preempt-rt"] == "PASS"


def test_a_32_bit_system_fails() -> None:
    assert verdicts(check_kernel(STOCK_KERNEL._replace(architecture="armv7l"), GENERAL_NEEDS))["kernel"] == "FAIL"


def test_a_system_other_than_linux_is_reported() -> None:
    assert verdicts(check_kernel(STOCK_KERNEL._replace(system="Darwin"), GENERAL_NEEDS)) == {"kernel": "WARN"}


def test_the_facts_are_read_from_proc_and_sys(tmp_path: Path) -> None:
    machine = make_board(
        tmp_path,
        {
            "proc/sys/kernel/ostype": "Linux\n",
            "proc/sys/kernel/osrelease": "6.12.25+rpt-rpi-v8-rt\n",
            "proc/sys/kernel/version": "#1 SMP PREEMPT_RT Debian\n",
            "sys/kernel/realtime": "1\n",
        },
    )
    facts = read_kernel(machine)
    assert facts[:4] == ("Linux", "6.12.25+rpt-rpi-v8-rt", "#1 SMP PREEMPT_RT Debian", 1)


@pytest.mark.parametrize(
    ("version", "has_gil", "verdict"),
    [
        ((3, 10), True, "FAIL"),
        ((3, 11), True, "PASS"),
        ((3, 13), True, "PASS"),
        ((3, 13), False, "WARN"),
        ((4, 0), True, "WARN"),
    ],
)
def test_only_tested_python_versions_pass(version: tuple[int, int], has_gil: bool, verdict: str) -> None:
    assert verdicts(check_python(version, "x", has_gil=has_gil, in_virtual_environment=True)) == {"python": verdict}
