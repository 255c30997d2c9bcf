"""Restarts: which processes, when, and when to give up."""

from __future__ import annotations

import signal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.supervise.revival import (
    FIRST_HEARTBEAT_CPU_LIMIT_S,
    FIRST_HEARTBEAT_TIMEOUT_S,
    HANG_GRACE_S,
    KILLED_WEIGHT,
    MAX_FAILED_STARTS,
    MAX_SHORT_LIFETIMES,
    MIN_LONG_LIFETIME_S,
    RestartableProcess,
    RestartHistory,
    Verdict,
    Watchdog,
)

HANG_S = 5.0
POLL_S = 0.25


class FakeChild:
    """A child that ends on request."""

    def __init__(self, started_s: float) -> None:
        self.started_s, self.code, self.cpu_s = started_s, None, 0.0
        self.was_killed = self.was_closed = False

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.was_killed = True

    def close(self) -> None:
        self.was_closed = True


class Bench:
    """A revived process in virtual time."""

    def __init__(self, *transient_codes: int) -> None:
        self.now_s = 100.0
        self.children: list[Any] = []
        self.messages: list[str] = []
        self.n_failing_starts = 0
        self.process = RestartableProcess(
            "replay", self._launch, HANG_S, self.messages.append, transient_codes=(ExitCode.PREFLIGHT, *transient_codes)
        )
        self.process.start()

    def _launch(self) -> Any:
        if self.n_failing_starts:
            self.n_failing_starts -= 1
            raise OSError(24, "Too many open files")
        self.children.append(FakeChild(self.now_s))
        return self.children[-1]

    def poll_for(self, seconds: float, *, progress: int = 0, run_progress: int = 0, may_end: bool = False) -> None:
        for _ in range(int(seconds / POLL_S)):
            self.now_s += POLL_S
            self.process.check(self.now_s, progress=progress, run_progress=run_progress, may_end=may_end)

    def end(self, code: int, **options: Any) -> None:
        self.children[-1].code = code
        self.poll_for(POLL_S, **options)


def test_a_process_that_shows_progress_is_left_alone_and_one_that_does_not_is_killed() -> None:
    bench = Bench()
    for progress in range(200):
        bench.poll_for(HANG_S - 1.0, progress=progress)
    assert not bench.children[0].was_killed
    bench.poll_for(HANG_S, progress=199)
    assert bench.children[0].was_killed
    assert (bench.process.n_hangs, len(bench.messages)) == (1, 1)
    bench.end(-signal.SIGKILL, progress=199)
    assert len(bench.children) == 2
    assert bench.children[0].was_closed


def test_a_process_that_hangs_every_time_is_abandoned_however_long_a_hang_takes_to_detect() -> None:
    bench = Bench()
    bench.process = RestartableProcess("learner", bench._launch, 2 * MIN_LONG_LIFETIME_S, bench.messages.append)
    bench.process.start()
    for progress in range(4 * MAX_SHORT_LIFETIMES * 2):
        bench.poll_for(1.0, progress=2 * progress)  # a first sign of progress, another, and no more
        bench.poll_for(2 * MIN_LONG_LIFETIME_S + 10.0, progress=2 * progress + 1)
        if bench.process.is_abandoned:
            break
        bench.end(-signal.SIGKILL, progress=2 * progress + 1)
        bench.poll_for(20.0, progress=2 * progress + 1)
    assert bench.process.is_abandoned
    assert bench.process.n_hangs == int(MAX_SHORT_LIFETIMES / KILLED_WEIGHT) + 1


def test_a_process_that_hangs_after_long_work_is_restarted_at_once() -> None:
    bench = Bench()
    for _ in range(4 * MAX_SHORT_LIFETIMES * 2):
        for progress in range(20):
            bench.poll_for(HANG_S - 1.0, progress=progress)
        bench.poll_for(HANG_S + 1.0, progress=19)
        bench.end(-signal.SIGKILL, progress=19)
    assert not bench.process.is_abandoned


def test_a_machine_that_can_no_longer_start_anything_ends_the_run() -> None:
    bench = Bench()
    bench.n_failing_starts = 10 * MAX_FAILED_STARTS
    bench.end(1)
    bench.poll_for(2.0 * MAX_FAILED_STARTS)
    assert bench.process.is_abandoned
    assert "will not be restarted" in bench.messages[-1]


def test_a_camera_that_cannot_be_opened_is_retried_for_minutes_and_one_that_worked_starts_over() -> None:
    bench = Bench(ExitCode.HARDWARE)
    for lifetimes in range(2):
        for second in range(int(2 * MIN_LONG_LIFETIME_S)):
            bench.poll_for(1.0, progress=1000 * lifetimes + second)
        for _ in range(MAX_FAILED_STARTS):
            bench.end(ExitCode.HARDWARE)
            assert bench.process.child is None, "no restart before the delay has passed"
            bench.poll_for(2.0)
            assert bench.process.child is not None
    bench.end(ExitCode.HARDWARE)
    assert bench.process.is_abandoned


def test_another_process_without_its_hardware_is_a_crash_loop() -> None:
    bench = Bench()
    while bench.process.child is not None and len(bench.children) < 20:
        bench.end(ExitCode.HARDWARE)
        bench.poll_for(40.0 * POLL_S + 64.0)
    assert bench.process.is_abandoned


def test_until_its_first_sign_of_progress_it_has_more_time() -> None:
    bench = Bench()
    bench.poll_for(FIRST_HEARTBEAT_TIMEOUT_S - 1.0, progress=3)
    assert not bench.children[0].was_killed
    bench.poll_for(2.0, progress=3)
    assert bench.children[0].was_killed


def test_until_then_processor_time_is_progress_but_not_forever() -> None:
    bench = Bench()
    (busy_child,) = bench.children
    for _ in range(int(FIRST_HEARTBEAT_CPU_LIMIT_S) - 1):
        busy_child.cpu_s += 1.0
        bench.poll_for(FIRST_HEARTBEAT_TIMEOUT_S - 1.0, progress=3)
    assert not busy_child.was_killed, "it imports torch on a machine that is busy with other things"
    busy_child.cpu_s += 1.0
    bench.poll_for(POLL_S, progress=3)
    assert busy_child.was_killed


def test_after_its_first_sign_of_progress_processor_time_no_longer_counts() -> None:
    bench = Bench()
    (child,) = bench.children
    bench.poll_for(1.0, progress=3)
    for _ in range(int(HANG_S) + 1):
        child.cpu_s += 1.0
        bench.poll_for(1.0, progress=4)
    assert child.was_killed


def test_an_expected_end_is_not_a_crash() -> None:
    bench = Bench()
    bench.end(ExitCode.OK, may_end=True)
    assert len(bench.children) == 1
    assert not bench.process.is_abandoned
    bench.end(ExitCode.OK, may_end=False)
    assert len(bench.children) == 2


def test_a_loop_of_crashes_ends_and_one_of_kills_takes_longer() -> None:
    bench = Bench()
    for _ in range(MAX_SHORT_LIFETIMES):
        bench.end(1)
        bench.poll_for(20.0, progress=len(bench.children))
    assert not bench.process.is_abandoned
    bench.end(1)
    assert bench.process.is_abandoned
    killed_bench = Bench()
    for _ in range(int(MAX_SHORT_LIFETIMES / KILLED_WEIGHT)):
        killed_bench.end(-signal.SIGKILL)
        killed_bench.poll_for(20.0, progress=len(killed_bench.children))
    assert not killed_bench.process.is_abandoned
    killed_bench.end(-signal.SIGKILL)
    assert killed_bench.process.is_abandoned


def test_a_process_that_advances_the_run_is_not_in_a_loop() -> None:
    bench = Bench()
    for run_progress in range(1, 100):
        bench.end(1, run_progress=run_progress)
    assert not bench.process.is_abandoned
    assert len(bench.children) == 100


def test_a_refusal_of_the_configuration_is_final() -> None:
    bench = Bench()
    bench.end(ExitCode.CONFIGURATION)
    assert bench.process.is_abandoned


def test_if_the_machine_cannot_start_a_process_it_is_retried() -> None:
    bench = Bench()
    bench.n_failing_starts = 2
    bench.end(1)
    assert bench.process.child is None
    assert "could not be started: Too many open files" in bench.messages[-1]
    bench.poll_for(3.0)
    assert len(bench.children) == 2
    assert len(bench.messages) == 2, "reported once, however often it is tried"
    assert not bench.process.is_abandoned


def test_a_machine_without_room_is_retried_for_long_but_not_forever() -> None:
    bench = Bench()
    for _ in range(MAX_FAILED_STARTS):
        bench.end(ExitCode.PREFLIGHT)
        bench.poll_for(2.0)
        assert not bench.process.is_abandoned
    bench.end(ExitCode.PREFLIGHT)
    assert bench.process.is_abandoned


def test_only_consecutive_starts_without_room_count() -> None:
    bench = Bench()
    for run_progress in range(1, 4):
        for _ in range(MAX_FAILED_STARTS):
            bench.end(ExitCode.PREFLIGHT)
            bench.poll_for(2.0)
        bench.end(1, run_progress=run_progress)
        assert not bench.process.is_abandoned


def test_restarts_in_a_crash_loop_are_delayed_increasingly_and_finally_stop() -> None:
    restarts = RestartHistory()
    assert [restarts.next_delay_s(0.5) for _ in range(MAX_SHORT_LIFETIMES + 1)] == [0.0, 1.0, 2.0, 4.0, 8.0, None]


@given(st.lists(st.floats(MIN_LONG_LIFETIME_S, 1e6), max_size=50))
def test_a_process_that_lives_long_is_always_restarted_at_once(lifetimes_s: list[float]) -> None:
    restarts = RestartHistory()
    assert all(restarts.next_delay_s(lifetime_s) == 0.0 for lifetime_s in lifetimes_s)


def test_a_long_lifetime_cancels_the_short_ones_before_it() -> None:
    restarts = RestartHistory()
    for _ in range(MAX_SHORT_LIFETIMES):
        restarts.next_delay_s(0.0)
    assert [restarts.next_delay_s(MIN_LONG_LIFETIME_S), restarts.next_delay_s(0.0)] == [0.0, 1.0]


POLL_S = 0.125


def check_watchdog(
    watchdog: Watchdog, start_s: float, seconds: float, ticks: int, *, is_ticking: bool = True
) -> list[Verdict]:
    """Check every eighth of a second; ``ticks`` does not change."""
    n = int(seconds / POLL_S)
    return [watchdog.check(start_s + POLL_S * k, ticks, is_ticking=is_ticking) for k in range(n)]


def test_a_ticking_loop_is_healthy() -> None:
    watchdog = Watchdog(0.02)
    assert {watchdog.check(POLL_S * k, k, is_ticking=True) for k in range(1000)} == {Verdict.OK}


def test_a_hung_loop_is_reported_once_and_recovers_with_its_next_tick() -> None:
    watchdog = Watchdog(0.02)
    verdicts = check_watchdog(watchdog, 0.0, 5.0, 7)
    assert [v for v in verdicts if v is not Verdict.OK] == [Verdict.HUNG]
    assert watchdog.check(5.0, 8, is_ticking=True) is Verdict.RECOVERED
    assert watchdog.check(5.1, 9, is_ticking=True) is Verdict.OK


def test_a_loop_that_does_not_recover_is_abandoned() -> None:
    verdicts = check_watchdog(Watchdog(0.02), 0.0, HANG_GRACE_S + 2.0, 7)
    assert [v for v in verdicts if v is not Verdict.OK][:2] == [Verdict.HUNG, Verdict.EXPIRED]


def test_slow_rigs_have_more_time() -> None:
    assert set(check_watchdog(Watchdog(1.0), 0.0, 19.0, 7)) == {Verdict.OK}
    assert Verdict.HUNG in check_watchdog(Watchdog(1.0), 0.0, 22.0, 7)


def test_a_loop_that_no_longer_polls_also_hangs_in_a_state_without_ticks() -> None:
    assert set(check_watchdog(Watchdog(0.02), 0.0, 9.0, 7, is_ticking=False)) == {Verdict.OK}
    verdicts = check_watchdog(Watchdog(0.02), 0.0, 11.0 + HANG_GRACE_S, 7, is_ticking=False)
    assert [v for v in verdicts if v is not Verdict.OK][:2] == [Verdict.HUNG, Verdict.EXPIRED]


def test_time_in_which_the_supervisor_itself_was_asleep_does_not_count() -> None:
    watchdog = Watchdog(0.02)
    check_watchdog(watchdog, 0.0, 0.5, 7)
    assert watchdog.check(3600.0, 7, is_ticking=True) is Verdict.OK
