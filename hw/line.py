"""Connections to a device: descriptions selected by ``kind`` in ``device.transport``, and the serial port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from onrig.hw.transport import DEFAULT_BAUD_RATE, Transport, open_port

_BITS_PER_BYTE = 10


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Description of a connection; a subclass adds its settings as fields and its name as the tag."""

    may_reconnect: ClassVar[bool] = True
    """Whether a lost device may reconnect under the same address; a run in real time waits for it."""
    allows_disarm: ClassVar[bool] = True
    """Whether ``onrig disarm`` may open it when no run uses it."""
    allows_identification: ClassVar[bool] = True
    """Whether ``onrig identify`` may drive the connected device."""

    @property
    def address(self) -> str:
        """Address of the device in messages, in one line."""
        raise NotImplementedError

    def open(self) -> Transport:
        """Open the connection in bounded time.

        The loop reads and writes the transport within its tick, so waits must end at their deadline, accurate to
        microseconds if possible, and a write must never wait.  ``onrig.hw.transport.DescriptorTransport`` provides both
        for a descriptor.  Raises LinkError, whose message states what failed, where, and the remedy.
        """
        raise NotImplementedError

    def with_address(self, address: str) -> Line:
        """Return the connection to a device found at ``address``.

        By default, return this connection, whose settings already contain an address.
        """
        return self

    def duration_us(self, sizes: list[int]) -> float:
        """Return the duration (us) of frames of these sizes (bytes) on the wire; 0 if negligible."""
        return 0.0

    @classmethod
    def find_addresses(cls) -> Iterator[str]:
        """Yield addresses on this machine at which devices may be found, for ``onrig ports``, without opening any."""
        return iter(())


class Serial(Line, frozen=True, forbid_unknown_fields=True, tag="serial"):
    """A serial port, a pseudo terminal, or a twin's Unix socket."""

    path: str
    """Device file, e.g. /dev/ttyACM0 or a link in /dev/serial/by-id."""
    baud: Annotated[int, msgspec.Meta(ge=50, le=20_000_000)] = DEFAULT_BAUD_RATE
    """Baud rate; default: the rate of a twin on a serial port."""

    @property
    def address(self) -> str:
        return self.path

    def open(self) -> Transport:
        return open_port(self.path, self.baud)

    def with_address(self, address: str) -> Serial:
        return msgspec.structs.replace(self, path=address)

    def duration_us(self, sizes: list[int]) -> float:
        """Return the duration (us) with a start bit, eight data bits and a stop bit per byte."""
        return 1e6 * _BITS_PER_BYTE * sum(sizes) / self.baud
