"""The section ``link`` of a run: where it listens for learners of other machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from onrig.runtime.config.problem import NodePath
from onrig.runtime.link.endpoint import parse_tcp

_REMEDY: Final = "make keys with `onrig keys DIR` and name their folder in link.keys"


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where learners on other machines connect; those on this one have a door of their own."""

    listen: str | None = None
    """``tcp://HOST:PORT``, ``*`` for every interface; null: nobody from outside."""
    keys: str | None = None
    """The rig's folder of keys (`onrig keys`)."""
    allow_plain_loopback: bool = False
    """Without keys: let whoever is on this machine connect, unencrypted, to a loopback address."""
    admissions_per_s: Annotated[float, msgspec.Meta(ge=0.01, le=1000.0)] | msgspec.UnsetType = msgspec.UNSET
    """Policies that are judged per second of device time (not in lockstep: one at each barrier)."""


def link_findings(link: Link) -> Iterator[tuple[NodePath, str]]:
    """List (path, message) for a link that would be open to others, or does not work."""
    at = ("link", "listen")
    if link.listen is None:
        if link.keys is not None:
            yield ("link", "keys"), "keys are of no use where nobody listens; say where: link.listen at link.keys"
        return
    try:
        tcp = parse_tcp(link.listen)
    except ValueError as error:
        yield at, f"{error} at link.listen"
        return
    if link.keys is not None:
        return
    if not tcp.loopback:
        yield at, f"{link.listen} is open to other machines and there are no keys; {_REMEDY} at link.listen"
    elif not link.allow_plain_loopback:
        yield (
            at,
            f"plain tcp, without keys, needs link.allow_plain_loopback: true, or {_REMEDY} at link.listen",
        )
