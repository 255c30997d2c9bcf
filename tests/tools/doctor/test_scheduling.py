from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.doctor import kernel
from onrig.tools.doctor.finding import Needs
from onrig.tools.doctor.kernel import SchedulingFacts, check_scheduling, read_scheduling, try_scheduling
from tests.tools.doctor.boards import GENERAL_NEEDS, LOCKSTEP_NEEDS, RIG, checks_by_name, make_board, verdicts

GRANTED = SchedulingFacts("", "", 99, -1, False, 950000, 1000000)


def test_granted_scheduling_passes() -> None:
    assert set(verdicts(check_scheduling(GRANTED, RIG, "pi")).values()) == {"PASS"}


@pytest.mark.parametrize(("needs", "verdict"), [(RIG, "FAIL"), (GENERAL_NEEDS, "WARN"), (LOCKSTEP_NEEDS, "WARN")])
def test_a_refused_class_fails_only_if_a_rig_is_to_run(needs: Needs, verdict: str) -> None:
    facts = GRANTED._replace(fifo_error="Operation not permitted", rtprio=0)
    check = checks_by_name(check_scheduling(facts, needs, "pi"))["sched-fifo"]
    assert check.verdict.value == verdict
    assert "echo 'pi - rtprio 99' | sudo tee -a /etc/security/limits.d/onrig.conf" in check.remedy


def test_a_refusal_despite_the_limit_points_to_the_control_group() -> None:
    facts = GRANTED._replace(fifo_error="Operation not permitted", rtprio=99)
    assert "control group" in checks_by_name(check_scheduling(facts, RIG, "pi"))["sched-fifo"].remedy


def test_a_kernel_without_time_for_realtime_processes_is_named() -> None:
    facts = GRANTED._replace(fifo_error="Operation not permitted", throttle_runtime_us=0)
    assert "sched_rt_runtime_us" in checks_by_name(check_scheduling(facts, RIG, "pi"))["sched-fifo"].remedy


def test_a_run_without_realtime_priority_needs_no_permission() -> None:
    facts = SchedulingFacts("no", "no", 0, 8 << 20, False, 950000, 1000000)
    needs = RIG._replace(priority=0, lock_memory=False)
    assert set(verdicts(check_scheduling(facts, needs, "pi")).values()) == {"PASS"}


@pytest.mark.parametrize(("runtime", "verdict"), [(None, "PASS"), (950000, "PASS"), (-1, "WARN"), (100000, "FAIL")])
def test_throttling_of_realtime_processes_is_judged(runtime: int | None, verdict: str) -> None:
    assert (
        verdicts(check_scheduling(GRANTED._replace(throttle_runtime_us=runtime), RIG, "pi"))["rt-throttling"] == verdict
    )


@pytest.mark.parametrize(
    ("limit", "is_capable", "error", "verdict"),
    [
        (-1, False, "", "PASS"),
        (1 << 30, False, "", "PASS"),
        (8 << 20, True, "", "PASS"),
        (8 << 20, False, "", "FAIL"),  # locking succeeds, and later allocations fail
        (-1, False, "Cannot allocate memory", "FAIL"),
        (8 << 20, True, "Operation not permitted", "FAIL"),
    ],
)
def test_locked_memory_needs_room_for_the_complete_loop(limit: int, is_capable: bool, error: str, verdict: str) -> None:
    facts = GRANTED._replace(memlock_bytes=limit, may_lock_all=is_capable, lock_error=error)
    check = checks_by_name(check_scheduling(facts, RIG, "pi"))["memory-lock"]
    assert check.verdict.value == verdict
    assert verdict == "PASS" or "pi - memlock unlimited" in check.remedy


def test_the_limits_are_those_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "try_scheduling", lambda priority: (str(priority), "b"))
    machine = make_board(
        tmp_path,
        {
            "proc/self/limits": (
                "Limit                     Soft Limit           Hard Limit           Units     \n"
                "Max locked memory         8388608              unlimited            bytes     \n"
                "Max realtime priority     95                   99                   \n"
            ),
            "proc/self/status": "Name:\tx\nCapEff:\t0000000000004000\n",
            "proc/sys/kernel/sched_rt_runtime_us": "-1\n",
            "proc/sys/kernel/sched_rt_period_us": "1000000\n",
        },
    )
    assert read_scheduling(machine, RIG) == SchedulingFacts("50", "b", 95, 8 << 20, True, -1, 1000000)


def test_no_limit_is_read_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "try_scheduling", lambda priority: ("", ""))
    machine = make_board(
        tmp_path, {"proc/self/limits": "Max locked memory         unlimited            unlimited   bytes\n"}
    )
    facts = read_scheduling(machine, RIG)
    assert (facts.memlock_bytes, facts.rtprio, facts.may_lock_all) == (-1, 0, False)


def test_the_attempt_in_a_child_process_answers_and_changes_nothing_here() -> None:
    import os

    policy_before = os.sched_getscheduler(0)
    answers = try_scheduling(1)
    assert all(isinstance(a, str) and "the attempt itself failed" not in a for a in answers)
    assert os.sched_getscheduler(0) == policy_before
