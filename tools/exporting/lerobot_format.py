"""LeRobot data set, layout v3.0 (huggingface/lerobot, ``lerobot/datasets``): frames in Parquet, without videos.

A frame is one transition. ``next.observation.state`` is the observation after it, so that an episode's final
observation is included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.run_config import RunConfig
from onrig.tools.exporting.pieces import Piece

if TYPE_CHECKING:
    import pyarrow

    from onrig.tools.exporting.source import Source

VERSION: Final = "v3.0"
_MAX_FILES_PER_FOLDER: Final = 1000
"""Maximum number of files in a folder."""
_FILE_MB: Final = 100
_FILE_PATH: Final = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH: Final = f"data/{_FILE_PATH}"
EPISODES_PATH: Final = f"meta/episodes/{_FILE_PATH}"
_ACTIONS: Final = {"policy": "action.proposed", "explored": "action.explored", "commanded": "action.commanded"}
"""Feature names of all actions except the applied one, keyed by field of the record."""
_INDICES: Final = ("frame_index", "episode_index", "index", "task_index")

_INDEX: Final = "__index_level_0__"
_PANDAS: Final = {
    "index_columns": [_INDEX],
    "column_indexes": [],
    "columns": [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": None, "field_name": _INDEX, "pandas_type": "unicode", "numpy_type": "object"},
    ],
    "pandas_version": "2.0",
}
"""Metadata that makes pandas use the task column as the table's index."""

Values = NDArray[Any]


class Feature(NamedTuple):
    """Column of the frames."""

    dtype: str
    names: tuple[str, ...] | None
    """Names of a vector's components."""

    @property
    def shape(self) -> tuple[int]:
        return (1,) if self.names is None else (len(self.names),)

    @property
    def arrow(self) -> pyarrow.DataType:
        """Arrow type: a list of fixed length, or, as in LeRobot, a plain value for a single component."""
        import pyarrow

        kind = pyarrow.bool_() if self.dtype == "bool" else pyarrow.from_numpy_dtype(np.dtype(self.dtype))
        return kind if self.shape == (1,) else pyarrow.list_(kind, *self.shape)


def features_of(config: RunConfig) -> dict[str, Feature]:
    """Return the columns of the frames, keyed by name."""
    inputs, actions = tuple(s.name for s in config.signals), tuple(a.name for a in config.rig.actuators)
    scalars = {
        "next.reward": "float32",
        "next.done": "bool",
        "next.truncated": "bool",
        "policy_id": "int64",
        "rule": "int64",
        "tick": "int64",
        "timestamp": "float32",
    }
    return {
        "observation.state": Feature("float32", inputs),
        "action": Feature("float32", actions),
        **{name: Feature("float32", actions) for name in _ACTIONS.values()},
        "next.observation.state": Feature("float32", inputs),
        **{name: Feature(dtype, None) for name, dtype in scalars.items()},
        **{name: Feature("int64", None) for name in _INDICES},
    }


def write_lerobot(source: Source, folder: Path) -> dict[str, int]:
    """Write the data set into ``folder``, and return its numbers of episodes and frames.

    Raises CannotExport and OSError.
    """
    config, pieces = source.run.config, source.pieces()
    features = features_of(config)
    episodes = _Episodes(f"{config.task.name} on {config.rig.name}")
    with _Frames(folder, features) as frames:
        for piece in pieces:
            columns = _columns(config, piece, len(episodes.rows), frames.total)
            episodes.add(piece, columns, frames.write(columns))
    episodes.write(folder)
    info = {
        "codebase_version": VERSION,
        "robot_type": config.rig.name,
        "total_episodes": len(episodes.rows),
        "total_frames": frames.total,
        "total_tasks": 1,
        "chunks_size": _MAX_FILES_PER_FOLDER,
        "data_files_size_in_mb": _FILE_MB,
        "video_files_size_in_mb": 500,
        "fps": int(config.rate_hz) if config.rate_hz.is_integer() else config.rate_hz,
        "splits": {"train": f"0:{len(episodes.rows)}"},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": {n: {"dtype": f.dtype, "shape": f.shape, "names": f.names} for n, f in features.items()},
        "onrig": source.provenance,
        "units": {
            "observation.state": [s.unit for s in config.signals],
            "action": [a.unit for a in config.rig.actuators],
        },
    }
    _write_json(folder / "meta/info.json", info)
    _write_json(folder / "meta/stats.json", episodes.total())
    return {"episodes": len(episodes.rows), "frames": frames.total}


def _columns(config: RunConfig, piece: Piece, episode: int, first_index: int) -> dict[str, Values]:
    """Return the columns of one episode's frames."""
    records, n = piece.records, piece.steps
    step_records, observations = records[:-1], records["input" if config.input_names else "observation"]
    frame = np.arange(n)
    return {
        "observation.state": observations[:-1],
        "action": step_records["applied"],
        **{name: step_records[field] for field, name in _ACTIONS.items()},
        "next.observation.state": observations[1:],
        "next.reward": step_records["reward"].astype(np.float32),
        "next.done": piece.terminated | piece.truncated,
        "next.truncated": piece.truncated,
        "policy_id": step_records["policy_id"].astype(np.int64),
        "rule": step_records["rule"].astype(np.int64),
        "tick": step_records["tick"].astype(np.int64),
        "timestamp": (frame / config.rate_hz).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.full(n, episode),
        "index": frame + first_index,
        "task_index": np.zeros(n, np.int64),
    }


class _Frames:
    """Writer of the frames into consecutive files, as a context manager."""

    def __init__(self, folder: Path, features: Mapping[str, Feature]) -> None:
        self.total = 0
        self._folder, self._features = folder, features
        self._writer: Any = None
        self._file, self._file_bytes = -1, 0

    def __enter__(self) -> _Frames:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, columns: Mapping[str, Values]) -> int:
        """Write one episode, and return the number of its file."""
        import pyarrow
        import pyarrow.parquet

        schema = pyarrow.schema([(name, f.arrow) for name, f in self._features.items()])
        table = pyarrow.table([_arrow(columns[n], f) for n, f in self._features.items()], schema=schema)
        if self._writer is None or self._file_bytes + table.nbytes > _FILE_MB << 20:
            self.__exit__()
            self._file, self._file_bytes = self._file + 1, 0
            path = self._folder / DATA_PATH.format(**_file_indices(self._file))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pyarrow.parquet.ParquetWriter(path, schema, compression="snappy")
        self._writer.write_table(table)
        self._file_bytes += table.nbytes
        self.total += table.num_rows
        return self._file


def _arrow(values: Values, feature: Feature) -> pyarrow.Array:
    import pyarrow

    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    return flat if feature.shape == (1,) else pyarrow.FixedSizeListArray.from_arrays(flat, *feature.shape)


def _file_indices(file: int) -> dict[str, int]:
    return {"chunk_index": file // _MAX_FILES_PER_FOLDER, "file_index": file % _MAX_FILES_PER_FOLDER}


_Stats = dict[str, dict[str, list[Any]]]
_REDUCERS: Final[dict[str, Callable[[Values], Values]]] = {
    "min": lambda v: v.min(axis=0),
    "max": lambda v: v.max(axis=0),
    "mean": lambda v: v.mean(axis=0),
    "std": lambda v: v.std(axis=0),
}


class _Episodes:
    """Table of the episodes, with the statistics of each."""

    def __init__(self, task: str) -> None:
        self._task = task
        self.rows: list[dict[str, Any]] = []
        self._stats: list[_Stats] = []

    def add(self, piece: Piece, columns: Mapping[str, Values], file: int) -> None:
        """Add one episode whose frames are in file number ``file``."""
        first_index, n = int(columns["index"][0]), piece.steps
        self._stats.append({name: _statistics(values) for name, values in columns.items()})
        self.rows.append(
            {
                "episode_index": len(self.rows),
                "tasks": [self._task],
                "length": n,
                "data/chunk_index": file // _MAX_FILES_PER_FOLDER,
                "data/file_index": file % _MAX_FILES_PER_FOLDER,
                "dataset_from_index": first_index,
                "dataset_to_index": first_index + n,
                "onrig.episode": piece.episode,
                "onrig.kind": piece.kind.name.lower(),
                "onrig.part": piece.part,
                "onrig.end": piece.end,
                **{f"stats/{c}/{k}": v for c, stats in self._stats[-1].items() for k, v in stats.items()},
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )

    def write(self, folder: Path) -> None:
        """Write the table of episodes and the table of tasks, in which the task's name is the index for pandas."""
        import pyarrow
        import pyarrow.parquet

        path = folder / EPISODES_PATH.format(**_file_indices(0))
        path.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self.rows), path)
        tasks = pyarrow.table({"task_index": [0], _INDEX: [self._task]})
        tasks = tasks.replace_schema_metadata({"pandas": msgspec.json.encode(_PANDAS)})
        pyarrow.parquet.write_table(tasks, folder / "meta/tasks.parquet")

    def total(self) -> _Stats:
        """Return the statistics of all frames, combined from the episodes' statistics."""
        return {name: _join_statistics([stats[name] for stats in self._stats]) for name in (self._stats or [{}])[0]}


def _statistics(values: Values) -> dict[str, list[Any]]:
    matrix = (values if values.ndim > 1 else values[:, None]).astype(np.float64)
    return {**{name: reduce(matrix).tolist() for name, reduce in _REDUCERS.items()}, "count": [len(matrix)]}


def _join_statistics(episode_stats: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Combine the statistics of several episodes; the variance is the sum of those within and between episodes."""
    count = np.array([p["count"][0] for p in episode_stats], np.float64)
    weights = (count / math.fsum(count))[:, None]
    means, deviations = (np.array([p[name] for p in episode_stats]) for name in ("mean", "std"))
    mean = (weights * means).sum(axis=0)
    variance = (weights * (deviations**2 + (means - mean) ** 2)).sum(axis=0)
    return {
        "min": np.min([p["min"] for p in episode_stats], axis=0).tolist(),
        "max": np.max([p["max"] for p in episode_stats], axis=0).tolist(),
        "mean": mean.tolist(),
        "std": np.sqrt(variance).tolist(),
        "count": [int(count.sum())],
    }


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=4) + b"\n")
