"""The manifest of a checkpoint (JSON on one line, its CRC on the next) and the identity of the memory."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import read_file
from onrig.runtime.memory.keepers.keeper import Keeper
from onrig.runtime.memory.storage import Storage
from onrig.runtime.memory.strategy import Strategy
from onrig.runtime.replay.checkpoint.blocks import CorruptionError


class Experiences(Protocol):
    """Parts of :class:`~onrig.runtime.replay.experiences.Memory` that are saved and restored."""

    storage: Storage
    keeper: Keeper
    strategy: Strategy
    offered: int
    stale_errors: int


class Identity(msgspec.Struct, frozen=True):
    """Properties that must match for a checkpoint to be restored into a memory."""

    capacity: int
    n_obs: int
    n_act: int
    strategy: str
    seed: int
    behaviour: bool = False
    """Whether rows hold the behaviour of a stochastic policy."""

    def difference(self, expected: Identity) -> str | None:
        """Describe the first difference from ``expected``; return None if there is none."""
        for field, unit in (
            ("capacity", " experiences"),
            ("n_obs", " observations"),
            ("n_act", " actions"),
            ("strategy", " as its strategy"),
            ("seed", " as its seed"),
            ("behaviour", " for the behaviour of a stochastic policy"),
        ):
            own_value, expected_value = getattr(self, field), getattr(expected, field)
            if own_value != expected_value:
                return f"of a memory with {own_value}{unit}; this one has {expected_value}"
        return None

    def grows_into(self, expected: Identity) -> bool:
        """Whether this memory never overwrites (FULL) and ``expected`` is larger, because the run was extended."""
        enlarged = msgspec.structs.replace(self, capacity=expected.capacity)
        return self.strategy.startswith("FULL[") and self.capacity < expected.capacity and enlarged == expected


def identity_of(memory: Experiences, seed: int) -> Identity:
    """Return the identity of a run's memory."""
    layout = memory.storage.layout
    return Identity(memory.storage.capacity, layout.n_obs, layout.n_act, str(memory.strategy), seed, layout.behaviour)


FORMAT: Final = 3
"""Current format.  Since 2, rows contain episode and step, and the behaviour of a stochastic policy.  Since 3, the
writer's note contains the checksums of the run's other files."""
MAX_BYTES: Final = 4 << 20
_NAME_PATTERN: Final = re.compile(r"manifest-(\d{8,})\.json")
_SEGMENT_PATTERN: Final = re.compile(r"(?:rows|order)-(\d{8,})\.seg")


class Segment(msgspec.Struct, frozen=True):
    """The part of a segment file that belongs to a checkpoint."""

    name: str
    entries: int = 0
    """Number of rows in the counted part."""
    through: int = 0
    """Highest write number among these rows."""
    bytes: int = 0
    crc: int = 0


class Sweep(msgspec.Struct, frozen=True):
    """Progress of a new generation of rows: rows written up to number ``since`` are carried over, slot by slot."""

    since: int
    cursor: int
    first: str
    """First segment of the new generation."""


class SavedArray(msgspec.Struct, frozen=True):
    """An array; if it has no ``data``, its entries are in the order segment."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None

    def array(self) -> NDArray[np.generic]:
        """Build the array (zeros if its entries are elsewhere); raises ValueError or TypeError if invalid."""
        if self.data is None:
            return np.zeros(self.shape, self.dtype)
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class Manifest(msgspec.Struct, frozen=True):
    """One checkpoint."""

    format: int
    number: int
    identity: Identity
    rows: tuple[Segment, ...]
    order: tuple[Segment, ...]
    keeper: tuple[SavedArray, ...]
    counts: dict[str, int]
    extra: dict[str, int]
    sweep: Sweep | None = None
    note: msgspec.Raw = msgspec.Raw(b"null")
    """Additional data from the writer, in JSON."""

    @property
    def files(self) -> set[str]:
        """Names of all files of the checkpoint."""
        return {manifest_name(self.number), *(s.name for s in (*self.rows, *self.order))}


def manifest_name(number: int) -> str:
    """Return the file name of a manifest."""
    return f"manifest-{number:08d}.json"


def manifest_numbers(folder: Path) -> list[int]:
    """Return the numbers of the manifests in a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted((int(m[1]) for p in folder.iterdir() if (m := _NAME_PATTERN.fullmatch(p.name))), reverse=True)


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segment files in a folder."""
    return [int(m[1]) for p in folder.iterdir() if (m := _SEGMENT_PATTERN.fullmatch(p.name))]


def is_checkpoint_file(name: str) -> bool:
    """Whether a file with this name belongs to a checkpoint."""
    return name == TEMPORARY_NAME or bool(_NAME_PATTERN.fullmatch(name) or _SEGMENT_PATTERN.fullmatch(name))


TEMPORARY_NAME: Final = "manifest.tmp"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of a manifest's file."""
    text = msgspec.json.encode(manifest)
    return text + b"\ncrc32 %08x\n" % zlib.crc32(text)


def read_manifest(folder: Path, number: int) -> Manifest:
    """Read a manifest; raises CorruptionError (with the file name) if it differs from what was written."""
    name = manifest_name(number)
    try:
        data = read_file(folder / name, MAX_BYTES)
    except OSError as error:
        raise CorruptionError(f"{name}: {error.strerror}") from None
    text, _, remainder = data.partition(b"\n")
    if remainder != b"crc32 %08x\n" % zlib.crc32(text):
        raise CorruptionError(f"{name}: truncated or altered")
    try:
        # All formats store their number in this field.
        format_ = msgspec.json.decode(text, type=dict[str, msgspec.Raw])["format"]
        if msgspec.json.decode(format_, type=int) != FORMAT:
            raise CorruptionError(f"{name}: format {bytes(format_).decode()}; this version reads {FORMAT}")
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"{name}: {error}") from None
    if manifest.number != number or not all(
        _SEGMENT_PATTERN.fullmatch(s.name) for s in (*manifest.rows, *manifest.order)
    ):
        raise CorruptionError(f"{name}: its number differs from its name")
    return manifest
