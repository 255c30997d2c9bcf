"""*Safe* only by a state frame, and the message without one."""

from __future__ import annotations

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.actuators import SAFE_TEXT, UNUSED_TEXT, Actuators

UNCONFIRMED = Actuators(safe_ns=0, since_ns=0, answered_ns=50_000_000_000, hold_ns=120_000_000, loop_has_ended=False)
CONFIRMED = UNCONFIRMED._replace(safe_ns=60_000_000_000, since_ns=59_000_000_000)


def test_only_a_frame_received_after_the_request_confirms_the_actuators_safe() -> None:
    assert CONFIRMED.is_confirmed_safe(asked_ns=59_999_999_999)
    assert not CONFIRMED.is_confirmed_safe(asked_ns=60_000_000_000)
    assert not UNCONFIRMED.is_confirmed_safe(asked_ns=0)


def test_the_last_frame_of_an_ended_loop_remains_valid() -> None:
    assert CONFIRMED._replace(loop_has_ended=True).is_confirmed_safe(asked_ns=99_000_000_000)
    assert not UNCONFIRMED._replace(loop_has_ended=True).is_confirmed_safe(asked_ns=0)


@pytest.mark.parametrize(("now_ms", "verb"), [(50_050, "ends"), (50_130, "ended")])
def test_without_a_frame_the_end_of_the_lease_is_reported(now_ms: int, verb: str) -> None:
    message = UNCONFIRMED.unconfirmed_message(now_ms * 1_000_000, 1_000_000_000.0)
    assert message.startswith("unconfirmed: no state frame from the device shows them safe; ")
    assert f"the device's lease {verb} at " in message
    assert message.endswith("(at most 120 ms after its last command)")


def test_the_end_of_the_lease_is_reported_in_wall_clock_time() -> None:
    minute_s = 1_000_000_020.0
    assert ":00.120 " in UNCONFIRMED.unconfirmed_message(UNCONFIRMED.answered_ns, minute_s)


def test_without_a_running_lease_none_is_promised() -> None:
    assert "has stopped" in UNCONFIRMED._replace(hold_ns=0).unconfirmed_message(0, 0.0)


def test_actuators_that_were_never_commanded_need_no_lease() -> None:
    assert "no command was sent" in UNCONFIRMED._replace(answered_ns=0).unconfirmed_message(0, 0.0)


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.INTERRUPTED])
def test_a_run_with_unconfirmed_actuators_does_not_end_with_success(code: int) -> None:
    assert CONFIRMED.final_verdict(code, 0, 0.0) == (code, SAFE_TEXT)
    assert UNCONFIRMED._replace(answered_ns=0).final_verdict(code, 0, 0.0) == (code, UNUSED_TEXT)
    final_code, final_message = UNCONFIRMED.final_verdict(code, 0, 0.0)
    assert final_code == ExitCode.HARDWARE
    assert final_message.startswith("unconfirmed")


@pytest.mark.parametrize("code", [ExitCode.HARDWARE, ExitCode.SAFETY, ExitCode.INTERNAL])
def test_a_run_that_failed_keeps_its_exit_code(code: int) -> None:
    assert UNCONFIRMED.final_verdict(code, 0, 0.0)[0] == code
