"""Data of a run folder as arrays: `onrig.open_run`.

The runs may be in progress, killed or finished. All data are read on first use. docs/data.md lists the columns with
their units.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.config.problem import ConfigError, describe_unknown_name
from onrig.runtime.exit_codes import Failure
from onrig.runtime.files import read_fields, read_file
from onrig.runtime.images import unpack_images
from onrig.runtime.inputs import image_columns
from onrig.runtime.memory.layout import Words
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.episodes import COLUMNS
from onrig.runtime.run_state.policy_index import INDEX_FILE as POLICY_INDEX
from onrig.runtime.run_state.policy_index import read_index
from onrig.runtime.run_state.running import find_running
from onrig.runtime.shm.latest import MAX_POLICY_BYTES
from onrig.runtime.view.run_view import RunView, read_episodes
from onrig.runtime.view.sentences import Event
from onrig.tools.api.tables import (
    Field,
    Schema,
    Table,
    experience_schema,
    experience_table,
    field,
    join_tables,
    record_schema,
)

State = Literal["running", "killed", "finished"]

EPISODE_SCHEMA: Final[Schema] = (
    field("episode", "<i8"),
    Field("kind", np.dtype("<U5")),
    field("steps", "<i8"),
    *(field(name, "<f8") for name in ("return", "mean_reward", "normalized", "exploration")),
    *(field(name, "<i8") for name in ("interventions", "missed_ticks", "policy_id")),
    field("t_mono_ns", "<i8", "ns"),
)
POLICY_SCHEMA: Final[Schema] = (
    field("policy_id", "<i8"),
    field("bytes", "<i8", "byte"),
    field("crc32", "<u4"),
    field("present", "?"),
)
EVENT_SCHEMA: Final[Schema] = (
    field("t_unix_s", "<f8", "s"),
    field("kind", "O"),
    field("count", "<i8"),
    field("fields", "O"),
)
_N_LOAD_ATTEMPTS: Final = 3
_RETRY_DELAY_S: Final = 0.1


class NoRun(Failure):
    """Raised if the folder contains no run, or one that this version cannot read."""


class DataMissing(Failure):
    """Raised if data of the run, or a library that reads them, are missing."""


def open_run(path: str | Path) -> RunData:
    """Open the folder of a run for reading. Raises NoRun.

    >>> run = onrig.open_run("runs/first")
    >>> run.episodes["return"][-20:].mean(), run.experiences["observation"].shape
    """
    folder = Path(path)
    if not (folder / "config.yaml").is_file():
        raise NoRun(f"'{folder}' contains no run (config.yaml)")
    running = find_running(folder)
    if running is not None:
        running.trust_files()
    try:
        return RunData(folder, load_resolved(folder / "config.yaml"))
    except ConfigError as error:
        raise NoRun(str(error.problems[0])) from None


class RunData:
    """Data of one run: tables of NumPy arrays, each read on first use and then kept.

    To read newer data from a run in progress, open it again.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder: Final = folder
        self.config: Final = config
        """Resolved configuration."""
        self.observations: Final = Normalisation.from_signals(config.signals)
        """Conversion of policy inputs between SI units and the memory's units: ``.si(experiences["observation"])``."""
        self.actions: Final = Normalisation.from_signals(config.rig.actuators)
        """Conversion of actions between SI units and the memory's units."""

    def __repr__(self) -> str:
        return f"<{self.state} run {self.folder}: {self.config.rig.name} {self.config.task.name}>"

    @property
    def state(self) -> State:
        """``running``, ``finished`` (with any outcome), or ``killed`` (ended without a summary)."""
        if find_running(self.folder) is not None:
            return "running"
        return "finished" if "exit_reason" in self.summary else "killed"

    @property
    def meta(self) -> Mapping[str, Any]:
        """Content of ``meta.json``: revision, versions, board, seed."""
        return read_fields(self.folder / "meta.json")

    @property
    def summary(self) -> Mapping[str, Any]:
        """Content of ``summary.json``; empty before the run has ended."""
        return read_fields(self.folder / "summary.json")

    @cached_property
    def episodes(self) -> Table:
        """Rows of ``episodes.csv``; ``kind`` is ``train`` or ``eval``, ``normalized`` is NaN without references."""
        columns = zip(*read_episodes(self.folder), strict=True)
        values = dict(zip(COLUMNS, columns, strict=False)) or dict.fromkeys(COLUMNS, ())
        return Table(EPISODE_SCHEMA, {f.name: np.array(values[f.name], f.dtype) for f in EPISODE_SCHEMA})

    @cached_property
    def records(self) -> Table:
        """Step records of the log, one per tick (`onrig.runtime.record.Step`). Raises DataMissing."""
        return join_tables(self.record_schema, list(self.record_batches()))

    @property
    def record_schema(self) -> Schema:
        """Columns of the step records."""
        return record_schema(self.config)

    def record_batches(self) -> Iterator[Table]:
        """Yield the step records in batches of a few thousand, for logs larger than memory. Raises DataMissing."""
        self.require_log()
        from onrig.runtime.log.reading import LogDamagedError, read_records

        schema = self.record_schema
        try:
            for batch in read_records(self.folder, self.config):
                yield Table(schema, {f.name: batch[f.name] for f in schema})
        except LogDamagedError as error:
            raise DataMissing(str(error)) from None

    def images(self, camera: str) -> NDArray[np.uint8]:
        """Return a camera's image at each step record, (n, rows, columns). Raises DataMissing."""
        columns = {
            c.name: (c, input_columns)
            for c, input_columns in image_columns(self.config.task.inputs, self.config.rig).items()
        }
        if camera not in columns:
            raise DataMissing(describe_unknown_name(f"'{self.folder}'", "camera", camera, [*columns]))
        camera_columns, input_columns = columns[camera]
        images = unpack_images(self.records["input"][:, input_columns], camera_columns.pixels)
        return images.reshape(-1, camera_columns.rows, camera_columns.columns)

    def require_log(self) -> None:
        """Raise DataMissing if the run has no log or the library that reads it is missing."""
        if find_spec("mcap") is None:
            raise DataMissing("reading a log needs mcap: pip install 'onrig[log]'")
        from onrig.runtime.log.staged_file import log_files

        if not log_files(self.folder):
            reason = "log.mcap was false, mcap was not installed, or the run was killed at its start"
            raise DataMissing(f"'{self.folder}' contains no log (log.mcap): {reason}")

    @cached_property
    def experiences(self) -> Table:
        """Experiences in the memory at its newest checkpoint, oldest first. Raises DataMissing.

        Observations and actions are normalised from [low, high] to [-1, 1], as the learner receives them.
        """
        tables = [experience_table(self.config, rows) for rows in self.experience_rows()]
        return join_tables(experience_schema(self.config), tables)

    def experience_rows(self, rows_per_batch: int = 1 << 16) -> Iterator[Words]:
        """Yield the rows of the memory as `Storage.rows` exports them, oldest first. Raises DataMissing."""
        storage = self._memory().storage
        slots = storage.changed_since(0)
        for start in range(0, len(slots), rows_per_batch):
            yield storage.rows(slots[start : start + rows_per_batch])

    def _memory(self) -> Memory:
        """Load the memory, with retries, since an active run's replay process may remove a segment during the read."""
        view = RunView(self.folder, self.config)
        for attempt in range(_N_LOAD_ATTEMPTS):
            memory = view.memory()
            if not isinstance(memory, str):
                return memory
            if find_running(self.folder) is None:
                break
            time.sleep(_RETRY_DELAY_S * attempt)
        raise DataMissing(f"'{self.folder}': no experiences: {memory}")

    @cached_property
    def policies(self) -> Table:
        """Admitted policies, with their size, their checksum, and whether the file is present."""
        index = read_index(self.folder / POLICY_INDEX)
        ids = sorted(index)
        columns = {
            "policy_id": ids,
            "bytes": [index[i].bytes for i in ids],
            "crc32": [index[i].crc32 for i in ids],
            "present": [(self.folder / "policies" / f"{i}.onnx").is_file() for i in ids],
        }
        return Table(POLICY_SCHEMA, {f.name: np.array(columns[f.name], f.dtype) for f in POLICY_SCHEMA})

    def policy(self, policy_id: int) -> bytes:
        """Return the ONNX model of a policy, for ``onnxruntime.InferenceSession``. Raises DataMissing."""
        path = self.folder / "policies" / f"{policy_id}.onnx"
        try:
            return read_file(path, MAX_POLICY_BYTES)
        except OSError as error:
            raise DataMissing(f"{path}: {error.strerror or error}") from None

    @cached_property
    def events(self) -> Table:
        """Lines of ``events.jsonl``: time, kind, number of events, and all fields as a mapping."""
        view, events_read = RunView(self.folder, self.config), list[Event]()
        while batch := view.events():
            events_read += batch
        columns = {
            "t_unix_s": np.array([e.t_unix_s for e in events_read], "<f8"),
            "kind": np.array([e.kind for e in events_read], "O"),
            "count": np.array([e.n_occurrences for e in events_read], "<i8"),
            "fields": np.array([*(e.fields for e in events_read), None], "O")[:-1],
        }
        return Table(EVENT_SCHEMA, columns)

    @property
    def missing(self) -> tuple[str, ...]:
        """Data that a completed run has but this one lacks, one line each."""
        lines = []
        state = self.state
        if state != "finished":
            state_text = "is in progress" if state == "running" else "was killed: it has no summary"
            lines.append(f"the run {state_text}")
        completeness = self.summary.get("whole")
        if isinstance(completeness, dict):
            lines += [str(line) for line in completeness.get("lost", ())]
        if find_spec("mcap") is not None:
            from onrig.runtime.log.reading import unfinished_files

            lines += [
                f"{p.name} is incomplete; it is read up to its last complete chunk"
                for p in unfinished_files(self.folder)
            ]
        return tuple(lines)
