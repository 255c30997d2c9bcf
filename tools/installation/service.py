"""What a service is about, as the texts of its files need it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MARK = "# Written by Onrig (onrig service CONFIG --write), which replaces it."
"""First line of every file: only files that begin so are ever replaced."""


class UsbIdentity(NamedTuple):
    """What a USB adapter says of itself; hexadecimal as in /sys."""

    vendor: str
    product: str
    serial: str
    """Empty where it has none: then two of a kind cannot be told apart."""


class Service(NamedTuple):
    """One rig that the machine starts by itself."""

    name: str
    """Of the configuration: the unit is ``onrig-NAME.service``."""
    rig: str
    user: str
    group: str
    """That may open the port."""
    python: str
    config: Path
    overrides: tuple[str, ...]
    folder: Path
    """Where run folders go (in ``runs``)."""
    port: str
    port_given: bool
    """The port stands in for the one that the configuration names."""
    baud: int
    device: str
    """What the port leads to: /dev/ttyUSB0."""
    usb: UsbIdentity | None
    """None where the port is no USB adapter."""
    fade_s: float
    for_user: bool
    """A unit of the user's own manager, without root."""

    @property
    def unit(self) -> str:
        """Name of the unit."""
        return f"onrig-{self.name}.service"


class Artifact(NamedTuple):
    """A file to be written."""

    path: Path
    text: str


def service_name(config: str) -> str:
    """Name of a service from that of its configuration: what systemd, udev and a symlink all take."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(config).stem).strip("-") or "rig"
