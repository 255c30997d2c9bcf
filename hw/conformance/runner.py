"""Execution of checks against a device, and the resulting verdict on each rule: holds, failed or not run."""

from __future__ import annotations

import inspect
import itertools
import linecache
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from onrig.hw.conformance.check import Cases, CheckSkipped
from onrig.hw.conformance.device import DeviceConformance
from onrig.hw.conformance.page import rules as numbers
from onrig.hw.identity import DeviceMismatch
from onrig.hw.session import RequestRefused
from onrig.hw.transport import LinkError

_HERE: Final = Path(__file__).parent
Verdict = Literal["holds", "failed", "not run"]


class Check(NamedTuple):
    """A check with the arguments of one case."""

    name: str
    """Method name in words, with the case in brackets."""
    rules: tuple[str, ...]
    method: str
    arguments: dict[str, Any]
    fixtures: tuple[str, ...]
    """Fixtures that the method takes: ``host``, ``armed`` or both."""


class Outcome(NamedTuple):
    """Result of a check."""

    check: Check
    verdict: Verdict
    reason: str = ""


def checks_of(kind: type[DeviceConformance], rule_prefixes: Collection[str] = ()) -> list[Check]:
    """Return a class's checks in page order; with ``rule_prefixes``, only those that cover a matching rule."""
    order = {number: position for position, number in enumerate(numbers())}
    checks = [check for name, method in inspect.getmembers(kind, callable) for check in _cases(name, method)]
    selected = [
        check for check in checks if not rule_prefixes or any(n.startswith(tuple(rule_prefixes)) for n in check.rules)
    ]
    return sorted(selected, key=lambda check: min(order[number] for number in check.rules))


def _cases(name: str, method: Callable[..., Any]) -> Iterator[Check]:
    if not name.startswith("test_") or not getattr(method, "rules", ()):
        return
    marks: tuple[Cases, ...] = getattr(method, "cases", ())
    fixtures = tuple(n for n in inspect.signature(method).parameters if n in ("host", "armed"))
    for rows in itertools.product(*(zip(mark.rows, mark.ids, strict=True) for mark in marks)):
        marked_rows = zip(marks, rows, strict=True)
        arguments = {key: value for mark, (row, _) in marked_rows for key, value in zip(mark.names, row, strict=True)}
        case = ", ".join(case_id for _, case_id in rows)
        title = name.removeprefix("test_").replace("_", " ")
        yield Check(f"{title} [{case}]" if case else title, method.rules, name, arguments, fixtures)  # type: ignore[attr-defined]


def run(device: DeviceConformance, check: Check) -> Outcome:
    """Run one check.  Raises LinkError or DeviceMismatch if the connection to the device fails."""
    host = device.connect()
    try:
        fixtures = {"host": lambda: host, "armed": lambda: device.configure_and_arm(host)}
        getattr(device, check.method)(**{fixture: fixtures[fixture]() for fixture in check.fixtures}, **check.arguments)
    except CheckSkipped as reason:
        return Outcome(check, "not run", str(reason))
    except AssertionError as error:
        return Outcome(check, "failed", _describe_failure(error))
    except (LinkError, RequestRefused, DeviceMismatch, ValueError) as error:  # ValueError: undecodable messages
        return Outcome(check, "failed", str(error))
    finally:
        host.close()
    return Outcome(check, "holds")


def _describe_failure(error: AssertionError) -> str:
    """Describe the failed condition by its source text, the short values of its local variables and its location."""
    steps = [
        step for step in traceback.walk_tb(error.__traceback__) if Path(step[0].f_code.co_filename).parent == _HERE
    ]
    frame, line = steps[-1]
    condition = linecache.getline(frame.f_code.co_filename, line).strip().removeprefix("assert ")
    message = f"{error}: " if str(error) and not str(error).startswith("assert ") else ""
    values = ", ".join(_describe_values(condition, frame.f_locals))
    suffix = f" with {values}" if values else ""
    return f"{message}{condition}{suffix} ({Path(frame.f_code.co_filename).name}:{line})"


def _describe_values(condition: str, local_values: dict[str, Any]) -> Iterator[str]:
    """Yield the local variables that a condition mentions, with their values, except long ones."""
    for name, value in local_values.items():
        text = repr(value)
        if name in condition and name not in ("self", "host", "armed") and len(text) <= 400 and "<" not in text:
            yield f"{name} = {text}"


class Tally:
    """Verdicts on rules, from the outcomes of the checks that cover them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def verdict(self, rule_id: str) -> Verdict:
        """Return ``failed`` if any check of a rule failed, ``holds`` if one held, otherwise ``not run``."""
        verdicts = {outcome.verdict for outcome in self.outcomes if rule_id in outcome.check.rules}
        return "failed" if "failed" in verdicts else "holds" if "holds" in verdicts else "not run"

    def rules_with(self, verdict: Verdict, among: Iterable[str]) -> list[str]:
        """Return the given rules whose verdict is ``verdict``, in the given order."""
        return [number for number in among if self.verdict(number) == verdict]

    def skip_reasons(self, rule_id: str) -> list[str]:
        """Return the reasons why checks of a rule were not run, without duplicates."""
        all_reasons = [o.reason for o in self.outcomes if rule_id in o.check.rules and o.verdict == "not run"]
        return list(dict.fromkeys(all_reasons))
