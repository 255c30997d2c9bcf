"""What a run goes on from, and what it leaves behind for the next process: :mod:`runtime.replay.recovery` applied.

Three beginnings: a new run has nothing; a replay process that takes over goes on counting from the newest checkpoint,
beside a loop that never stopped; a resumed run is first brought back to where it was, and then tells the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runtime.config.schema import RunConfig
from runtime.control.loop_state import decode_state, encode_state
from runtime.record import Kind
from runtime.replay.checkpoint import CheckpointError
from runtime.replay.checkpoint.upkeep import Present, Upkeep
from runtime.replay.parts import Parts
from runtime.replay.recovery import Point, Recovery, encode_point, recover
from runtime.shm.ring import RingReader

Say = Callable[[str], object]


def recovered(folder: Path, upkeep: Upkeep, *, lockstep: bool, warn: Say) -> Recovery:
    """Cut what lies beyond the point from which the run in ``folder`` goes on (``runtime.replay.recovery``).

    To be done before anything opens the run's files.  Raises CheckpointError, also when a file cannot be cut.
    """
    try:
        return recover(folder, upkeep.restored, upkeep.note, lockstep=lockstep, warn=warn)
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: {error.strerror}; the run is not resumed") from None


def closed_before(ring: RingReader, closed: int) -> int:
    """Last training episode of which the ring holds nothing (any more): what is not in the memory never will be.

    ``closed`` is the last one that the loop has ended.
    """
    waiting = ring.peek(1)
    if not len(waiting):
        return closed
    return int(waiting[0]["episode"]) - int(waiting[0]["kind"] == Kind.TRAIN)


class Continuity:
    """Restores the counts of ``parts`` once, and has checkpoints written of them."""

    def __init__(
        self, config: RunConfig, folder: Path, upkeep: Upkeep, parts: Parts, event: Callable[..., None]
    ) -> None:
        self._config, self._folder, self._upkeep, self._parts, self._event = config, folder, upkeep, parts, event
        self._dropped_before = 0
        self._written_at = -1
        """Episode of the checkpoint that this process began with, which need not be written again."""
        self._new_names = True
        """Whether the names in the run folder may not be on disk yet."""
        self._beside: list[Path] = []
        """Policies that the checkpoint collected last takes along."""

    @property
    def dropped(self) -> int:
        """Records that the run has lost because the ring was full, those before this process included."""
        return self._dropped_before + self._parts.ring.dropped

    def resume(self) -> bool:
        """Go on counting where the checkpoint was written that the memory comes from; False when there is none."""
        counts = self._upkeep.restored
        if counts is None:
            return False
        desk = self._parts.desk
        desk.closed, desk.error_batch = counts["closed"], counts["error_batch"]
        desk.error_batches = counts.get("error_batches", 0)
        self._parts.policies.resume(counts)
        self._parts.figures.resume(counts)
        self._parts.builder.gaps = counts["gaps"]
        self._event("memory_restored", inserted=self._parts.memory.storage.inserted, closed=desk.closed)
        return True

    def go_on(self, recovery: Recovery) -> int:
        """Be where the resumed run was, and tell the loop where that is.

        Returns the id of the policy that the run goes on with, 0 without one.
        """
        counts = self._upkeep.restored
        desk, figures, keepsake = self._parts.desk, self._parts.figures, self._parts.keepsake
        if counts is not None:
            desk.updates, desk.mismatches = counts["updates"], counts["mismatches"]
            desk.error_batch = 0  # its learner, too, is a new one
            self._dropped_before = counts["dropped"]
            self._new_names = False
            self._written_at = recovery.start.episode if self._config.lockstep else -1
        if recovery.durations is not None:
            figures.restore_durations(recovery.durations)
        figures.follow(recovery.rows, recovery.unrecorded)
        desk.closed = recovery.start.episode
        self._parts.policies.number_after(max((row.policy_id for row in recovery.rows), default=0))
        policy = self._parts.policies.reinstate()
        if keepsake.take() is None:  # else there is a loop already, and it says itself where it is
            keepsake.put(encode_state(recovery.start))
        self._event(
            "resumed",
            episode=recovery.start.episode,
            policy=policy,
            rows_cut=recovery.cut["rows"],
            policies_cut=recovery.cut["policies"],
            bytes_cut=recovery.cut["bytes"],
            episodes_newer_than_memory=len(recovery.unrecorded),
            checkpoint_damaged=bool(self._upkeep.damaged),
        )
        return policy

    def at_episode(self, episode: int) -> None:
        """At the barrier after this episode: write a checkpoint if one is due (lockstep: the loop waits)."""
        self._parts.policies.settle()
        if episode > self._written_at:
            self._collected(self._upkeep.at_episode(episode, self._present))

    def at_time(self, now_s: float) -> None:
        """Collect a checkpoint if one is due at ``now_s``, of the monotonic clock (real time)."""
        self._collected(self._upkeep.at_time(now_s, self._present))

    def _collected(self, written: bool) -> None:
        """One that was collected is tried until it is on disk; what it takes along need not be taken again."""
        if written:
            self._parts.policies.synced(self._beside)
            self._new_names = False

    def close(self) -> None:
        """Write the last checkpoint, if the run can be gone on from where it stands."""
        self._upkeep.close(self._present if self._is_at_rest() else None)

    def _present(self) -> Present:
        """What goes into a checkpoint beside the memory."""
        parts = self._parts
        parts.policies.settle()
        extra = {
            "closed": parts.desk.closed,
            "error_batch": parts.desk.error_batch,
            "error_batches": parts.desk.error_batches,
            "gaps": parts.builder.gaps,
            "rows": parts.rows.count,
            "dropped": self.dropped,
            "updates": parts.desk.updates,
            "mismatches": parts.desk.mismatches,
            **parts.figures.counts(),
            **parts.policies.counts(),
        }
        note = encode_point(Point(decode_state(parts.keepsake.take()), parts.figures.durations()))
        beside = [self._folder / "episodes.csv"]
        if not self._config.lockstep:  # there the loop waits for it, and nothing relies on them
            beside.append(self._folder / "events.jsonl")
        if self._new_names:
            beside.append(self._folder)
        self._beside = parts.policies.unsynced
        if self._beside:
            beside += [*self._beside, self._folder / "policies"]
        return Present(extra, note, beside)

    def _is_at_rest(self) -> bool:
        """Whether everything that has happened belongs to episodes that are over, with all that follows from them.

        In lockstep only such a moment can be gone on from bit for bit; in real time any will do.
        """
        desk = self._parts.desk
        loop = decode_state(self._parts.keepsake.take())
        last = self._parts.rows.last
        kind = "eval" if loop.evaluated else "train"
        stands = last is not None and (last.episode, last.kind) == (loop.episode, kind)
        done = desk.done == desk.closed == loop.episode
        return not self._config.lockstep or (self._parts.accounts.whole and stands and done)
