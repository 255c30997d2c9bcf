"""*Safe* only by a state frame; the message without one."""

from __future__ import annotations

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.actuators import SAFE_TEXT, UNUSED_TEXT, Actuators

DRIVEN = Actuators(safe_ns=0, since_ns=0, answered_ns=50_000_000_000, hold_ns=120_000_000, loop_has_ended=False)
SHOWN = DRIVEN._replace(safe_ns=60_000_000_000, since_ns=59_000_000_000)


def test_only_a_frame_received_after_the_request_shows_them_safe() -> None:
    assert SHOWN.is_confirmed_safe(asked_ns=59_999_999_999)
    assert not SHOWN.is_confirmed_safe(asked_ns=60_000_000_000)
    assert not DRIVEN.is_confirmed_safe(asked_ns=0)


def test_the_last_frame_of_a_loop_that_has_ended_holds_for_good() -> None:
    assert SHOWN._replace(loop_has_ended=True).is_confirmed_safe(asked_ns=99_000_000_000)
    assert not DRIVEN._replace(loop_has_ended=True).is_confirmed_safe(asked_ns=0)


@pytest.mark.parametrize(("now_ms", "verb"), [(50_050, "ends"), (50_130, "ended")])
def test_without_one_the_end_of_the_lease_is_told(now_ms: int, verb: str) -> None:
    told = DRIVEN.unconfirmed_message(now_ms * 1_000_000, 1_000_000_000.0)
    assert told.startswith("unconfirmed: no state frame from the device shows them safe; ")
    assert f"the device's lease {verb} at " in told
    assert told.endswith("(at most 120 ms after its last command)")


def test_the_lease_s_end_is_told_by_the_wall_clock() -> None:
    a_whole_minute = 1_000_000_020.0
    assert ":00.120 " in DRIVEN.unconfirmed_message(DRIVEN.answered_ns, a_whole_minute)


def test_where_no_lease_runs_none_is_promised() -> None:
    assert "has stopped" in DRIVEN._replace(hold_ns=0).unconfirmed_message(0, 0.0)


def test_what_was_never_commanded_needs_no_lease() -> None:
    assert "no command was sent" in DRIVEN._replace(answered_ns=0).unconfirmed_message(0, 0.0)


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.INTERRUPTED])
def test_no_run_ends_well_whose_actuators_nobody_confirms(code: int) -> None:
    assert SHOWN.final_verdict(code, 0, 0.0) == (code, SAFE_TEXT)
    assert DRIVEN._replace(answered_ns=0).final_verdict(code, 0, 0.0) == (code, UNUSED_TEXT)
    settled, told = DRIVEN.final_verdict(code, 0, 0.0)
    assert settled == ExitCode.HARDWARE
    assert told.startswith("unconfirmed")


@pytest.mark.parametrize("code", [ExitCode.HARDWARE, ExitCode.SAFETY, ExitCode.INTERNAL])
def test_what_ended_badly_keeps_its_exit_code(code: int) -> None:
    assert DRIVEN.final_verdict(code, 0, 0.0)[0] == code
