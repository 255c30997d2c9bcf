"""Columns of a run's data as NumPy arrays, with their units and the names of their components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.layout import FLAG_MASK, GENERATION_MASK, GENERATION_SHIFT, POLICY_SHIFT, Flag, Words
from onrig.runtime.memory.storage import STAMP_WORDS
from onrig.runtime.record import STAGES
from onrig.runtime.record import Field as RecordField
from onrig.runtime.run_config import RunConfig, layout_of, record_layout

if TYPE_CHECKING:
    import pandas
    import polars

_TIME_UNITS: Final = {"_ns": "ns", "_us": "us", "_s": "s"}
_NORMALISED_UNIT: Final = "1"


class Field(NamedTuple):
    """Description of a column."""

    name: str
    dtype: np.dtype[Any]
    """NumPy type of a component."""
    components: tuple[str, ...] = ()
    """Names of a vector's components, in order; empty for a scalar."""
    units: tuple[str, ...] = ("",)
    """SI unit of each component, or of the scalar: ``1`` for normalised values, empty for numbers without a unit."""


Schema = tuple[Field, ...]


def field(name: str, code: str, unit: str = "") -> Field:
    """Describe a scalar column of the NumPy type ``code``."""
    return Field(name, np.dtype(code), (), (unit,))


class Table(Mapping[str, NDArray[Any]]):
    """Columns of n rows, keyed by name: (n,) for a scalar, (n, k) for a vector of k components.

    >>> episodes["return"].mean(); records["observation"][:, 0]; records.units["observation"]
    """

    def __init__(self, schema: Schema, columns: Mapping[str, NDArray[Any]]) -> None:
        self.schema: Final = schema
        self._columns: Final = {f.name: columns[f.name] for f in schema}

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"<{self.rows} rows of {', '.join(self)}>"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self._columns.values())))

    @property
    def units(self) -> dict[str, str | tuple[str, ...]]:
        """Unit of each column; for a vector, the units of its components."""
        return {f.name: f.units if f.components else f.units[0] for f in self.schema}

    def flat(self) -> dict[str, NDArray[Any]]:
        """Return one-dimensional columns, in which a vector's components become ``NAME.COMPONENT``."""
        return {
            name: self[f.name] if index is None else self[f.name][:, index]
            for f in self.schema
            for name, index in flat_names(f)
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return the columns of `flat` as a pandas DataFrame. Raises ImportError if pandas is missing."""
        import pandas

        return pandas.DataFrame(self.flat())

    def to_polars(self) -> polars.DataFrame:
        """Return the columns of `flat` as a polars DataFrame. Raises ImportError if polars is missing."""
        import polars

        return polars.DataFrame({name: np.ascontiguousarray(values) for name, values in self.flat().items()})


def flat_names(f: Field) -> list[tuple[str, int | None]]:
    """Return the flat name and index of each component of a column; for a scalar, its name and None."""
    return [(f"{f.name}.{c}", index) for index, c in enumerate(f.components)] if f.components else [(f.name, None)]


def join_tables(schema: Schema, tables: Sequence[Table]) -> Table:
    """Join tables that have the same schema, in order."""
    empty_columns = {f.name: np.zeros((0, len(f.components)) if f.components else 0, f.dtype) for f in schema}
    return Table(
        schema,
        {
            name: np.concatenate([empty_column, *(p[name] for p in tables)])
            for name, empty_column in empty_columns.items()
        },
    )


def record_schema(config: RunConfig) -> Schema:
    """Return the columns of the step records (`onrig.runtime.record.Step`), in the order of the log."""
    rig = config.rig
    signals_by_axis: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "stage": (STAGES, ("ns",) * len(STAGES)),
        "sensor": (tuple(s.name for s in rig.sensors), tuple(s.unit for s in rig.sensors)),
        "signal": (tuple(s.name for s in rig.signals), tuple(s.unit for s in rig.signals)),
        "input": (config.input_names, tuple(s.unit for s in config.signals)),
        "actuator": (tuple(a.name for a in rig.actuators), tuple(a.unit for a in rig.actuators)),
    }
    return tuple(_record_column(f, signals_by_axis) for f in record_layout(config).fields)


def _record_column(f: RecordField, signals_by_axis: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> Field:
    dtype = np.dtype(f"<{f.stored.code}")
    if f.stored.per == "tick":
        unit = next((unit for suffix, unit in _TIME_UNITS.items() if f.name.endswith(suffix)), "")
        return Field(f.name, dtype, (), (_NORMALISED_UNIT if f.name == "exploration" else unit,))
    names, units = signals_by_axis[f.stored.per]
    if f.stored.unit == "counts":
        units = ("count",) * len(names)
    elif f.stored.per == "actuator" and f.stored.unit != "SI":
        units = (_NORMALISED_UNIT,) * len(names)
    return Field(f.name, dtype, names, units)


def experience_schema(config: RunConfig) -> Schema:
    """Return the columns of the memory's experiences, into which rows are decoded without loss."""
    signals, actions = (tuple(s.name for s in group) for group in (config.signals, config.rig.actuators))

    def vector(name: str, components: tuple[str, ...]) -> Field:
        return Field(name, np.dtype("<f4"), components, (_NORMALISED_UNIT,) * len(components))

    behaviour = [vector(name, actions) for name in _BEHAVIOUR_FIELDS] if config.stochastic else []
    return (
        field("slot", "<u4"),
        field("number", "<i8"),
        vector("observation", signals),
        vector("action", actions),
        vector("next_observation", signals),
        field("reward", "<f4"),
        field("exploration", "<f4", _NORMALISED_UNIT),
        *behaviour,
        *(field(name, "<u4") for name in ("episode", "step")),
        *(field(flag.name.lower(), "?") for flag in Flag if flag.name),
        field("generation", "<u2"),
        field("policy_id", "<u2"),
    )


_BEHAVIOUR_FIELDS: Final = ("mean", "std", "drawn")


def experience_table(config: RunConfig, rows: Words) -> Table:
    """Decode experiences from exported rows of the memory (``Storage.rows``)."""
    layout, schema = layout_of(config), experience_schema(config)
    words = rows[:, STAMP_WORDS:]
    floats, meta = np.ascontiguousarray(words).view("<f4"), words[:, layout.meta]
    m, start = layout.n_act, layout.behaviour_columns.start
    columns: dict[str, NDArray[Any]] = {
        "slot": rows[:, 0],
        "number": rows[:, 1].astype(np.int64) | rows[:, 2].astype(np.int64) << 32,
        "observation": floats[:, layout.observation],
        "action": floats[:, layout.action],
        "next_observation": floats[:, layout.next_observation],
        "reward": floats[:, layout.reward],
        "exploration": floats[:, layout.exploration],
        "episode": words[:, layout.episode],
        "step": words[:, layout.step],
        "generation": (meta >> np.uint32(GENERATION_SHIFT) & np.uint32(GENERATION_MASK)).astype(np.uint16),
        "policy_id": (meta >> np.uint32(POLICY_SHIFT)).astype(np.uint16),
    }
    columns |= {n: floats[:, start + i * m : start + (i + 1) * m] for i, n in enumerate(_BEHAVIOUR_FIELDS)}
    columns |= {flag.name.lower(): meta & np.uint32(flag) != 0 for flag in Flag if flag.name}
    return Table(schema, columns)


def experience_rows(config: RunConfig, table: Mapping[str, NDArray[Any]]) -> Words:
    """Encode experiences as rows of the memory, which is the exact inverse of `experience_table`."""
    layout = layout_of(config)
    rows: Words = np.zeros((len(table["slot"]), STAMP_WORDS + layout.width), np.uint32)
    rows[:, 0] = table["slot"]
    rows[:, 1], rows[:, 2] = table["number"] & 0xFFFFFFFF, table["number"] >> 32
    words, floats = rows[:, STAMP_WORDS:], rows.view(np.float32)[:, STAMP_WORDS:]
    for name in ("observation", "action", "next_observation", "reward", "exploration"):
        floats[:, getattr(layout, name)] = table[name]
    if layout.behaviour:
        floats[:, layout.behaviour_columns] = np.concatenate([table[n] for n in _BEHAVIOUR_FIELDS], axis=1)
    words[:, layout.episode], words[:, layout.step] = table["episode"], table["step"]
    meta = table["policy_id"].astype(np.uint32) << np.uint32(POLICY_SHIFT)
    meta |= table["generation"].astype(np.uint32) << np.uint32(GENERATION_SHIFT)
    for flag in Flag:
        meta |= np.uint32(flag & FLAG_MASK) * table[str(flag.name).lower()].astype(np.uint32)
    words[:, layout.meta] = meta
    return rows
