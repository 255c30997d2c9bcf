"""Settings that may change when a run is resumed; every other difference is rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from onrig.runtime.config.problem import NodePath, format_path
from onrig.runtime.run_config import RunConfig, to_plain_data

_CHANGEABLE: Final[frozenset[NodePath]] = frozenset(
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
        ("device", "cameras"),
        ("learner", "backlog"),
        ("view",),
    }
)
"""Settings that may change to any value, because none affects learning (except for schedules over ``episodes``)."""

ChangePredicate = Callable[[Any, Any], bool]
"""Function that returns whether a setting may change from the run's value to the requested one (None if absent)."""


def _is_within(run: Any, requested: Any) -> bool:
    return requested is not None and (run is None or (run[0] <= requested[0] and requested[1] <= run[1]))


def _is_not_above(run: Any, requested: Any) -> bool:
    return requested is not None and (run is None or requested <= run)


def _is_narrower(run: Any, requested: Any) -> bool:
    if run is None or requested is None:
        return requested is not None
    bounds = [(envelope["low"], envelope["high"]) for envelope in (run, requested)]
    return _is_within(*bounds) and requested["release"] <= run["release"]


_STRICTER_ONLY: Final[dict[NodePath, ChangePredicate]] = {
    ("limits", "range", "*"): _is_within,
    ("limits", "rate_per_s", "*"): _is_not_above,
    ("limits", "jerk_per_s2", "*"): _is_not_above,
    ("limits", "envelope", "*"): _is_narrower,
    ("limits", "predicted"): lambda run, requested: run is None,
    ("limits", "unguarded"): lambda run, requested: not requested,
}
"""Settings that may only become stricter; ``*`` matches any last element of a path."""


_CONNECTION_PATHS: Final = (("device", "port"), ("device", "transport"))


class Difference(NamedTuple):
    """A value that differs between two configurations; None if missing."""

    path: NodePath
    run: object
    requested: object

    def __str__(self) -> str:
        text = (
            f"{format_path(self.path)} is {_format_value(self.run)} in the run and {_format_value(self.requested)} here"
        )
        return f"{text}; it may only become stricter" if _stricter_predicate(self.path) is not None else text


class Changes(NamedTuple):
    """Differences between a run's configuration and the one it is resumed with."""

    refused: list[Difference]
    permitted: list[Difference]


def compare_configs(run: RunConfig, requested: RunConfig) -> Changes:
    """Compare a run's configuration with the one it is resumed with."""
    result = Changes([], [])
    for difference in differences((), to_plain_data(run), to_plain_data(requested)):
        result.permitted.append(difference) if _is_permitted(difference) else result.refused.append(difference)
    return result


def differences(node_path: NodePath, run: object, requested: object) -> Iterator[Difference]:
    """List the values that differ between two sections at the same path, given as plain data."""
    if isinstance(run, Mapping) and isinstance(requested, Mapping) and (*node_path[:-1], "*") not in _STRICTER_ONLY:
        for key in dict.fromkeys((*run, *requested)):
            yield from differences((*node_path, str(key)), run.get(key), requested.get(key))
    elif run != requested and not (run != run and requested != requested):
        yield Difference(node_path, run, requested)


def _is_permitted(difference: Difference) -> bool:
    path, run, requested = difference
    if path[:2] in _CONNECTION_PATHS:  # a different port may lead to the same device; a twin is a different device
        return not (len(path) == 2 and None in (run, requested))
    if any(path[:n] in _CHANGEABLE for n in range(1, len(path) + 1)):
        return True
    is_allowed = _stricter_predicate(path)
    return is_allowed is not None and is_allowed(run, requested)


def _stricter_predicate(path: NodePath) -> ChangePredicate | None:
    return _STRICTER_ONLY.get(path) or _STRICTER_ONLY.get((*path[:-1], "*"))


def _format_value(value: object) -> str:
    text = "absent" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
