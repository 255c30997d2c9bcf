"""The Python that runs Onrig."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

from onrig.tools.diagnosis.check import Check, failed, passed, warned
from onrig.tools.diagnosis.machine import Machine
from onrig.tools.diagnosis.needs import Needs

_OLDEST = (3, 11)
_NEWEST = (3, 13)
"""The tests of the core run up to here."""


def judge(version: tuple[int, int], full: str, *, gil: bool, isolated: bool) -> Iterator[Check]:
    """Judge a version, whether it has the interpreter lock, and whether it lives in an environment of its own."""
    where = "in a virtual environment" if isolated else "the system's own"
    found = f"Python {full}, {where}"
    if version < _OLDEST:
        yield failed("python", f"{found}: too old", "sudo apt install python3.11 python3.11-venv, then make setup")
    elif version > _NEWEST:
        newest = ".".join(map(str, _NEWEST))
        yield warned("python", f"{found}: newer than what Onrig is tested with", f"take Python 3.11 to {newest}")
    elif not gil:
        yield warned("python", f"{found}: without interpreter lock, never tested", "take an ordinary build of Python")
    else:
        yield passed("python", found)


def examine(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Look, and judge."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    isolated = sys.prefix != sys.base_prefix
    yield from judge(sys.version_info[:2], platform.python_version(), gil=bool(gil), isolated=isolated)
