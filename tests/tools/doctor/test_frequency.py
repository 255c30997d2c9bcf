from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.doctor.clocks import FrequencyFacts, check_frequency, examine_frequency, parse_flags, read_frequency
from tests.tools.doctor.boards import LOCKSTEP_NEEDS, PI_5, RIG, checks_by_name, make_board, verdicts

FULL_SPEED = FrequencyFacts({0: "performance", 1: "performance"}, 0, None, 50.0)


def test_full_speed_and_no_flags_pass() -> None:
    assert set(verdicts(check_frequency(FULL_SPEED, RIG)).values()) == {"PASS"}


def test_a_machine_without_information_passes() -> None:
    assert set(verdicts(check_frequency(FrequencyFacts({}, None, None, None), RIG)).values()) == {"PASS"}


def test_a_governor_that_reduces_the_frequency_is_named_with_its_cpus() -> None:
    check = checks_by_name(
        check_frequency(FULL_SPEED._replace(governors={0: "performance", 1: "ondemand", 2: "ondemand"}), RIG)
    )["governor"]
    assert check.verdict.value == "WARN"
    assert "ondemand on CPU 1, 2" in check.finding
    assert "tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor" in check.remedy


def test_in_lockstep_the_governor_does_not_matter() -> None:
    assert (
        verdicts(check_frequency(FULL_SPEED._replace(governors={0: "powersave"}), LOCKSTEP_NEEDS))["governor"] == "PASS"
    )


@pytest.mark.parametrize(
    ("flags", "verdict", "word"),
    [
        (0x0, "PASS", "none"),
        (0x50000, "WARN", "supply voltage"),
        (0x50005, "FAIL", "throttled"),
        (0x1, "FAIL", "supply voltage"),
        (0x80000, "WARN", "temperature limit"),
    ],
)
def test_the_flags_of_a_raspberry_pi_are_read_bit_by_bit(flags: int, verdict: str, word: str) -> None:
    check = checks_by_name(check_frequency(FULL_SPEED._replace(pi_flags=flags), RIG))["throttling"]
    assert check.verdict.value == verdict
    assert word in check.finding


def test_heat_is_a_warning() -> None:
    verdict_by_name = verdicts(check_frequency(FrequencyFacts({}, None, 12, 81.0), RIG))
    assert (verdict_by_name["throttling"], verdict_by_name["temperature"]) == ("WARN", "WARN")


@pytest.mark.parametrize(("text", "flags"), [("throttled=0x50000\n", 0x50000), ("throttled=0x0", 0), ("error", None)])
def test_the_output_of_vcgencmd_is_parsed(text: str, flags: int | None) -> None:
    assert parse_flags(text) == flags


def test_the_facts_are_read_from_sys(tmp_path: Path) -> None:
    machine = make_board(
        tmp_path,
        {
            **PI_5,
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
            "sys/devices/system/cpu/cpu10/cpufreq/scaling_governor": "performance\n",
            "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled": "50005\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
            "sys/devices/system/cpu/cpu10/thermal_throttle/core_throttle_count": "4\n",
            "sys/class/thermal/thermal_zone0/temp": "61200\n",
            "sys/class/thermal/thermal_zone1/temp": "?\n",
        },
    )
    assert read_frequency(machine) == FrequencyFacts({0: "ondemand", 10: "performance"}, 0x50005, 7, 61.2)
    assert verdicts(examine_frequency(machine, RIG)) == {
        "governor": "WARN",
        "throttling": "FAIL",
        "temperature": "PASS",
    }
