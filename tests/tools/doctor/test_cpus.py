from __future__ import annotations

from pathlib import Path

import pytest

from onrig.runtime.control import realtime
from onrig.runtime.process_settings import RealTime
from onrig.tools.doctor.cpus import CpuFacts, check_cpus, check_quota, examine_cpus, loop_cpu, read_cpus
from onrig.tools.doctor.finding import Needs
from onrig.tools.machine import Machine
from tests.tools.doctor.boards import LOCKSTEP_NEEDS, PI_5, RIG, make_board, verdicts

FOUR_CPUS = CpuFacts({0, 1, 2, 3}, {0, 1, 2, 3}, None, set(), set())
ISOLATED_CPU = FOUR_CPUS._replace(allowed_cpus={0, 1, 2}, isolated_cpus={3}, nohz_full={3})


def pi(root: Path) -> Machine:
    return make_board(
        root,
        {
            **PI_5,
            "sys/devices/system/cpu/online": "0-3\n",
            "sys/devices/system/cpu/isolated": "3\n",
            "sys/devices/system/cpu/nohz_full": "3\n",
            "proc/self/status": "Cpus_allowed_list:\t0-2\n",
            "proc/interrupts": "      CPU0 CPU1 CPU2 CPU3\n 9:  0  50  0  0  uart\n",
            "proc/irq/9/smp_affinity_list": "1\n",
            "proc/uptime": "100.0 300.0\n",
            "proc/self/cgroup": "0::/system.slice/onrig.service\n",
            "sys/fs/cgroup/system.slice/onrig.service/cpuset.cpus.effective": "0-3\n",
        },
    )


@pytest.mark.parametrize("setting", ["auto", None, 2])
def test_the_cpu_named_is_the_one_the_loop_takes(setting: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(realtime.LOOP_CPU_VARIABLE, raising=False)
    monkeypatch.setattr(realtime, "read_interrupts", list)
    for allowed_cpus in ({0, 1, 2}, {5}):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, allowed_cpus=allowed_cpus: allowed_cpus)
        settings = RealTime(cpu=setting)  # type: ignore[arg-type]
        needs = RIG._replace(cpu=setting)  # type: ignore[arg-type]
        assert loop_cpu(FOUR_CPUS._replace(allowed_cpus=allowed_cpus), needs) == realtime.loop_cpu(settings)


def test_auto_never_takes_an_isolated_cpu_and_the_remedy_says_what_to_write(tmp_path: Path) -> None:
    (check,) = check_cpus(ISOLATED_CPU, RIG, Machine(tmp_path))
    assert check.verdict.value == "WARN"
    assert "realtime: {cpu: 3}" in check.remedy


def test_auto_is_the_cpu_with_the_fewest_interrupts() -> None:
    assert loop_cpu(FOUR_CPUS._replace(interrupt_rates_hz={0: 90.0, 3: 40.0}), RIG) == 2
    assert loop_cpu(FOUR_CPUS._replace(interrupt_rates_hz={0: 90.0, 1: 1.5, 2: 2.0, 3: 40.0}), RIG) == 2


def test_a_configured_isolated_cpu_passes(tmp_path: Path) -> None:
    (check,) = examine_cpus(pi(tmp_path), RIG._replace(cpu=3))
    assert check.verdict.value == "PASS"
    assert "nohz_full" in check.finding


@pytest.mark.parametrize(
    ("facts", "needs", "verdict"),
    [
        (FOUR_CPUS, RIG, "WARN"),
        (FOUR_CPUS, RIG._replace(cpu=7), "FAIL"),
        (FOUR_CPUS, RIG._replace(cpu=None), "WARN"),
        (FOUR_CPUS, LOCKSTEP_NEEDS._replace(cpu=7), "PASS"),
        (FOUR_CPUS._replace(online_cpus={0, 1}, allowed_cpus={0, 1}), RIG, "PASS"),
        (FOUR_CPUS._replace(online_cpus={0}, allowed_cpus={0}), RIG, "WARN"),
        (FOUR_CPUS._replace(cpuset={0, 1}), RIG._replace(cpu=3), "FAIL"),
        (ISOLATED_CPU._replace(cpuset={0, 1, 2, 3}), RIG._replace(cpu=3), "PASS"),
    ],
)
def test_the_loops_cpu_is_judged(facts: CpuFacts, needs: Needs, verdict: str, tmp_path: Path) -> None:
    assert verdicts(check_cpus(facts, needs, Machine(tmp_path))) == {"cpu": verdict}


def test_on_a_raspberry_pi_the_remedy_edits_its_command_line(tmp_path: Path) -> None:
    (check,) = check_cpus(FOUR_CPUS, RIG, make_board(tmp_path, PI_5))
    assert "isolcpus=3 nohz_full=3 rcu_nocbs=3/' /boot/firmware/cmdline.txt" in check.remedy


def test_the_facts_are_read_from_proc_and_sys(tmp_path: Path) -> None:
    facts = read_cpus(pi(tmp_path))
    assert facts == CpuFacts({0, 1, 2, 3}, {0, 1, 2}, {0, 1, 2, 3}, {3}, {3}, {1: 0.5})


@pytest.mark.parametrize(
    ("quota", "needs", "verdict"),
    [
        (None, RIG, None),
        (4.0, RIG, None),
        (0.5, RIG, "FAIL"),
        (3.0, RIG, "FAIL"),
        (0.5, LOCKSTEP_NEEDS, "WARN"),
    ],
)
def test_a_quota_stops_the_loop_and_slows_a_twin(quota: float | None, needs: Needs, verdict: str | None) -> None:
    assert verdicts(check_quota(FOUR_CPUS._replace(quota=quota), needs)).get("cpu-quota") == verdict


def test_a_quota_is_read_from_the_control_group(tmp_path: Path) -> None:
    machine = pi(tmp_path)
    (tmp_path / "sys/fs/cgroup/system.slice/onrig.service/cpu.max").write_text("50000 100000")
    assert read_cpus(machine).quota == 0.5
