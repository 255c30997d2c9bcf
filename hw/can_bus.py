"""Connection to a device on a CAN bus: payloads under two arbitration ids carry the protocol's byte stream."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from onrig.hw.line import Line
from onrig.hw.transport import READ_BYTES, LineClosed, LinkError, Transport

if TYPE_CHECKING:
    import can

_PAYLOAD_SIZES: Final = (*range(9),)
_FD_PAYLOAD_SIZES: Final = (*range(9), 12, 16, 20, 24, 32, 48, 64)
_STANDARD_IDS: Final = 1 << 11
_FRAME_BITS: Final = 135
_EXTENDED_FRAME_BITS: Final = 160
"""Maximum number of bits in a classical frame with eight data bytes and an 11-bit or (extended) 29-bit id, including
stuff bits and the interframe gap."""
_FRAME_BYTES: Final = 8
_NETWORK_FOLDER: Final = Path("/sys/class/net")
_CAN_DEVICE_TYPE: Final = "280"
_Id = Annotated[int, msgspec.Meta(ge=0, le=(1 << 29) - 1)]
_NS_PER_S: Final = 1_000_000_000


def split_payloads(data: bytes, *, fd: bool) -> Iterator[bytes]:
    """Split bytes into payloads of lengths that CAN (up to 8 bytes) or CAN FD (up to 64) carries without padding."""
    sizes = _FD_PAYLOAD_SIZES if fd else _PAYLOAD_SIZES
    while data:
        size = max(size for size in sizes if size <= len(data))
        yield data[:size]
        data = data[size:]


class CanTransport:
    """A Transport over a python-can bus, which it owns."""

    def __init__(self, bus: can.BusABC, name: str, send_id: int, receive_id: int, *, extended: bool, fd: bool) -> None:
        self._bus, self._name, self._id, self._receive_id = bus, name, send_id, receive_id
        self._extended, self._fd = extended, fd
        self._is_open = True

    @property
    def name(self) -> str:
        return self._name

    def fileno(self) -> int:
        """Return the bus's descriptor, or -1 if it has none."""
        try:
            return self._bus.fileno()
        except (NotImplementedError, AttributeError):
            return -1

    def read(self, timeout_ns: int) -> bytes:
        """Return the payloads that have arrived, in order.  Raises the same errors as ``Transport.read``."""
        data, deadline_ns = b"", time.monotonic_ns() + timeout_ns
        while len(data) <= READ_BYTES - _FD_PAYLOAD_SIZES[-1]:
            remaining_ns = 0 if data or timeout_ns <= 0 else max(deadline_ns - time.monotonic_ns(), 0)
            try:
                message = self._open_bus().recv(remaining_ns / _NS_PER_S)
            except (OSError, _can_error()) as error:
                raise self._closed_error(error) from error
            if message is None:
                break
            is_for_us = message.arbitration_id == self._receive_id and message.is_extended_id == self._extended
            if is_for_us and not (message.is_error_frame or message.is_remote_frame):
                data += bytes(message.data)
        return data

    def write(self, data: bytes) -> int:
        """Send without waiting and return the number of bytes accepted by the bus.

        Raises the same errors as ``Transport.read``.
        """
        import can

        bus, n_sent = self._open_bus(), 0
        for payload in split_payloads(data, fd=self._fd):
            message = can.Message(
                arbitration_id=self._id, is_extended_id=self._extended, is_fd=self._fd, data=payload, check=False
            )
            try:
                bus.send(message, timeout=0.0)
            except can.CanOperationError as error:
                if _is_buffer_full(error):
                    break
                raise self._closed_error(error) from error
            except (OSError, can.CanError) as error:
                raise self._closed_error(error) from error
            n_sent += len(payload)
        return n_sent

    def close(self) -> None:
        """Close the bus; closing twice is harmless."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError, _can_error()):
                self._bus.shutdown()

    def _open_bus(self) -> can.BusABC:
        if not self._is_open:
            raise LinkError(f"{self._name}: the bus was closed by this process")
        return self._bus

    def _closed_error(self, error: Exception) -> LineClosed:
        return LineClosed(f"{self._name}: {error}; check the interface (`ip -details link`), cable and terminators")


def _can_error() -> type[Exception]:
    import can

    return can.CanError


def _is_buffer_full(error: Exception) -> bool:
    """Whether a frame was rejected because the interface's buffer is full."""
    text = str(error).lower()
    return "buffer" in text or "full" in text or getattr(error, "error_code", None) == 105  # ENOBUFS


class Can(Line, frozen=True, forbid_unknown_fields=True, tag="can"):
    """A device on a CAN bus, through python-can (extra ``can``)."""

    channel: str
    """python-can channel, such as can0 for socketcan or a multicast address for udp_multicast."""
    interface: str = "socketcan"
    """python-can interface."""
    command_id: _Id = 0x100
    """Arbitration id of frames from the host to the device; the lower of the two ids has priority."""
    state_id: _Id = 0x101
    """Arbitration id of frames from the device to the host."""
    extended: bool = False
    """Whether both ids have 29 bits instead of 11."""
    fd: bool = False
    """Whether to use CAN FD, with payloads of up to 64 bytes instead of 8."""
    bitrate: Annotated[int, msgspec.Meta(ge=1000, le=10_000_000)] | msgspec.UnsetType = msgspec.UNSET
    """Bit rate in bit/s, for interfaces that do not set one themselves; `onrig check` uses it to estimate the time on
    the bus."""
    options: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    """Additional arguments for python-can's ``Bus``."""

    def __post_init__(self) -> None:
        """Check the ids.  Raises ValueError if they are equal or too long for the bus."""
        if self.command_id == self.state_id:
            raise ValueError(f"command_id and state_id are both {self.command_id:#x}: give two different ids")
        if not self.extended and max(self.command_id, self.state_id) >= _STANDARD_IDS:
            raise ValueError(f"{max(self.command_id, self.state_id):#x} has more than 11 bits: set extended")

    @property
    def address(self) -> str:
        return f"{self.interface}:{self.channel}"

    def open(self) -> Transport:
        return self.open_end(self.command_id, self.state_id)

    def open_end(self, send_id: int, receive_id: int) -> CanTransport:
        """Open one end of the connection: the host's or, with the ids swapped, a device's.  Raises LinkError."""
        try:
            import can
        except ImportError as error:
            raise LinkError(f"{self.address}: python-can is missing: pip install 'onrig[can]'") from error
        options: dict[str, Any] = {} if self.bitrate is msgspec.UNSET else {"bitrate": self.bitrate}
        options |= {"fd": True} if self.fd else {}
        try:
            bus = can.Bus(
                interface=self.interface,
                channel=self.channel,
                can_filters=self._kernel_filters(receive_id),
                **options,
                **self.options,  # type: ignore[arg-type]
            )
        except (OSError, ValueError, TypeError, ImportError, NotImplementedError, can.CanError) as error:
            raise LinkError(f"{self.address}: cannot be opened ({error}); check interface and channel") from error
        return CanTransport(bus, self.address, send_id, receive_id, extended=self.extended, fd=self.fd)

    def _kernel_filters(self, receive_id: int) -> list[can.typechecking.CanFilter] | None:
        """Return the receive filters for the kernel to apply; None if the interface is not socketcan.

        python-can's own filters would end a read at each dropped message.
        """
        mask = (1 << 29) - 1 if self.extended else _STANDARD_IDS - 1
        filters: list[can.typechecking.CanFilter] = [
            {"can_id": receive_id, "can_mask": mask, "extended": self.extended}
        ]
        return filters if self.interface == "socketcan" else None

    def duration_us(self, sizes: list[int]) -> float:
        """Return the duration (us) of classical frames at ``bitrate`` with the maximum number of stuff bits.

        It is 0 for CAN FD or without ``bitrate``.
        """
        if self.bitrate is msgspec.UNSET or self.fd:
            return 0.0
        bits = _EXTENDED_FRAME_BITS if self.extended else _FRAME_BITS
        return 1e6 * sum(math.ceil(size / _FRAME_BYTES) for size in sizes) * bits / self.bitrate

    @classmethod
    def find_addresses(cls) -> Iterator[str]:
        """Yield the kernel's CAN interfaces."""
        for network in sorted(_NETWORK_FOLDER.glob("*")):
            with contextlib.suppress(OSError):
                if (network / "type").read_text().strip() == _CAN_DEVICE_TYPE:
                    yield f"socketcan:{network.name}"
