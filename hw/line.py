"""Lines to a device: descriptions, chosen by ``kind`` in ``device.transport``, the serial port among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from onrig.hw.transport import DEFAULT_BAUD_RATE, Transport, open_port

_BITS_PER_BYTE = 10


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Description of a line; a subclass adds its settings as fields, and its name as the tag."""

    returns: ClassVar[bool] = True
    """Whether a device that went away can come back under the same address: a run in real time waits for it."""
    disarms: ClassVar[bool] = True
    """Whether ``onrig disarm`` may open it while no run has it."""
    identifies: ClassVar[bool] = True
    """Whether ``onrig identify`` may drive the device behind it."""

    @property
    def place(self) -> str:
        """Address of the device in messages, in one line."""
        raise NotImplementedError

    def open(self) -> Transport:
        """Open the line, in bounded time; raises LinkError with what, where and the remedy.

        The loop reads and writes the transport in its tick: its waits must end at their deadline, to microseconds if
        they can, and a write must not wait at all (``onrig.hw.transport.DescriptorTransport`` does both for a
        descriptor).
        """
        raise NotImplementedError

    def at(self, place: str) -> Line:
        """The line to a device found at ``place``; lines whose address is their setting ignore it."""
        return self

    def duration_us(self, sizes: list[int]) -> float:
        """Time that frames of these sizes (bytes) take on the wire; 0 where it does not count."""
        return 0.0

    @classmethod
    def found(cls) -> Iterator[str]:
        """Addresses of this machine at which devices may be, for ``onrig ports``, found without opening any."""
        return iter(())


class Serial(Line, frozen=True, forbid_unknown_fields=True, tag="serial"):
    """A serial port, a pseudo terminal, or a twin's Unix socket."""

    path: str
    """Device file, e.g. /dev/ttyACM0 or one of /dev/serial/by-id."""
    baud: Annotated[int, msgspec.Meta(ge=50, le=20_000_000)] = DEFAULT_BAUD_RATE
    """Default: that of the twin on a serial port."""

    @property
    def place(self) -> str:
        return self.path

    def open(self) -> Transport:
        return open_port(self.path, self.baud)

    def at(self, place: str) -> Serial:
        return msgspec.structs.replace(self, path=place)

    def duration_us(self, sizes: list[int]) -> float:
        """Start bit, eight bits and stop bit of each byte."""
        return 1e6 * _BITS_PER_BYTE * sum(sizes) / self.baud
