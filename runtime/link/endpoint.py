"""Where a rig listens and a learner connects: which endpoints there may be, and which of them stay on the machine."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

_TCP: Final = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.*-]+):(?P<port>\d{1,5})", re.ASCII)


class Tcp(NamedTuple):
    """A tcp endpoint as ZeroMQ writes it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether nobody outside this machine can reach it: a literal loopback address, or ``localhost``."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def ipv6(self) -> bool:
        """Whether ZeroMQ must be told that the address is one of IPv6."""
        return self.host.startswith("[")


def parse_tcp(text: str) -> Tcp:
    """Read ``tcp://HOST:PORT`` (``*`` for every interface, IPv6 in brackets); ValueError says what is wrong."""
    match = _TCP.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no endpoint; it reads tcp://HOST:PORT, with * for every interface")
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"there is no port {port}; ports go up to 65535")
    return Tcp(match["host"], port)
