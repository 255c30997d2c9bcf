"""Minari data set: one episode per gapless sequence of transitions, with observations and actions in SI units."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.record import RecordLayout
from onrig.runtime.run_config import RunConfig
from onrig.tools.exporting.pieces import Piece

if TYPE_CHECKING:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    from onrig.tools.exporting.source import Source

_ID: Final = re.compile(r"[-\w]+-v\d+")


def write_minari(source: Source, folder: Path, name: str) -> dict[str, int]:
    """Write the data set into ``folder/data``, and return its numbers of episodes and steps.

    Actions are the applied actions. ``infos`` contains every field of the step records, (n + 1,) each, with the types
    that the log uses. Raises CannotExport and OSError.
    """
    from gymnasium.spaces import Box
    from minari.dataset.minari_storage import MinariStorage

    config, episodes = source.run.config, source.pieces()
    n = len(config.signals)
    low, high = (np.array([getattr(a, end) for a in config.rig.actuators], np.float32) for end in ("low", "high"))
    (folder / "data").mkdir()
    storage = MinariStorage.new(
        folder / "data", Box(-np.inf, np.inf, (n,), np.float32), Box(low, high, dtype=np.float32), data_format="hdf5"
    )
    storage.update_episodes(_buffer(config, piece) for piece in episodes)
    units = {
        "observations": [f"{s.name} [{s.unit}]" for s in config.signals],
        "actions": [f"{a.name} [{a.unit}]" for a in config.rig.actuators],
    }
    storage.update_metadata(
        {
            "dataset_id": name if _ID.fullmatch(name) else f"{re.sub(r'[^-A-Za-z0-9_]', '-', name)}-v0",
            "algorithm_name": str(config.learner.get("algorithm", "")),
            "description": f"Run of the rig {config.rig.name} on the task {config.task.name}, exported by Onrig.",
            "minari_version": _version(),
            "onrig": {**source.provenance, "units": units},
        }
    )
    return {"episodes": int(storage.total_episodes), "steps": int(storage.total_steps)}


def is_minari(folder: Path) -> bool:
    """Return whether an exported folder contains a Minari data set."""
    return (folder / "data" / "metadata.json").is_file()


def read_records(folder: Path, layout: RecordLayout) -> NDArray[np.void]:
    """Read the step records of a data set written by `write_minari`, in order.

    Raises OSError, KeyError or ValueError for any other data set.
    """
    from minari.dataset.minari_storage import MinariStorage

    storage = MinariStorage.read(folder / "data")
    chunks = [np.empty(0, layout.dtype)]
    for episode in storage.get_episodes(range(int(storage.total_episodes))):
        records = np.empty(len(episode["observations"]), layout.dtype)
        for name in layout.dtype.names or ():
            records[name] = episode["infos"][name]
        chunks.append(records)
    return np.concatenate(chunks)


def _buffer(config: RunConfig, piece: Piece) -> EpisodeBuffer:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    records = piece.records
    infos: dict[str, Any] = {name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()}
    return EpisodeBuffer(
        observations=np.ascontiguousarray(records["input" if config.input_names else "observation"]),
        actions=np.ascontiguousarray(records["applied"][:-1]),
        rewards=records["reward"][:-1].tolist(),
        terminations=piece.terminated.tolist(),
        truncations=piece.truncated.tolist(),
        infos=infos,
        options={"episode": piece.episode, "kind": piece.kind.name.lower(), "part": piece.part, "end": piece.end},
    )


def _version() -> str:
    from importlib.metadata import version

    return version("minari")
