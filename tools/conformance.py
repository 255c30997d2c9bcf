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
"""Ratio of the longest period that a check sets to the configured one."""
_LEASE_PERIODS: Final = 20
"""Lease that outlasts the delays of this host on a busy machine."""


class Selection(NamedTuple):
    """Rules to test, and conditions of the test."""

    only: tuple[str, ...] = ()
    """Prefixes of the rules' numbers; empty: all."""
    share: float = 0.1
    """Share of each actuator's range."""
    hands: bool = False
    """Whether a person assists."""
    period_us: int = 10_000
    """Desired period; checks also set periods from half of it to twenty times as long."""


class _OpenLine:
    """Line that stays open when a session closes it, since opening a port restarts many boards."""

    def __init__(self, line: Line) -> None:
        self._line, self._transport = line, line.open()
        self.name, self.fileno = line.address, lambda: self._transport.fileno()

    def read(self, timeout_ns: int) -> bytes:
        return self._transport.read(timeout_ns)

    def write(self, data: bytes) -> int:
        return self._transport.write(data)

    def close(self) -> None:
        """Leave the line open."""

    def reopen(self) -> None:
        """Close the line and open it again."""
        self._transport.close()
        time.sleep(0.2)
        self._transport = self._line.open()

    def end(self) -> None:
        self._transport.close()


class _ConnectedDevice:
    """Connection to a device, including the manual steps if an operator assists."""

    is_hand_operated = True

    def __init__(self, open_line: _OpenLine, rig: Rig, selection: Selection, period_us: int, lease: int) -> None:
        self.open_line, self.rig, self.share, self.hands = open_line, rig, selection.share, selection.hands
        self.period_us, self.lease = period_us, lease
        self._host: Host | None = None

    def connect(self) -> Host:
        self._host = Host(self.open_line, self.rig, time, self.share)
        self._host.wire.clear()  # frames sent before the connection
        return self._host

    def press_estop(self, *, pressed: bool) -> None:
        self._ask("press the emergency stop, and keep it pressed" if pressed else "release the emergency stop")

    def kill_sensors(self, *, dead: bool) -> None:
        self._ask("unplug a sensor" if dead else "plug the sensor in again")

    def reboot(self) -> None:
        self._ask("switch the device off and on (its connection must stay open)")

    def hang_up(self, host: Host) -> Host:
        if not self.hands:
            raise CheckSkipped("a person must state whether the device detects a closed connection: --hands")
        if self._answer("does the device detect a closed connection (USB, TCP; not a bare UART)? (yes, no)") != "yes":
            raise CheckSkipped("the device cannot detect a closed connection")
        self.open_line.reopen()
        return self.connect()

    def _ask(self, what: str) -> None:
        if not self.hands:
            raise CheckSkipped("a person must assist: --hands")
        if self._answer(f"{what}, then Enter (s: skip)") == "s":
            raise CheckSkipped("skipped")

    def _answer(self, question: str) -> str:
        """Return a person's answer; reads the device's frames meanwhile, so that later ones are new."""
        print(f"  > {question} ", end="", flush=True)
        while self._host is not None and not select.select([sys.stdin], [], [], 0)[0]:
            self._host.listen(1)
        return sys.stdin.readline().strip().lower()


class _Paced(_ConnectedDevice, PacedConformance):
    pass


class _Lockstep(_ConnectedDevice, LockstepConformance):
    pass


def show_list(only: Sequence[str]) -> int:
    """Print the rules for devices with the number of checks for each; returns the exit code."""
    found = [check for kind in (PacedConformance, LockstepConformance) for check in checks_of(kind, only)]
    checks = {(check.method, check.rules) for check in found}
    for number, sentence in _matching_rules(only):
        n = sum(number in rules for _, rules in checks)
        print(f"{number}  {n:>2} checks  {sentence}")
    return ExitCode.OK


def _matching_rules(only: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, sentence in rule_texts().items():
        if number.startswith("P") and (not only or number.startswith(tuple(only))):
            yield number, sentence


def examine(
    line: Line,
    rig: Rig | None,
    selection: Selection,
    confirm: Callable[[Rig], bool] | None,
) -> int:
    """Test the device on a line; returns the exit code: 0, or 4 if a rule is broken or no device answers.

    ``rig``: expected rig; None: as reported by the device.  ``confirm`` is called before any actuator is driven.
    """
    if not __debug__:
        return complain("conformance", "Python runs without assertions here (-O, PYTHONOPTIMIZE): run it with them")
    if not any(True for _ in _matching_rules(selection.only)):
        unknown = " or ".join(selection.only)
        return complain("conformance", f"--only: no rule for devices begins with {unknown}; see --list")
    try:
        open_line = _OpenLine(line)
        with contextlib.ExitStack() as held:
            held.callback(open_line.end)
            rig = rig or read_rig(open_line, time)
            hello = DeviceSession(open_line, rig, time).connect()
            if confirm is not None and not confirm(rig):
                return complain("conformance", "not confirmed; nothing was moved", ExitCode.PREFLIGHT)
            return _examine(open_line, rig, hello, selection)
    except (LinkError, DeviceMismatch, RequestRefused, WireError) as error:
        return complain("conformance", f"{line.address}: {error}", ExitCode.HARDWARE)


def _examine(open_line: _OpenLine, rig: Rig, hello: Hello, selection: Selection) -> int:
    period_us = max(min(selection.period_us, hello.period_max_us // _MAX_PERIOD_RATIO), 2 * hello.period_min_us)
    kind: type[_Paced | _Lockstep] = _Lockstep if hello.time_scale == 0.0 else _Paced
    subject = kind(open_line, rig, selection, period_us, min(_LEASE_PERIODS, hello.lease_max))
    tally, checks = Tally(), checks_of(kind, selection.only)
    print(f"{open_line.name}: device '{hello.rig}', {len(checks)} checks at {period_us / 1000:g} ms", flush=True)
    for check in checks:
        outcome = run(subject, check)
        tally.outcomes.append(outcome)
        if outcome.verdict == "failed":
            print(f"failed: {check.name} ({', '.join(check.rules)})\n  {outcome.reason}", flush=True)
    return conclude(tally, dict(_matching_rules(selection.only)))


def conclude(tally: Tally, rules: dict[str, str]) -> int:
    """Print the verdict on each rule that did not hold, and the counts; returns the exit code."""
    failed, held, unseen = (tally.rules_with(verdict, rules) for verdict in ("failed", "holds", "not run"))
    for number in unseen:
        reasons = tally.skip_reasons(number) or ["no check for this kind of device"]
        print(f"{number} not run ({'; '.join(reasons)}): {rules[number]}")
    for number in failed:
        print(f"{number} FAILED: {rules[number]}")
    print(f"{len(rules)} rules: {len(held)} hold, {len(failed)} failed, {len(unseen)} not run")
    return ExitCode.HARDWARE if failed else ExitCode.OK


def confirm_motion(share: float, place: str, rig: Rig) -> bool:
    """Return whether a person confirms the announced motion."""
    print(f"onrig conformance drives '{rig.name}' on {place} for about a minute, several times between:")
    for a in rig.actuators:
        low, high = (a.safe + share * (end - a.safe) for end in (a.low, a.high))
        print(f"  {a.name}: {low:.4g} to {high:.4g} {a.unit} (safe: {a.safe:.4g})")
    print("Keep clear, a hand on the e-stop.  Continue? (yes) ", end="", flush=True)
    return sys.stdin.readline().strip().lower() == "yes"
