"""Tables of a run as Parquet or CSV files, with one column for each component of a vector: ``observation.angle``."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.tools.api.tables import Field, Schema, Table, experience_schema, flat_names

if TYPE_CHECKING:
    import pyarrow

    from onrig.tools.exporting.source import Source

FIELDS: Final = "fields.json"


def write_tables(source: Source, folder: Path, format_: Literal["parquet", "csv"]) -> dict[str, int]:
    """Write ``records``, ``episodes``, ``experiences``, ``policies`` and ``events``, and return their numbers of rows.

    The types and units of the columns are written to ``fields.json``. Raises OSError.
    """
    run = source.run
    tables: dict[str, tuple[Schema, Iterable[Table]]] = {
        "records": (run.record_schema, source.records()),
        "episodes": (run.episodes.schema, (run.episodes,)),
        "experiences": (experience_schema(run.config), source.experiences()),
        "policies": (run.policies.schema, (run.policies,)),
        "events": (run.events.schema, (run.events,)),
    }
    write = _write_parquet if format_ == "parquet" else _write_csv
    provenance = msgspec.json.encode(source.provenance)
    counts = {
        name: write(folder / f"{name}.{format_}", schema, parts, provenance) for name, (schema, parts) in tables.items()
    }
    units = {name: _units(schema) for name, (schema, _) in tables.items()}
    (folder / FIELDS).write_bytes(msgspec.json.format(msgspec.json.encode(units), indent=2) + b"\n")
    return counts


def read_table(path: Path, schema: Schema) -> Table:
    """Read a Parquet table written by `write_tables`. Raises OSError, KeyError or ValueError for any other file."""
    import pyarrow.parquet

    parquet = pyarrow.parquet.read_table(path)
    columns: dict[str, NDArray[Any]] = {}
    for f in schema:
        parts = [parquet[name].to_numpy(zero_copy_only=False).astype(f.dtype) for name, _ in flat_names(f)]
        columns[f.name] = np.stack(parts, axis=1) if f.components else parts[0]
    return Table(schema, columns)


def _units(schema: Schema) -> dict[str, dict[str, str]]:
    return {name: {"type": f.dtype.str, "unit": f.units[index or 0]} for f in schema for name, index in flat_names(f)}


def _flat_columns(table: Table) -> dict[str, NDArray[Any]]:
    """Return one-dimensional columns, with mappings as JSON text."""
    return {
        name: np.array([v if isinstance(v, str) else msgspec.json.encode(v).decode() for v in values], "O")
        if values.dtype.kind == "O"
        else values
        for name, values in table.flat().items()
    }


def _write_parquet(path: Path, schema: Schema, tables: Iterable[Table], provenance: bytes) -> int:
    import pyarrow
    import pyarrow.parquet

    fields = [_arrow_field(f, name, index) for f in schema for name, index in flat_names(f)]
    arrow = pyarrow.schema(fields, metadata={"onrig.provenance": provenance})
    rows = 0
    with pyarrow.parquet.ParquetWriter(path, arrow, compression="zstd") as writer:
        for table in tables:
            arrays = [
                pyarrow.array(values, f.type) for values, f in zip(_flat_columns(table).values(), fields, strict=True)
            ]
            writer.write_table(pyarrow.table(arrays, schema=arrow))
            rows += table.rows
    return rows


def _arrow_field(f: Field, name: str, index: int | None) -> pyarrow.Field:
    import pyarrow

    kind = pyarrow.string() if f.dtype.kind in "OU" else pyarrow.from_numpy_dtype(f.dtype)
    return pyarrow.field(name, kind, nullable=False, metadata={"unit": f.units[index or 0]})


def _write_csv(path: Path, schema: Schema, tables: Iterable[Table], provenance: bytes) -> int:
    rows = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([name for f in schema for name, _ in flat_names(f)])
        for table in tables:
            writer.writerows(zip(*(_texts(values) for values in _flat_columns(table).values()), strict=True))
            rows += table.rows
    return rows


def _texts(values: NDArray[Any]) -> list[Any]:
    """Format values with just enough digits to restore them, of which a float32 needs fewer than a float64."""
    texts: list[Any] = values.astype(str).tolist() if values.dtype.kind == "f" else values.tolist()
    return texts
