from __future__ import annotations

from pathlib import Path

import pytest

from onrig.hw.messages import State, Status
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.tools.reports.sheet import markdown_table
from tests.lab.fault_matrix import CASES, Outcome
from tests.lab.faults import main, parser, report, worst_ms
from tests.lab.rig.wire import TimedState, device_time_us, safe_since_us

PERIOD_US, ZERO = 20_000, (0.0,)
ARMED, SAFE = int(Status.ARMED), int(Status.SAFE | Status.FAULT)


def frame(n: int, status: int, *, answers: int = 0, tau_us: int = PERIOD_US, late_us: int = 0) -> TimedState:
    """Return frame n of a device whose clock is 5 s behind the host's."""
    t_us = n * PERIOD_US
    u_start = (0,) if tau_us == PERIOD_US and not answers else (7,)
    u_end = (0,) if status & Status.SAFE and not answers else (7,)
    at_ns = 1000 * (t_us + 5_000_000 + late_us)
    return TimedState(at_ns, State(n, t_us, status, 0, 5, answers, tau_us, (0, 0), u_start, u_end))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--json", "nowhere/x.json", "--json: no such folder 'nowhere'"),
        ("--markdown", "nowhere/x.md", "--markdown: no such folder 'nowhere'"),
        ("--keep", str(Path(__file__).parent), f"--keep: '{Path(__file__).parent}' is not empty"),
    ],
)
def test_invalid_output_options_are_refused_first(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option, value]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_device_time_follows_from_frames_with_the_least_delay() -> None:
    seen = [frame(1, ARMED, late_us=900), frame(2, ARMED), frame(3, ARMED, late_us=400)]
    assert device_time_us(seen, 1000 * (5_000_000 + 70_000), 0) == 70_000
    assert device_time_us(seen, 1000 * (5_000_000 + 70_000), 300_000) == 70_300


def test_an_output_is_safe_from_the_sample_of_its_switch() -> None:
    seen = [frame(1, ARMED, answers=1), frame(2, SAFE, answers=1), frame(3, SAFE)]
    assert safe_since_us(seen, 25_000, PERIOD_US, ZERO) == 2 * PERIOD_US
    assert safe_since_us(seen[:2], 25_000, PERIOD_US, ZERO) is None, "its own output contradicts its status"


def test_an_output_is_safe_from_a_switch_within_a_period() -> None:
    seen = [frame(1, ARMED, answers=1), frame(2, SAFE, tau_us=5_000)]
    assert safe_since_us(seen, 22_000, PERIOD_US, ZERO) == 25_000
    assert safe_since_us(seen, 26_000, PERIOD_US, ZERO) == 26_000


def test_an_output_that_never_becomes_safe_is_reported() -> None:
    assert safe_since_us([frame(n, ARMED, answers=n) for n in range(1, 9)], 30_000, PERIOD_US, ZERO) is None


def test_the_worst_repetition_counts() -> None:
    done = Outcome(1.0, True, True, True)
    assert worst_ms([done, done._replace(safe_ms=9.0)]) == 9.0
    assert worst_ms([done._replace(safe_ms=None)]) is None


def test_every_check_of_the_report_can_fail() -> None:
    bad = {case.name: [Outcome(500.0, False, False, False)] for case in CASES}
    good = {case.name: [Outcome(0.0, True, True, True)] for case in CASES}
    assert not any(check.holds for check in report(CASES, bad, 120.0).checks)
    assert all(check.holds for check in report(CASES, good, 120.0).checks)


def test_a_single_bad_repetition_is_enough() -> None:
    outcomes = {case.name: [Outcome(0.0, True, True, True), Outcome(121.0, True, True, False)] for case in CASES}
    failed = {check.name for check in report(CASES[:1], outcomes, 120.0).checks if not check.holds}
    assert failed == {
        "cable pulled: ms until the safe output",
        "cable pulled: re-arming works, share of repetitions",
    }


def test_the_faults_that_cases_name_are_in_the_table_of_faults() -> None:
    unlisted = {"restarted", "killed, restarted", "nothing to name", "a warning", "safe by a frame"}
    assert {case.fault for case in CASES} - unlisted <= {name.value for name in FaultName} == {*map(str, FAULTS)}


def test_the_table_is_markdown() -> None:
    assert markdown_table([("a", "b"), ("1", "2")]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"


def test_the_command_takes_cases_by_name() -> None:
    assert parser().parse_args(["--only", "disk full", "--repeats", "2"]).only == ["disk full"]
