"""Settings that may change when a run is resumed; every other difference is rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from onrig.runtime.config.problem import NodePath, format_path
from onrig.runtime.run_config import RunConfig, written

_FREE: Final[frozenset[NodePath]] = frozenset(
    {
        ("episodes",),
        ("evaluate_every",),
        ("checkpoint_s",),
        ("barrier_timeout_s",),
        ("local_learner",),
        ("realtime",),
        ("supervision",),
        ("link",),
        ("log",),
        ("staleness",),
        ("device", "port"),
        ("device", "transport"),
        ("device", "reconnect_s"),
        ("device", "attended"),
        ("learner", "backlog"),
        ("view",),
    }
)
"""Settings that may change to any value: except for schedules over ``episodes``, none affects learning."""

Allowed = Callable[[Any, Any], bool]
"""Predicate of a permitted change, from the run's to the requested value (None if absent)."""


def _within(run: Any, wanted: Any) -> bool:
    return wanted is not None and (run is None or (run[0] <= wanted[0] and wanted[1] <= run[1]))


def _not_above(run: Any, wanted: Any) -> bool:
    return wanted is not None and (run is None or wanted <= run)


def _narrower(run: Any, wanted: Any) -> bool:
    if run is None or wanted is None:
        return wanted is not None
    bounds = [(envelope["low"], envelope["high"]) for envelope in (run, wanted)]
    return _within(*bounds) and wanted["release"] <= run["release"]


_TIGHTER: Final[dict[NodePath, Allowed]] = {
    ("limits", "range", "*"): _within,
    ("limits", "rate_per_s", "*"): _not_above,
    ("limits", "jerk_per_s2", "*"): _not_above,
    ("limits", "envelope", "*"): _narrower,
    ("limits", "predicted"): lambda run, wanted: run is None,
    ("limits", "unguarded"): lambda run, wanted: not wanted,
}
"""Settings that may only become stricter; ``*`` matches any last name of a path."""


_LINES: Final = (("device", "port"), ("device", "transport"))


class Difference(NamedTuple):
    """A value that differs between two configurations; None if missing."""

    path: NodePath
    run: object
    wanted: object

    def __str__(self) -> str:
        text = f"{format_path(self.path)} is {_shown(self.run)} in the run and {_shown(self.wanted)} here"
        return f"{text}; it may only become stricter" if _rule(self.path) is not None else text


class Changes(NamedTuple):
    """Differences between a run's configuration and the one that resumes it."""

    refused: list[Difference]
    permitted: list[Difference]


def changes(run: RunConfig, wanted: RunConfig) -> Changes:
    """Compare a run's configuration with the one that resumes it."""
    found = Changes([], [])
    for difference in differences((), written(run), written(wanted)):
        found.permitted.append(difference) if _is_permitted(difference) else found.refused.append(difference)
    return found


def differences(node_path: NodePath, run: object, wanted: object) -> Iterator[Difference]:
    """List the values that differ between two sections at a path, in plain data."""
    if isinstance(run, Mapping) and isinstance(wanted, Mapping) and (*node_path[:-1], "*") not in _TIGHTER:
        for key in dict.fromkeys((*run, *wanted)):
            yield from differences((*node_path, str(key)), run.get(key), wanted.get(key))
    elif run != wanted and not (run != run and wanted != wanted):
        yield Difference(node_path, run, wanted)


def _is_permitted(difference: Difference) -> bool:
    path, run, wanted = difference
    if path[:2] in _LINES:  # another port may lead to the same device, a twin is a different one
        return not (len(path) == 2 and None in (run, wanted))
    if any(path[:n] in _FREE for n in range(1, len(path) + 1)):
        return True
    rule = _rule(path)
    return rule is not None and rule(run, wanted)


def _rule(path: NodePath) -> Allowed | None:
    return _TIGHTER.get(path) or _TIGHTER.get((*path[:-1], "*"))


def _shown(value: object) -> str:
    text = "absent" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
