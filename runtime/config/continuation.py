"""What may change when a run goes on after it has ended, and what would make another run of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.config.problem import NodePath, format_path
from onrig.runtime.config.schema import RunConfig

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
        ("learner", "threads"),
        ("learner", "backlog"),
    }
)
"""How long, how durable, how punctual, how watched, on which line: nothing of it says what is learned, or how."""


class Difference(NamedTuple):
    """A value that two configurations do not share; one that is not there is None."""

    path: NodePath
    run: object
    wanted: object

    def __str__(self) -> str:
        return f"{format_path(self.path)} is {_shown(self.run)} in the run and {_shown(self.wanted)} here"


def differences(run: RunConfig, wanted: RunConfig) -> list[Difference]:
    """List what keeps ``wanted`` from being the continuation of ``run``; empty where it is."""
    return list(_compared((), msgspec.to_builtins(run), msgspec.to_builtins(wanted)))


def _compared(at: NodePath, run: object, wanted: object) -> Iterator[Difference]:
    if at in _FREE and not (at == ("device", "port") and None in (run, wanted)):
        return
    if isinstance(run, Mapping) and isinstance(wanted, Mapping):
        for key in dict.fromkeys((*run, *wanted)):
            yield from _compared((*at, str(key)), run.get(key), wanted.get(key))
    elif run != wanted and not (run != run and wanted != wanted):
        yield Difference(at, run, wanted)


def _shown(value: object) -> str:
    text = "absent" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
