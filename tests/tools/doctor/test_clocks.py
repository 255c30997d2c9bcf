from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.doctor.clocks import ClockFacts, check_clocks, read_clocks
from onrig.tools.doctor.finding import Needs
from tests.tools.doctor.boards import GENERAL_NEEDS, RIG, checks_by_name, make_board, verdicts

GOOD_CLOCK = ClockFacts("tsc", "tsc hpet acpi_pm", 1e-9, True)


def test_a_fast_source_and_the_right_time_pass() -> None:
    assert set(verdicts(check_clocks(GOOD_CLOCK, RIG)).values()) == {"PASS"}


def test_a_slow_source_is_a_warning_with_the_better_one() -> None:
    check = checks_by_name(check_clocks(GOOD_CLOCK._replace(source="hpet", available_sources="hpet acpi_pm tsc"), RIG))[
        "clocksource"
    ]
    assert check.verdict.value == "WARN"
    assert check.remedy.startswith("echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current")


def test_a_slow_source_without_a_better_one_points_to_the_log() -> None:
    check = checks_by_name(check_clocks(GOOD_CLOCK._replace(source="acpi_pm", available_sources="acpi_pm"), RIG))[
        "clocksource"
    ]
    assert "dmesg" in check.remedy


@pytest.mark.parametrize(("needs", "verdict"), [(RIG, "FAIL"), (GENERAL_NEEDS, "WARN")])
def test_a_clock_with_millisecond_resolution_is_not_fit_for_a_rig(needs: Needs, verdict: str) -> None:
    assert verdicts(check_clocks(GOOD_CLOCK._replace(resolution_s=4e-3), needs))["clock-resolution"] == verdict


def test_a_wrong_time_of_day_is_only_a_warning() -> None:
    assert verdicts(check_clocks(GOOD_CLOCK._replace(is_synchronised=False), RIG))["time-sync"] == "WARN"
    assert verdicts(check_clocks(GOOD_CLOCK._replace(is_synchronised=None), RIG))["time-sync"] == "PASS"


def test_the_source_is_read_from_sys(tmp_path: Path) -> None:
    folder = "sys/devices/system/clocksource/clocksource0"
    machine = make_board(
        tmp_path, {f"{folder}/current_clocksource": "arch_sys_counter\n", f"{folder}/available_clocksource": "a b"}
    )
    facts = read_clocks(machine)
    assert (facts.source, facts.available_sources) == ("arch_sys_counter", "a b")
    assert 0 < facts.resolution_s < 1
    assert facts.is_synchronised in (True, False, None)
