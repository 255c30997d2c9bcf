"""From a run's configuration to a rig that listens: keys are read and looked at first, then the doors open."""

from __future__ import annotations

from pathlib import Path

import zmq

from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import load_rig_keys
from onrig.runtime.link.server import LinkServer, TcpDoor
from onrig.runtime.link.settings import Link


class Unreachable(Exception):
    """An endpoint cannot be listened at; says why."""


def listen(local: str, link: Link) -> LinkServer:
    """Listen at ``local`` (ipc) and where ``link`` says; raises KeyFault, or Unreachable when an address is taken."""
    try:
        return LinkServer(local, _door(link))
    except zmq.ZMQError as error:
        raise Unreachable(f"{link.listen or local}: {zmq.strerror(error.errno or 0)}; see link.listen") from None
    except OSError as error:
        raise Unreachable(f"{link.listen}: {error.strerror or error}; see link.listen") from None


def _door(link: Link) -> TcpDoor | None:
    if link.listen is None:
        return None
    keys = None if link.keys is None else load_rig_keys(Path(link.keys).expanduser())
    return TcpDoor(parse_tcp(link.listen), keys)
