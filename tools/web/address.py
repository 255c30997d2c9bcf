"""Where the page is served: what ``--web`` may say, and a socket for it."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
from typing import Final, NamedTuple

TOKEN: Final = "ONRIG_WEB_TOKEN"
"""Environment variable (a command line is for all to see) with the token of a page that is started again."""
FIRST_PORT: Final = 8089
_TRIED: Final = 20
_BACKLOG: Final = 128
_ANY: Final = ("", "*", "0.0.0.0", "::")
_NOWHERE: Final = "192.0.2.1"
"""An address for documentation: asking for a route to it sends nothing and names this machine's own address."""


class Address(NamedTuple):
    """What was asked for."""

    host: str
    port: int | None
    """None: the first free one from 8089 on."""

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can connect."""
        if self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


def parse_address(text: str) -> Address:
    """Read ``""`` (loopback), ``PORT``, ``HOST:PORT`` or ``[HOST]:PORT``; raises ValueError with what is wrong."""
    host, _, port = text.rpartition(":")
    if not text:
        return Address("127.0.0.1", None)
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"expected PORT or HOST:PORT with a port from 1 to 65535, got '{text}'")
    if not host:
        return Address("0.0.0.0" if text.startswith(":") else "127.0.0.1", int(port))
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address stands in brackets: [{host}]:{port}")
    return Address("0.0.0.0" if host == "*" else host, int(port))


def listen_at(address: Address) -> socket.socket:
    """Bind and listen; raises OSError with a message of its own where that cannot be."""
    ports = [address.port] if address.port is not None else list(range(FIRST_PORT, FIRST_PORT + _TRIED))
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    failure: OSError | None = None
    for port in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address.host, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            failure = error
            continue
        return listening
    why = failure.strerror if failure is not None else "no port"
    where = f"{address.host}:{ports[0]}" if len(ports) == 1 else f"{address.host}, ports {ports[0]} to {ports[-1]}"
    raise OSError(f"{where}: {why}; choose another with --web PORT")


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


def url_of(address: Address, port: int, token: str | None) -> str:
    """What a person opens."""
    host = own_address() if address.host in _ANY else address.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def own_address() -> str:
    """This machine's address as others see it; its name where it has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_NOWHERE, 9))
        return str(probe.getsockname()[0])
    return socket.gethostname()
