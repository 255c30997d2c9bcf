from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from onrig.runtime.process_settings import RealTime
from onrig.tools.doctor import punctuality
from onrig.tools.doctor.finding import Needs
from onrig.tools.doctor.punctuality import (
    Latency,
    LoopResults,
    Measurement,
    MeasurementRequest,
    check_loop,
    measure,
    tick_count,
    time_wake_ups,
)
from onrig.tools.machine import Machine
from tests.tools.doctor.boards import GENERAL_NEEDS, LOCKSTEP_NEEDS, RIG, make_board

PUNCTUAL = Measurement(2000, 0, 30.0, 60.0, 90.0, 120.0, True, [])
UNPUNCTUAL = Measurement(2000, 3, 30.0, 60.0, 900.0, 25000.0, True, [])
HISTOGRAM = """# /dev/cpu_dma_latency set to 0us
# Histogram
000000 000000
000005 000090
000007 000009
000300 000000
# Total: 000000099
# Min Latencies: 00005
# Avg Latencies: 00005
# Max Latencies: 61000
# Histogram Overflows: 00001
# Thread 0: 00099
"""


class Clock:
    """Time that advances with each sleep, a little more than requested."""

    def __init__(self, delays_ns: list[int]) -> None:
        self.now_ns, self._delays_ns = 1_000_000, delays_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9) + (self._delays_ns.pop(0) if self._delays_ns else 0)


def test_lateness_is_measured_from_the_grid_and_overruns_skip_to_its_next_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock([0] * 3 + [10, 2_500, 20, 30])
    monkeypatch.setattr(punctuality, "time", clock)
    monkeypatch.setattr(punctuality, "_WARM_UP_TICKS", 3)
    monkeypatch.setattr(punctuality, "_WARM_UP_NS", 0)
    lateness_us, n_missed = time_wake_ups(1_000, 5)
    assert list(lateness_us) == [10, 2_500, 20, 30, 0]
    assert n_missed == 2
    assert clock.now_ns == 1_000_000 + (3 + 5 + 2) * 1_000


def test_a_measurement_is_in_microseconds_and_reports_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punctuality, "time", Clock([0] * 300 + [5_000, 10_000]))
    monkeypatch.setattr(punctuality, "enter_realtime", lambda settings: ["not granted"])
    monkeypatch.setattr(punctuality, "freeze_collector", lambda: None)
    ready: list[bool] = []
    measurement = measure(MeasurementRequest(1_000_000, 4, RealTime()), lambda: ready.append(True))
    assert (measurement.ticks, measurement.missed, measurement.max, ready) == (4, 0, 10.0, [True])
    assert measurement.warnings == ["not granted"]


@pytest.mark.parametrize(("seconds", "rate_hz", "ticks"), [(10, 200, 2000), (1, 5, 20), (10, 1e6, 100_000)])
def test_the_number_of_ticks_is_bounded(seconds: float, rate_hz: float, ticks: int) -> None:
    assert tick_count(seconds, rate_hz) == ticks


def test_a_punctual_loop_passes_with_its_figures_next_to_cyclictests() -> None:
    check = check_loop(LoopResults(PUNCTUAL, "", Latency(4.0, 10.0, 20.0, 30.0), False), RIG)
    assert check.verdict.value == "PASS"
    assert "SCHED_FIFO 50" in check.finding
    assert "cyclictest: p50 4" in check.finding
    assert check.figures is not None
    assert (check.figures["p99_us"], check.figures["cyclictest_p99_us"], check.figures["missed"]) == (60.0, 10.0, 0.0)


@pytest.mark.parametrize(
    ("needs", "preempt_rt", "verdict"),
    [(RIG, False, "WARN"), (GENERAL_NEEDS, True, "WARN"), (RIG, True, "FAIL"), (LOCKSTEP_NEEDS, False, "PASS")],
)
def test_missed_ticks_fail_only_on_a_kernel_that_promises_none(needs: Needs, preempt_rt: bool, verdict: str) -> None:
    assert check_loop(LoopResults(UNPUNCTUAL, "", None, preempt_rt), needs).verdict.value == verdict


def test_a_late_loop_is_not_blamed_if_the_machine_itself_stalls() -> None:
    check = check_loop(LoopResults(UNPUNCTUAL, "", Latency(4.0, 10.0, 2000.0, 30000.0), False), RIG)
    assert "the machine stalls" in check.remedy


def test_a_tail_beyond_a_tenth_of_the_period_is_a_warning() -> None:
    late_measurement = Measurement(2000, 0, 30.0, 60.0, 600.0, 700.0, True, [])
    assert check_loop(LoopResults(late_measurement, "", None, False), RIG).verdict.value == "WARN"
    assert (
        check_loop(LoopResults(late_measurement, "", None, False), RIG._replace(rate_hz=50.0)).verdict.value == "PASS"
    )


def test_a_failed_measurement_is_reported() -> None:
    check = check_loop(LoopResults(None, "MemoryError", None, False), RIG)
    assert (check.verdict.value, "MemoryError" in check.finding) == ("WARN", True)


def test_cyclictest_runs_next_to_the_loop_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def popen(command: list[str], **kwargs: object) -> SimpleNamespace:
        commands.append(command)
        out = HISTOGRAM if "cyclictest" in command[0] else msgspec.json.encode(PUNCTUAL)
        return SimpleNamespace(communicate=lambda timeout=None: (out, b""), stdout=None, returncode=0, poll=lambda: 0)

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("subprocess.Popen", popen)
    needs = RIG._replace(cpu=3, rate_hz=1000.0)
    facts = punctuality.read_loop(Machine(), needs, 2.0, lambda left_s: None)
    assert facts.cyclictest is not None
    assert (facts.cyclictest.p50, facts.cyclictest.p99, facts.cyclictest.max) == pytest.approx(
        (5.0, 7.0, 61000.0), rel=0.1
    )
    assert " ".join(commands[1]) == "/usr/bin/cyclictest -m -q -t 1 -p 50 -i 1000 -a 3 -D 2s -h 20000"


def test_a_loop_is_measured_in_its_own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    machine = make_board(tmp_path, {"sys/kernel/realtime": "1"})
    needs = RIG._replace(priority=0, lock_memory=False, rate_hz=1000.0)
    facts = punctuality.read_loop(machine, needs, 0.0, lambda left_s: None)
    assert facts.measurement is not None
    assert (facts.measurement.ticks, facts.problem, facts.cyclictest, facts.preempt_rt) == (20, "", None, True)
    assert not facts.measurement.has_fifo
