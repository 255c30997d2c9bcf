"""Recovery of a run: the stored state, the data removed from its files, and the position at which the loop continues.

In lockstep everything returns to the newest checkpoint, and everything after it is repeated, bit for bit.  In real time
nothing is repeated: the memory is restored from the checkpoint, and the run continues after the last stored episode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.control.loop_state import LoopState
from onrig.runtime.control.policy_switch import SwitchState
from onrig.runtime.link.messages import Ancestor
from onrig.runtime.record import Kind
from onrig.runtime.replay.accounts.figures import Durations
from onrig.runtime.replay.checkpoint import CheckpointError
from onrig.runtime.replay.learners.policy_watch import RolledBackList
from onrig.runtime.run_state.checksums import EMPTY_CHECKSUM, SUMMARY_FILE, FileChecksum
from onrig.runtime.run_state.episodes import EpisodeRow, EpisodeSums, StoredRows, read_rows, truncate_rows
from onrig.runtime.run_state.policy_index import INDEX_FILE as POLICY_INDEX
from onrig.runtime.run_state.policy_index import truncate_index

WarningSink = Callable[[str], object]
_KINDS: Final = {"train": int(Kind.TRAIN), "eval": int(Kind.EVAL)}


class Point(msgspec.Struct, frozen=True):
    """Content of a checkpoint other than the memory and the counts."""

    loop: LoopState
    durations: Durations
    opened: tuple[EpisodeSums, ...] = ()
    """Sums of the episode that was in progress (real time)."""
    began: tuple[int, int, int] = (-1, -1, 0)
    """Episode and kind of the last record, and the first tick of that episode."""
    memory: bytes = b""
    """Identifier of the memory."""
    lineage: tuple[Ancestor, ...] = ()
    """Memories from which this memory was restored, most recent last."""
    run: str = ""
    """Identity of the run (``meta.json``)."""
    config: str = ""
    """Resolved configuration of the run (YAML)."""
    files: dict[str, FileChecksum] = {}
    """Length and checksum of the run's append-only files at the checkpoint."""
    rolled_back_crc32: int = 0
    """CRC-32 of the list of rolled-back policies."""


class Recovery(NamedTuple):
    """Starting point of a resumed run."""

    start: LoopState
    """State in which the loop continues."""
    rows: list[EpisodeRow]
    """Rows that remain in ``episodes.csv``."""
    unrecorded: list[EpisodeRow]
    """Those of ``rows`` that were written after the checkpoint; their episodes' other data are lost (real time)."""
    durations: Durations | None
    cut: Mapping[str, int]
    """Amounts removed: number of ``rows`` and of ``policies``, and ``bytes`` of a broken row."""
    n_checkpointed_records: int = 0
    """Number of records of the ``unrecorded`` episodes that the checkpoint includes."""

    @property
    def summary_line(self) -> str:
        """One-line summary for a user."""
        if not self.start.episode and not self.start.tick:
            return "returns to the start of the run"
        text = f"continues after episode {self.start.episode}"
        if self.cut["rows"]:
            text += f"; {self.cut['rows']} later rows of episodes.csv are repeated"
        if self.unrecorded:
            steps = sum(row.steps for row in self.unrecorded)
            text += f"; {len(self.unrecorded)} episodes ({steps} steps) are newer than the memory"
        if self.cut["bytes"]:
            text += f"; a broken row of episodes.csv ({self.cut['bytes']} bytes) is removed"
        return text


def encode_point(point: Point) -> bytes:
    """Serialise a point for a checkpoint."""
    return msgspec.json.encode(point)


def decode_point(note: bytes) -> Point:
    """Parse a point; raises msgspec.DecodeError if another version wrote it."""
    return msgspec.json.decode(note, type=Point)


def recover(
    folder: Path,
    restored: Mapping[str, int] | None,
    note: bytes,
    *,
    lockstep: bool,
    warn: WarningSink,
    is_loop_running: bool = False,
) -> Recovery:
    """Find where the run in ``folder`` continues, and cut everything after that point.

    ``restored`` and ``note``: counts and note of the newest checkpoint (None: no checkpoint).  ``is_loop_running``:
    whether the loop is still running, in which case later policies may have acted and are kept.  Raises
    CheckpointError, before anything is cut, if a different version wrote the checkpoint or a row is invalid, and
    OSError if a file cannot be cut.
    """
    point = _decoded_point(folder, note) if restored is not None else None
    point_files = point.files if point is not None else {}
    path = folder / "episodes.csv"
    try:
        stored = read_rows(path)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    n_checkpointed_rows = restored["rows"] if restored is not None else 0
    if n_checkpointed_rows > len(stored.rows):
        warn(f"{path}: {n_checkpointed_rows - len(stored.rows)} rows of the last checkpoint are missing")
    n_kept = min(n_checkpointed_rows, len(stored.rows)) if lockstep else len(stored.rows)
    returns_to_checkpoint = lockstep and not is_loop_running
    newest_policy = (restored["next_policy"] - 1 if restored is not None else 0) if returns_to_checkpoint else None
    # From here on data are removed.  The steps may run in any order and be interrupted any number of times.
    policies = _cut_policies(folder / "policies", newest_policy)
    truncate_index(
        folder / "policies", point_files.get(POLICY_INDEX, EMPTY_CHECKSUM).bytes if returns_to_checkpoint else None
    )
    if lockstep:
        RolledBackList(folder / "policies").truncate(restored["rolled_back_policies"] if restored is not None else 0)
    truncate_rows(path, stored, n_kept)
    with contextlib.suppress(FileNotFoundError):
        (folder / SUMMARY_FILE).unlink()  # the run is not over
    cut = {"rows": len(stored.rows) - n_kept, "policies": policies, "bytes": stored.n_partial_bytes}
    rows = stored.rows[:n_kept]
    unrecorded = rows[n_checkpointed_rows:]
    loop = point.loop if point is not None else LoopState()
    durations = point.durations if point is not None else None
    start = loop if lockstep else _advance(loop, stored, unrecorded, RolledBackList(folder / "policies"))
    open_steps = {(sums.episode, sums.kind): sums.steps for sums in (point.opened if point is not None else ())}
    n_checkpointed_records = sum(open_steps.get((row.episode, _KINDS[row.kind]), 0) for row in unrecorded)
    return Recovery(start, rows, unrecorded, durations, cut, n_checkpointed_records)


def _decoded_point(folder: Path, note: bytes) -> Point:
    try:
        return decode_point(note)
    except msgspec.DecodeError:
        raise CheckpointError(
            f"{folder / 'buffer'}: another version wrote its checkpoint, which lacks the run's position; resume the "
            "run with that version"
        ) from None


def _advance(
    loop: LoopState, stored: StoredRows, unrecorded: list[EpisodeRow], rolled_back: RolledBackList
) -> LoopState:
    """Return the loop's state advanced to the last row, without policies that were rolled back after the checkpoint."""
    switch = _without_rolled_back(loop.switch, rolled_back)
    if not stored.rows:
        return msgspec.structs.replace(loop, switch=switch)
    last_row = stored.rows[-1]
    return msgspec.structs.replace(
        loop,
        switch=switch,
        episode=last_row.episode,
        evaluated=last_row.kind == "eval",
        tick=loop.tick + sum(row.steps + 1 for row in unrecorded),
    )


def _without_rolled_back(switch: SwitchState, rolled_back: RolledBackList) -> SwitchState:
    """Return the switch's state without rolled-back policies, so that their predecessors act instead."""
    rolled_back_ids = tuple(s.policy_id for s in switch.seated if rolled_back.contains_id(s.policy_id))
    remaining_policies = tuple(s for s in switch.seated if s.policy_id not in rolled_back_ids)
    return msgspec.structs.replace(switch, seated=remaining_policies, failed=(*switch.failed, *rolled_back_ids))


def _cut_policies(folder: Path, newest_id: int | None) -> int:
    """Delete policies after ``newest_id``, and partially written files; return the number of policies deleted."""
    n_removed = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        is_later = (
            newest_id is not None and path.suffix == ".onnx" and path.stem.isdecimal() and int(path.stem) > newest_id
        )
        if is_later or path.suffix == ".tmp":
            path.unlink(missing_ok=True)
            n_removed += is_later
    return n_removed
