from __future__ import annotations

import pytest

from hw.messages import Fault
from hw.transport import LinkError
from runtime.exit_codes import ExitCode
from runtime.supervise.faults import FAULTS, FaultName, Halted, LinkFault, Rearm, device_fault, link_fault


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
def test_every_fault_of_a_device_has_a_name_of_its_own(fault: Fault) -> None:
    assert device_fault(fault) not in {device_fault(other) for other in Fault if other is not fault}


def test_a_code_of_a_newer_device_is_a_fault_too() -> None:
    assert device_fault(200) is FaultName.DEVICE_UNKNOWN


def test_an_emergency_stop_is_never_released_by_the_run_itself() -> None:
    assert FAULTS[device_fault(Fault.ESTOP)].rearm is Rearm.PERSON
    assert FAULTS[device_fault(200)].rearm is Rearm.PERSON


def test_a_halt_says_cause_and_hint_unless_it_knows_better() -> None:
    entry = FAULTS[FaultName.RESET_FAILED]
    assert str(Halted(FaultName.RESET_FAILED)) == f"{entry.cause}; {entry.hint}"
    assert str(Halted(FaultName.RESET_FAILED, "stuck")) == "stuck"


def test_a_lost_line_is_named_as_closely_as_it_was_told_apart() -> None:
    assert link_fault(LinkFault(FaultName.LINK_FROZEN, "no frame")) is FaultName.LINK_FROZEN
    assert link_fault(LinkError("hung up")) is FaultName.LINK_CLOSED
