from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.control.realtime import parse_cpu_list
from onrig.tools.machine import Machine, cpus_as_text, kernel_argument_command
from tests.tools.doctor.boards import PI_5, make_board


@given(st.sets(st.integers(0, 300), max_size=40))
def test_cpu_lists_are_read_back_as_written(cpus: set[int]) -> None:
    assert parse_cpu_list(cpus_as_text(cpus)) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"), [("", set()), (None, set()), ("3", {3}), ("0-2,5", {0, 1, 2, 5}), ("x,1", {1})]
)
def test_lists_of_cpus_are_read_as_the_kernel_writes_them(text: str | None, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_missing_files_are_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.text("proc/version") is None
    assert machine.number("sys/kernel/realtime") is None
    assert machine.link("dev/serial") is None
    assert machine.glob("dev/ttyUSB*") == []
    assert machine.board() == ""
    assert machine.describe()["board"] == ""


def test_a_file_without_a_number_is_none(tmp_path: Path) -> None:
    assert make_board(tmp_path, {"sys/kernel/realtime": "yes"}).number("sys/kernel/realtime") is None


def test_kernel_arguments_are_edited_where_this_system_keeps_them(tmp_path: Path) -> None:
    pi = make_board(tmp_path / "pi", PI_5)
    assert kernel_argument_command(pi, "isolcpus=3").startswith(
        "sudo sed -i '1s/$/ isolcpus=3/' /boot/firmware/cmdline.txt"
    )
    grub_machine = make_board(tmp_path / "pc", {"etc/default/grub": ""})
    assert "update-grub" in kernel_argument_command(grub_machine, "isolcpus=3")
    other = make_board(tmp_path / "other", {"etc/hostname": "x"})
    assert "boot loader" in kernel_argument_command(other, "isolcpus=3")


def test_the_head_of_a_report_names_board_and_system(tmp_path: Path) -> None:
    pi = make_board(
        tmp_path, {**PI_5, "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12"\n', "proc/sys/kernel/osrelease": "6.6"}
    )
    facts = pi.describe()
    assert (facts["board"], facts["system"], facts["kernel"]) == (
        "Raspberry Pi 5 Model B Rev 1.0",
        "Debian GNU/Linux 12",
        "6.6",
    )


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ({"proc/self/cgroup": "0::/docker/1\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/system.slice/onrig.service\n",
                "sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/system.slice/onrig.service/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n2:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "25000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            0.25,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/outside/it\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "garbage"}, None),
    ],
)
def test_a_quota_of_the_control_group_is_read_in_both_versions(
    tmp_path: Path, files: dict[str, str], cpus: float | None
) -> None:
    machine = make_board(tmp_path, files)
    assert machine.cpu_quota() == cpus
    assert machine.usable_cpu_count() <= len(os.sched_getaffinity(0))
    assert cpus is None or machine.usable_cpu_count() <= cpus
