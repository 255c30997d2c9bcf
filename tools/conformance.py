"""Conformance test of a device against the numbered rules of ``hw/PROTOCOL.md``."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from onrig.hw.conformance.check import CheckSkipped
from onrig.hw.conformance.host import Host, read_rig
from onrig.hw.conformance.lockstep import LockstepConformance
from onrig.hw.conformance.paced import PacedConformance
from onrig.hw.conformance.page import rule_texts
from onrig.hw.conformance.runner import Tally, checks_of, run
from onrig.hw.identity import DeviceMismatch
from onrig.hw.line import Line
from onrig.hw.messages import Hello, WireError
from onrig.hw.rig import Rig
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import LinkError
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.terminal import complain

_MAX_PERIOD_RATIO: Final = 20
"""Ratio of the longest period that a check sets to the desired period."""
_LEASE_PERIODS: Final = 20
"""Lease in periods, long enough not to expire because of delays on a busy host."""


class Selection(NamedTuple):
    """Rules to test, and test conditions."""

    only: tuple[str, ...] = ()
    """Prefixes of rule numbers; if empty, all rules are tested."""
    share: float = 0.1
    """Share of each actuator's range that the test uses."""
    has_operator: bool = False
    """Whether an operator performs the manual steps."""
    period_us: int = 10_000
    """Desired period; checks also set periods from half of it to twenty times as long."""


class _OpenLine:
    """Line that stays open between sessions, since opening a port restarts many boards."""

    def __init__(self, line: Line) -> None:
        self._line, self._transport = line, line.open()
        self.name, self.fileno = line.address, lambda: self._transport.fileno()

    def read(self, timeout_ns: int) -> bytes:
        return self._transport.read(timeout_ns)

    def write(self, data: bytes) -> int:
        return self._transport.write(data)

    def close(self) -> None:
        """Do nothing: the line stays open."""

    def reopen(self) -> None:
        """Close the line and open it again."""
        self._transport.close()
        time.sleep(0.2)
        self._transport = self._line.open()

    def end(self) -> None:
        self._transport.close()


class _ConnectedDevice:
    """Connection to the tested device; an operator, if available, performs the manual steps."""

    is_hand_operated = True

    def __init__(self, open_line: _OpenLine, rig: Rig, selection: Selection, period_us: int, lease: int) -> None:
        self.open_line, self.rig, self.share, self.has_operator = (
            open_line,
            rig,
            selection.share,
            selection.has_operator,
        )
        self.period_us, self.lease = period_us, lease
        self._host: Host | None = None

    def connect(self) -> Host:
        self._host = Host(self.open_line, self.rig, time, self.share)
        self._host.wire.clear()  # discard frames sent before the connection
        return self._host

    def press_estop(self, *, pressed: bool) -> None:
        self._ask_for("press the emergency stop, and keep it pressed" if pressed else "release the emergency stop")

    def kill_sensors(self, *, dead: bool) -> None:
        self._ask_for("unplug a sensor" if dead else "plug the sensor in again")

    def reboot(self) -> None:
        self._ask_for("switch the device off and on (its connection must stay open)")

    def hang_up(self, host: Host) -> Host:
        if not self.has_operator:
            raise CheckSkipped("needs an operator to state whether the device detects a closed connection: add --hands")
        if (
            self._read_answer("does the device detect a closed connection (USB, TCP; not a bare UART)? (yes, no)")
            != "yes"
        ):
            raise CheckSkipped("the device cannot detect a closed connection")
        self.open_line.reopen()
        return self.connect()

    def _ask_for(self, action: str) -> None:
        if not self.has_operator:
            raise CheckSkipped("needs an operator: add --hands")
        if self._read_answer(f"{action}, then Enter (s: skip)") == "s":
            raise CheckSkipped("skipped")

    def _read_answer(self, question: str) -> str:
        """Return the operator's answer. Frames from the device are read in the meantime, so that no stale ones remain
        in the buffer.
        """
        print(f"  > {question} ", end="", flush=True)
        while self._host is not None and not select.select([sys.stdin], [], [], 0)[0]:
            self._host.listen(1)
        return sys.stdin.readline().strip().lower()


class _PacedDevice(_ConnectedDevice, PacedConformance):
    pass


class _LockstepDevice(_ConnectedDevice, LockstepConformance):
    pass


def show_list(only: Sequence[str]) -> int:
    """Print the rules for devices with the number of checks for each, and return the exit code."""
    matching_checks = [check for kind in (PacedConformance, LockstepConformance) for check in checks_of(kind, only)]
    checks = {(check.method, check.rules) for check in matching_checks}
    for number, rule_text in _matching_rules(only):
        n = sum(number in rules for _, rules in checks)
        print(f"{number}  {n:>2} checks  {rule_text}")
    return ExitCode.OK


def _matching_rules(only: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, rule_text in rule_texts().items():
        if number.startswith("P") and (not only or number.startswith(tuple(only))):
            yield number, rule_text


def examine(
    line: Line,
    rig: Rig | None,
    selection: Selection,
    confirm: Callable[[Rig], bool] | None,
) -> int:
    """Test the device on a line, and return the exit code, which is 4 if the device breaks a rule or does not answer.

    ``rig`` is the expected rig; if None, the rig that the device reports is used. ``confirm`` is called before any
    actuator is driven, and nothing is driven if it returns False.
    """
    if not __debug__:
        return complain("conformance", "Python's assertions are disabled (-O, PYTHONOPTIMIZE): enable them")
    if not any(True for _ in _matching_rules(selection.only)):
        prefixes = " or ".join(selection.only)
        return complain("conformance", f"--only: no rule for devices begins with {prefixes}; see --list")
    try:
        open_line = _OpenLine(line)
        with contextlib.ExitStack() as stack:
            stack.callback(open_line.end)
            rig = rig or read_rig(open_line, time)
            hello = DeviceSession(open_line, rig, time).connect()
            if confirm is not None and not confirm(rig):
                return complain("conformance", "not confirmed; nothing was moved", ExitCode.PREFLIGHT)
            return _examine(open_line, rig, hello, selection)
    except (LinkError, DeviceMismatch, RequestRefused, WireError) as error:
        return complain("conformance", f"{line.address}: {error}", ExitCode.HARDWARE)


def _examine(open_line: _OpenLine, rig: Rig, hello: Hello, selection: Selection) -> int:
    period_us = max(min(selection.period_us, hello.period_max_us // _MAX_PERIOD_RATIO), 2 * hello.period_min_us)
    kind: type[_PacedDevice | _LockstepDevice] = _LockstepDevice if hello.time_scale == 0.0 else _PacedDevice
    device = kind(open_line, rig, selection, period_us, min(_LEASE_PERIODS, hello.lease_max))
    tally, checks = Tally(), checks_of(kind, selection.only)
    print(f"{open_line.name}: device '{hello.rig}', {len(checks)} checks, period {period_us / 1000:g} ms", flush=True)
    for check in checks:
        outcome = run(device, check)
        tally.outcomes.append(outcome)
        if outcome.verdict == "failed":
            print(f"failed: {check.name} ({', '.join(check.rules)})\n  {outcome.reason}", flush=True)
    return print_verdicts(tally, dict(_matching_rules(selection.only)))


def print_verdicts(tally: Tally, rules: dict[str, str]) -> int:
    """Print each rule that failed or was not tested, followed by the counts, and return the exit code."""
    failed_rules, passed_rules, skipped_rules = (
        tally.rules_with(verdict, rules) for verdict in ("failed", "holds", "not run")
    )
    for number in skipped_rules:
        reasons = tally.skip_reasons(number) or ["no check exists for this kind of device"]
        print(f"{number} not run ({'; '.join(reasons)}): {rules[number]}")
    for number in failed_rules:
        print(f"{number} FAILED: {rules[number]}")
    print(f"{len(rules)} rules: {len(passed_rules)} hold, {len(failed_rules)} failed, {len(skipped_rules)} not run")
    return ExitCode.HARDWARE if failed_rules else ExitCode.OK


def confirm_motion(fraction: float, address: str, rig: Rig) -> bool:
    """Announce the motion, and return whether the operator confirms it."""
    print(f"onrig conformance drives '{rig.name}' on {address} for about a minute, repeatedly between these limits:")
    for a in rig.actuators:
        low, high = (a.safe + fraction * (end - a.safe) for end in (a.low, a.high))
        print(f"  {a.name}: {low:.4g} to {high:.4g} {a.unit} (safe: {a.safe:.4g})")
    print("Keep clear, with a hand on the e-stop.  Continue? (yes) ", end="", flush=True)
    return sys.stdin.readline().strip().lower() == "yes"
