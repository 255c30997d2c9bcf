"""What watches over a rig: demanded of one that is made of matter, missed aloud of a twin."""

from __future__ import annotations

from collections.abc import Iterator

from onrig.runtime.config.problem import NodePath
from onrig.runtime.config.schema import RunConfig

Finding = tuple[NodePath, str]


def guard_findings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for guards that a rig on a port must not be without."""
    limits = config.limits
    unguarded = limits.unguarded is True
    if unguarded and limits.envelope:
        yield ("limits", "unguarded"), "there is an envelope: leave this out at limits.unguarded"
    if _is_matter(config) and not limits.envelope and not unguarded:
        yield (
            ("limits", "envelope"),
            f"{_subject(config)}: give an observation its bounds and a fallback that keeps them, or "
            "accept that only the device's own limits guard it, with limits.unguarded: true, at limits.envelope",
        )


def guard_warnings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for guards that are missing where that is allowed; the configuration is sound."""
    if not config.limits.envelope:
        after = (
            "" if _is_matter(config) else "; a rig on a port is refused without, unless it has limits.unguarded: true"
        )
        yield ("limits", "envelope"), f"{_subject(config)}{after}, at limits.envelope"
    if _is_matter(config) and config.task.reset is None:
        yield (
            ("task", "reset"),
            "nothing here brings the rig back to its start: only a device that does so by itself (RESET in its hello) "
            "will be accepted, at task.reset",
        )


def _is_matter(config: RunConfig) -> bool:
    """Whether a port may lead to hardware: what is scaled or in lockstep is a twin behind it."""
    return config.device.port is not None and config.device.pace == "realtime"


def _subject(config: RunConfig) -> str:
    port = config.device.port
    what = "this twin" if port is None else f"the rig on {port.path}"
    ends = "" if config.task.terminate else ", nor does its episode end early"
    return f"{what} has no envelope: whatever its state does, no fallback acts{ends}"
