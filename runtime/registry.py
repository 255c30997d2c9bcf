"""What can be chosen by name: pieces that installed packages register as entry points, Onrig's own among them.

A registered object describes its piece: settings, needs, checks, memory, and where the code is, which is loaded when it
is used.  Names are known without an import.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from functools import cache
from typing import Any, Final, NamedTuple

ALGORITHMS: Final = "onrig.algorithms"
"""Classes of the ``learner`` section (``onrig.learner.algorithm_config.AlgorithmConfig``), by the algorithm's name."""
SAMPLERS: Final = "onrig.samplers"
"""Descriptions of samplings (``onrig.runtime.replay.memory.strategy.Sampling``), by the name in the notation."""
_OURS: Final = "onrig"


class _Entry(NamedTuple):
    package: str
    point: importlib.metadata.EntryPoint


@cache
def _registered() -> list[_Entry]:
    """Entry points of all groups here, of every installed package."""
    # Not `entry_points`: of two distributions of one name it takes the first, such as leftovers of a build.
    found = []
    for distribution in importlib.metadata.distributions():
        points = [point for point in distribution.entry_points if point.group in (ALGORITHMS, SAMPLERS)]
        if points:
            package = distribution.name  # parses the distribution's metadata with its README: once, not per entry
            found += [_Entry(package, point) for point in points]
    return found


@cache
def _entries(group: str) -> dict[str, _Entry]:
    """Entry points by name, Onrig's own first; raises ValueError where two packages register the same name."""
    found: dict[str, _Entry] = {}
    entries = [entry for entry in _registered() if entry.point.group == group]
    for entry in sorted(entries, key=lambda entry: entry.package != _OURS):
        first = found.setdefault(entry.point.name, entry)
        if first.package != entry.package:
            both = f"{first.package} and {entry.package}"
            raise ValueError(f"{both} both register '{entry.point.name}' in {group}: uninstall one of them")
    if not any(entry.package == _OURS for entry in entries):
        raise ValueError(f"the installation is older than its code and has no {group}: install it again (`make setup`)")
    return found


def names(group: str) -> tuple[str, ...]:
    """Names in a group."""
    return tuple(_entries(group))


def loadable(group: str) -> dict[str, Any]:
    """The objects of a group by name, without those that do not load: a broken package is told of where it is used."""
    found = {}
    for name in names(group):
        with contextlib.suppress(ValueError):
            found[name] = load(group, name)
    return found


@cache
def load(group: str, name: str) -> Any:
    """The object that is registered under a name.

    Raises KeyError for an unknown name, and ValueError with the package where loading it fails.
    """
    package, point = _entries(group)[name]
    try:
        return point.load()
    except Exception as error:
        raise ValueError(f"{package} registers '{name}' in {group}, which does not load: {error}") from error
