"""Conformance of a person's device with the numbered rules of ``hw/PROTOCOL.md``."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from onrig.hw.conformance.check import CheckSkipped
from onrig.hw.conformance.host import Host, rig_of
from onrig.hw.conformance.lockstep import LockstepConformance
from onrig.hw.conformance.paced import PacedConformance
from onrig.hw.conformance.page import sentences
from onrig.hw.conformance.runner import Tally, checks_of, run
from onrig.hw.identity import DeviceMismatch
from onrig.hw.line import Line
from onrig.hw.messages import Hello, WireError
from onrig.hw.rig import Rig
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import LinkError
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.terminal import complain

_LONGEST: Final = 20
"""Periods of the configured one in the longest period that a check sets."""
_LEASE: Final = 20
"""Periods; longer than a busy machine keeps this host waiting."""


class Wanted(NamedTuple):
    """What is to be examined, and how."""

    only: tuple[str, ...] = ()
    """Beginnings of the rules' numbers; empty: all."""
    share: float = 0.1
    """Of each actuator's range."""
    hands: bool = False
    period_us: int = 10_000
    """As near to it as the device can, with periods of half to twenty times as long."""


class _Kept:
    """A line that stays open when a session closes it: opening a port restarts many boards."""

    def __init__(self, line: Line) -> None:
        self._line, self._transport = line, line.open()
        self.name, self.fileno = line.place, lambda: self._transport.fileno()

    def read(self, timeout_ns: int) -> bytes:
        return self._transport.read(timeout_ns)

    def write(self, data: bytes) -> int:
        return self._transport.write(data)

    def close(self) -> None:
        """Leave it open."""

    def reopen(self) -> None:
        """Hang up, and call again."""
        self._transport.close()
        time.sleep(0.2)
        self._transport = self._line.open()

    def end(self) -> None:
        self._transport.close()


class _OnLine:
    """How to connect, and what a person does where there is one."""

    by_hand = True

    def __init__(self, kept: _Kept, rig: Rig, wanted: Wanted, period_us: int, lease: int) -> None:
        self.kept, self.rig, self.share, self.hands = kept, rig, wanted.share, wanted.hands
        self.period_us, self.lease = period_us, lease
        self._host: Host | None = None

    def connect(self) -> Host:
        self._host = Host(self.kept, self.rig, time, self.share)
        self._host.wire.forget()  # what was sent while nobody listened
        return self._host

    def press_estop(self, *, pressed: bool) -> None:
        self._ask("press the emergency stop, and keep it pressed" if pressed else "release the emergency stop")

    def kill_sensors(self, *, dead: bool) -> None:
        self._ask("unplug a sensor" if dead else "plug the sensor in again")

    def reboot(self) -> None:
        self._ask("switch the device off and on (its line must stay open)")

    def hang_up(self, host: Host) -> Host:
        if not self.hands:
            raise CheckSkipped("only a person knows whether the device can tell: --hands")
        if self._answer("can the device tell that this line is closed (USB, TCP; not a bare UART)? (yes, no)") != "yes":
            raise CheckSkipped("the device cannot detect it")
        self.kept.reopen()
        return self.connect()

    def _ask(self, what: str) -> None:
        if not self.hands:
            raise CheckSkipped("it needs hands: --hands")
        if self._answer(f"{what}, then Enter (s: skip)") == "s":
            raise CheckSkipped("skipped")

    def _answer(self, question: str) -> str:
        """A person's answer; the device's frames are read meanwhile, so that what comes after it is new."""
        print(f"  > {question} ", end="", flush=True)
        while self._host is not None and not select.select([sys.stdin], [], [], 0)[0]:
            self._host.listen(1)
        return sys.stdin.readline().strip().lower()


class _Paced(_OnLine, PacedConformance):
    pass


class _Lockstep(_OnLine, LockstepConformance):
    pass


def show_list(only: Sequence[str]) -> int:
    """Print the rules of the device with the number of checks that show each; returns the exit code."""
    found = [check for kind in (PacedConformance, LockstepConformance) for check in checks_of(kind, only)]
    checks = {(check.method, check.rules) for check in found}
    for number, sentence in _rules(only):
        n = sum(number in rules for _, rules in checks)
        print(f"{number}  {n:>2} checks  {sentence}")
    return ExitCode.OK


def _rules(only: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, sentence in sentences().items():
        if number.startswith("P") and (not only or number.startswith(tuple(only))):
            yield number, sentence


def examine(
    line: Line,
    rig: Rig | None,
    wanted: Wanted,
    confirm: Callable[[Rig], bool] | None,
) -> int:
    """Put the device on a line to the test; returns the exit code: 0, or 4 if a rule is broken or nothing answers.

    ``rig``: what the device must be; None: what it says.  ``confirm`` is asked before anything is driven.
    """
    if not __debug__:
        return complain("conformance", "Python runs without assertions here (-O, PYTHONOPTIMIZE): run it with them")
    if not any(True for _ in _rules(wanted.only)):
        unknown = " or ".join(wanted.only)
        return complain("conformance", f"--only: no rule of the device begins with {unknown}; see --list")
    try:
        kept = _Kept(line)
        with contextlib.ExitStack() as held:
            held.callback(kept.end)
            rig = rig or rig_of(kept, time)
            hello = DeviceSession(kept, rig, time).connect()
            if confirm is not None and not confirm(rig):
                return complain("conformance", "not confirmed; nothing was driven", ExitCode.PREFLIGHT)
            return _examine(kept, rig, hello, wanted)
    except (LinkError, DeviceMismatch, RequestRefused, WireError) as error:
        return complain("conformance", f"{line.place}: {error}", ExitCode.HARDWARE)


def _examine(kept: _Kept, rig: Rig, hello: Hello, wanted: Wanted) -> int:
    period_us = max(min(wanted.period_us, hello.period_max_us // _LONGEST), 2 * hello.period_min_us)
    kind: type[_Paced | _Lockstep] = _Lockstep if hello.time_scale == 0.0 else _Paced
    subject = kind(kept, rig, wanted, period_us, min(_LEASE, hello.lease_max))
    tally, checks = Tally(), checks_of(kind, wanted.only)
    print(f"{kept.name}: device '{hello.rig}', {len(checks)} checks at {period_us / 1000:g} ms", flush=True)
    for check in checks:
        outcome = run(subject, check)
        tally.outcomes.append(outcome)
        if outcome.verdict == "failed":
            print(f"failed: {check.name} ({', '.join(check.rules)})\n  {outcome.why}", flush=True)
    return conclude(tally, dict(_rules(wanted.only)))


def conclude(tally: Tally, wanted: dict[str, str]) -> int:
    """Print the verdict on each rule that was not found kept, and the count; returns the exit code."""
    failed, held, unseen = (tally.having(verdict, wanted) for verdict in ("failed", "holds", "not run"))
    for number in unseen:
        reasons = tally.reasons(number) or ["no check for this kind of device"]
        print(f"{number} not run ({'; '.join(reasons)}): {wanted[number]}")
    for number in failed:
        print(f"{number} FAILED: {wanted[number]}")
    print(f"{len(wanted)} rules: {len(held)} hold, {len(failed)} failed, {len(unseen)} not run")
    return ExitCode.HARDWARE if failed else ExitCode.OK


def confirmed(share: float, place: str, rig: Rig) -> bool:
    """Whether a person confirms what will move."""
    print(f"onrig conformance drives '{rig.name}' on {place} for about a minute, several times to and from:")
    for a in rig.actuators:
        low, high = (a.safe + share * (end - a.safe) for end in (a.low, a.high))
        print(f"  {a.name}: {low:.4g} to {high:.4g} {a.unit} (safe: {a.safe:.4g})")
    print("Keep clear, a hand on the e-stop.  Continue? (yes) ", end="", flush=True)
    return sys.stdin.readline().strip().lower() == "yes"
