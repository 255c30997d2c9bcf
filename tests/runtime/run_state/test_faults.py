from __future__ import annotations

from pathlib import Path

import pytest

from onrig import hw
from onrig.hw.messages import Fault
from onrig.hw.transport import LinkError
from onrig.runtime.control.contradictions import RATE_WINDOW
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.process_settings import Supervision
from onrig.runtime.run_state.faults import (
    FAULTS,
    FaultName,
    Halted,
    LinkFault,
    Rearm,
    device_fault,
    link_fault,
    most_severe,
)


@pytest.mark.parametrize("name", FaultName)
def test_every_fault_has_one_cause_one_hint_and_an_exit_code(name: FaultName) -> None:
    entry = FAULTS[name]
    assert entry.cause
    assert entry.hint
    assert "\n" not in entry.cause + entry.hint
    assert entry.code in (ExitCode.HARDWARE, ExitCode.SAFETY, ExitCode.INTERNAL)


def test_no_two_faults_have_the_same_cause() -> None:
    assert len({entry.cause for entry in FAULTS.values()}) == len(FaultName)


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_of_a_device_has_its_own_name(fault: Fault) -> None:
    assert device_fault(fault) not in {device_fault(other) for other in Fault if other is not fault}


def test_a_code_of_a_newer_device_is_also_a_fault() -> None:
    assert device_fault(200) is FaultName.DEVICE_UNKNOWN


def test_an_emergency_stop_is_never_released_by_the_run_itself() -> None:
    assert FAULTS[device_fault(Fault.ESTOP)].rearm is Rearm.PERSON
    assert FAULTS[device_fault(200)].rearm is Rearm.PERSON


def test_a_halt_states_cause_and_hint_unless_it_knows_better_ones() -> None:
    entry = FAULTS[FaultName.RESET_FAILED]
    assert str(Halted(FaultName.RESET_FAILED)) == f"{entry.cause}; {entry.hint}"
    assert str(Halted(FaultName.RESET_FAILED, "stuck")) == "stuck"


def test_a_lost_line_is_named_as_precisely_as_it_was_identified() -> None:
    assert link_fault(LinkFault(FaultName.LINK_FROZEN, "no frame")) is FaultName.LINK_FROZEN
    assert link_fault(LinkError("hung up")) is FaultName.LINK_CLOSED


def test_the_bit_without_a_code_is_a_fault_and_waits_for_an_operator() -> None:
    assert device_fault(0, latched=True) is FaultName.DEVICE_UNNAMED
    assert device_fault(0) is FaultName.DEVICE_DISARMED
    assert device_fault(Fault.LEASE, latched=True) is FaultName.DEVICE_LEASE
    assert FAULTS[FaultName.DEVICE_UNNAMED].rearm is Rearm.PERSON


def test_a_more_severe_code_is_never_rearmed_by_more_than_a_less_severe_one() -> None:
    """The most severe of several latched faults is reported: whoever may release that may release the others."""
    order = [Rearm.RUN, Rearm.PERSON, Rearm.NEVER]
    rearm_ranks = [order.index(FAULTS[device_fault(fault)].rearm) for fault in Fault if fault]
    assert rearm_ranks == sorted(rearm_ranks)


@pytest.mark.parametrize("latched_fault", FaultName)
@pytest.mark.parametrize("code", Fault)
def test_a_newer_fault_of_the_device_counts_if_it_is_harder_to_release(latched_fault: FaultName, code: Fault) -> None:
    order = [Rearm.RUN, Rearm.PERSON, Rearm.NEVER]
    severest = most_severe(latched_fault, code)
    assert severest in (latched_fault, device_fault(code))
    faults = [latched_fault, device_fault(code)] if code else [latched_fault]
    assert order.index(FAULTS[severest].rearm) == max(order.index(FAULTS[fault].rearm) for fault in faults)
    assert most_severe(latched_fault, 0) is latched_fault


@pytest.mark.rules("H626", "H627", "H628")
def test_the_protocol_page_states_the_runs_reaction_to_each_contradiction() -> None:
    page = (Path(hw.__file__).parent / "PROTOCOL.md").read_text(encoding="utf-8")
    table = page.split("| what the device reports |", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    documented = {
        FaultName(name): (rearmed_by, int(code)) for _, names, rearmed_by, code in rows for name in names.split(", ")
    }
    assert set(documented) >= {f for f in FaultName if f.startswith(("device_", "sensors_", "link_"))} - {
        FaultName.DEVICE_REFUSED,
        FaultName.LINK_CLOSED,
        FaultName.LINK_UNPLUGGED,
    }
    for fault, (rearmed_by, code) in documented.items():
        assert FAULTS[fault].code == code
        if ", " not in rearmed_by:
            words = {Rearm.RUN: "by itself", Rearm.PERSON: "by a person", Rearm.NEVER: "no"}
            assert rearmed_by == words[FAULTS[fault].rearm], fault
    assert f"within {RATE_WINDOW} frames" in table
    assert f"({Supervision().frozen_limit_s:g} s)" in table


@pytest.mark.rules("H203", "H620", "H621", "H622", "H623")
@pytest.mark.parametrize(
    ("code", "is_latched", "name", "rearm"),
    [
        (1, True, FaultName.DEVICE_LEASE, Rearm.RUN),
        (2, True, FaultName.DEVICE_SENSOR, Rearm.PERSON),
        (3, True, FaultName.DEVICE_ESTOP, Rearm.PERSON),
        (4, True, FaultName.DEVICE_INTERNAL, Rearm.NEVER),
        (5, True, FaultName.DEVICE_UNKNOWN, Rearm.PERSON),
        (255, True, FaultName.DEVICE_UNKNOWN, Rearm.PERSON),
        (0, True, FaultName.DEVICE_UNNAMED, Rearm.PERSON),
        (0, False, FaultName.DEVICE_DISARMED, Rearm.RUN),
    ],
)
def test_device_faults_are_named_as_on_the_page_and_handled_as_stated_there(
    code: int, is_latched: bool, name: FaultName, rearm: Rearm
) -> None:
    assert device_fault(code, latched=is_latched) is name
    assert (FAULTS[name].rearm, FAULTS[name].code) == (rearm, ExitCode.SAFETY)
