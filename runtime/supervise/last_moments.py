"""Text format of a post-mortem: step records as CSV, frames as JSON lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.messages import CommandLayout, MessageType, StateLayout, WireError
from onrig.hw.rig import Rig
from onrig.runtime.record import STAGES, Flag, Kind, Miss, Rule
from onrig.runtime.shm.frame_log import LoggedFrame

_ENUM_COLUMNS: Final = {"kind": Kind, "rule": Rule, "miss": Miss}
"""Columns whose values are written as words."""
_HOST_MESSAGES: Final = frozenset({MessageType.HELLO_REQUEST, MessageType.COMMAND, MessageType.REQUEST})
_OMITTED_COLUMNS: Final = ("crc",)
_ENCODER: Final = msgspec.json.Encoder()
_TYPE_NAMES: Final = {t.value: t.name.lower() for t in MessageType}


def records_csv(records: NDArray[np.void], rig: Rig, inputs: Sequence[str] = ()) -> bytes:
    """Format records (dtype ``RecordLayout.dtype``) as CSV, columns ``field`` or ``field.name``, in SI units.

    ``inputs``: names of the policy inputs, if the records contain them.  Counts are not converted to SI units, and
    float32 values have the nine digits needed to restore them exactly.
    """
    names: list[str] = []
    columns: list[Sequence[object]] = []
    for field in records.dtype.names or ():
        values = records[field]
        if field in _OMITTED_COLUMNS:
            continue
        if values.ndim == 1:
            names.append(field)
            columns.append(_column(field, values))
        else:
            parts = inputs if field == "input" else _component_names(field, values.shape[1], rig)
            names += [f"{field}.{part}" for part in parts]
            columns += [_column(field, values[:, i]) for i in range(values.shape[1])]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def _component_names(field: str, width: int, rig: Rig) -> Sequence[str]:
    """Return the names of a vector's components."""
    if field == "stage_ns":
        return STAGES
    if field == "observation":
        return [o.name for o in rig.signals]
    if field == "sensors":
        return [s.name for s in rig.sensors]
    names = [a.name for a in rig.actuators]
    return names if len(names) == width else [str(i) for i in range(width)]


def _column(field: str, values: NDArray[np.generic]) -> Sequence[object]:
    if field in _ENUM_COLUMNS:
        name_by_value = {int(e): e.name.lower() for e in _ENUM_COLUMNS[field]}
        return [name_by_value.get(v, v) for v in values.tolist()]
    if field == "flags":
        return [flag_names(v) for v in values.tolist()]
    if values.dtype == np.float32:
        return [f"{v:.9g}" for v in values.tolist()]
    values_list: list[object] = values.tolist()
    return values_list


def flag_names(flags: int) -> str:
    """Return the names of the flags that are set, as in ``first|late``; bits without a name follow as one number."""
    set_flags = [f for f in Flag if flags & f]
    remainder = flags & ~sum(set_flags)
    return "|".join([*(str(f.name).lower() for f in set_flags), *([str(remainder)] if remainder else [])])


def frames_jsonl(frames: Iterable[LoggedFrame], rig: Rig) -> bytes:
    """Format frames as one line each: host time, sender, type, decoded content of states and commands, and the bytes in
    hexadecimal."""
    return b"".join(_ENCODER.encode(line) + b"\n" for line in _lines(frames, rig))


def _lines(frames: Iterable[LoggedFrame], rig: Rig) -> Iterator[dict[str, object]]:
    states = StateLayout(len(rig.sensors), len(rig.actuators))
    commands = CommandLayout(len(rig.actuators))
    for t_ns, body in frames:
        kind = body[0] if body else -1
        line: dict[str, object] = {
            "t_mono_ns": t_ns,
            "from": "host" if kind in _HOST_MESSAGES else "device",
            "type": _TYPE_NAMES.get(kind, str(kind)),
        }
        try:
            if kind == MessageType.STATE:
                line |= states.decode(body)._asdict()
            elif kind == MessageType.COMMAND:
                line |= commands.decode(body)._asdict()
        except WireError:
            line["type"] = f"unreadable {line['type']}"
        line["body"] = body.hex()
        yield line
