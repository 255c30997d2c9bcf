"""Continuity between replay processes: state restored by this process, and checkpoints for its successor.

A process can start in four ways.  A new run has no state.  A resumed run first returns to its last position and reports
it to the loop (:mod:`onrig.runtime.replay.recovery`).  A process that replaces an earlier one while the loop is
running restores the checkpoint and reads the records still in the ring again; in lockstep it first cuts the run's files
back to the checkpoint, like a resumed run, so that everything after it is repeated bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.control.loop_state import decode_state, encode_state
from onrig.runtime.log.sink import Sink
from onrig.runtime.log.staged_file import log_files
from onrig.runtime.replay.beginning import StartState
from onrig.runtime.replay.checkpoint import CheckpointError
from onrig.runtime.replay.checkpoint.upkeep import CheckpointContent
from onrig.runtime.replay.intake import find_ring_position
from onrig.runtime.replay.recovery import Point, Recovery, decode_point, encode_point
from onrig.runtime.replay.repetition import repetition
from onrig.runtime.replay.summary import Parts
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.checksums import FileChecksum, RunningChecksums
from onrig.runtime.run_state.completeness import Account
from onrig.runtime.run_state.episodes import read_rows
from onrig.runtime.run_state.policy_index import INDEX_FILE as POLICY_INDEX

_APPENDED: Final = ("episodes.csv", POLICY_INDEX, "events.jsonl")


class Continuity:
    """Restores the counts of ``parts`` at the start, and writes them to checkpoints."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        start_state: StartState,
        parts: Parts,
        log: Sink,
        event: Callable[..., None],
    ) -> None:
        self._folder, self._parts, self._log, self._event = folder, parts, log, event
        self._upkeep, self._start = start_state.upkeep, start_state.start
        self._repetition = repetition(config, parts)
        self._n_dropped_before = 0
        self.n_unlogged_before = 0
        """Number of records missing from the log of the previous process."""
        self._n_logged_before = 0
        """Number of records that earlier sessions of the run passed to its log."""
        self._n_newer_than_checkpoint = 0
        """Number of records newer than the checkpoint when the run was killed."""
        self.n_lost = 0
        """Number of records that the previous process read but did not make durable, and that are no longer in the
        ring."""
        self._checksums = RunningChecksums(folder, start_state.files)
        self.context: NDArray[np.void] | None = None
        """Records that the previous process read and that are still in the ring; None unless this process took over."""
        self._checkpointed_episode = -1
        """Episode of the checkpoint that this process started with, which need not be written again."""
        self._has_new_names = True
        """Whether the run folder may have new entries that are not on disk yet."""
        self._unsynced_policies: list[Path] = []
        """Policies covered by the most recently collected checkpoint."""

    @property
    def n_dropped(self) -> int:
        """Number of records that the run has lost because the ring was full, including those before this process."""
        return self._n_dropped_before + self._parts.ring.n_dropped

    @property
    def first_unsaved(self) -> int:
        """Number of the first record of the loop that is not in the newest checkpoint on disk."""
        counts = self._upkeep.durable_counts
        return counts["since"] if counts is not None and counts.get("life") == self._start.session_id else 0

    @property
    def is_covered(self) -> bool:
        """Whether everything read is in the newest checkpoint on disk, or would be repeated by a resumed run."""
        counts = self._upkeep.durable_counts or {}
        if self._repetition.replaces_newest:
            return True
        return (counts.get("life"), counts.get("taken")) == (self._start.session_id, self._parts.ring.n_taken)

    def account(self, rows: int) -> Account:
        """Return the expected content of the finished run folder; ``rows``: number of episodes closed by the loop."""
        ring, log = self._parts.ring, self._log.account()
        return Account(
            rows=rows,
            read=self._parts.figures.ticks - self._n_newer_than_checkpoint,
            unread=ring.n_waiting,
            dropped=self.n_dropped,
            lost=self.n_lost + ring.n_damaged,
            newer=self._n_newer_than_checkpoint,
            is_covered=self.is_covered,
            log=log
            and log._replace(
                offered=ring.n_taken + self._n_logged_before,
                missing=log.missing + self.n_unlogged_before,
                reason=log.reason or "before the run was resumed",
            ),
            n_deviations=self._parts.requests.succession.n_deviations,
        )

    def files(self) -> dict[str, FileChecksum]:
        """Return the checksums of the run's append-only files, up to their current ends."""
        logs = (path.name for path in log_files(self._folder))
        return self._checksums.advance((*_APPENDED, *logs))

    # -- beginning ---------------------------------------------------------------------------------------------------

    def begin(self, recovery: Recovery | None) -> int:
        """Restore the run's state; return the id of the policy that a resumed run continues with, or 0.

        ``recovery``: recovery of a resumed run, or of a lockstep run whose replay process is replaced; otherwise None.
        """
        counts = self._upkeep.restored
        if counts is not None:
            self._restore_counts(counts)
            position = decode_point(self._upkeep.note)
            self._parts.requests.set_lineage(position.memory, position.lineage)
        if self._start.took_over:
            self._take_over(counts, recovery)
        elif recovery is not None:
            return self._resume(recovery)
        return 0

    def _restore_counts(self, counts: Mapping[str, int]) -> None:
        """Continue the counts of the checkpoint that the memory was restored from."""
        requests, is_same_loop = self._parts.requests, counts.get("life") == self._start.session_id
        requests.feed.last_closed_episode = counts["closed"]
        requests.feedback.last_batch, requests.feedback.batches = counts["error_batch"], counts.get("error_batches", 0)
        requests.updates, requests.mismatches = counts["updates"], counts["mismatches"]
        self._parts.figures.resume(counts)
        self._parts.builder.gaps = counts["gaps"]
        self._parts.policies.resume(counts)
        if self._parts.promise is not None:
            self._parts.promise.resume(counts)
        self._n_dropped_before = counts["dropped_before"] if is_same_loop else counts["dropped"]
        self.n_lost = counts.get("lost", 0)
        self.n_unlogged_before = counts.get("unlogged", 0)
        self._n_logged_before = counts.get("given_before" if is_same_loop else "given", 0)
        self._n_newer_than_checkpoint = counts.get("newer", 0)

    def _take_over(self, counts: Mapping[str, int] | None, recovery: Recovery | None) -> None:
        """Continue the work of a replay process that died while the loop was running."""
        ring, requests, figures = self._parts.ring, self._parts.requests, self._parts.figures
        if recovery is not None:
            if recovery.durations is not None:
                figures.restore_durations(recovery.durations)
            figures.add_earlier_rows(recovery.rows)
            requests.feed.last_closed_episode = recovery.start.episode
            requests.last_done_episode = recovery.start.episode if counts is not None else -1
            self._checkpointed_episode = requests.last_done_episode
            self._parts.policies.repeat_after(counts["next_policy"] - 1 if counts is not None else 0)
        else:
            self._parts.policies.submit_filed()
            if counts is not None:
                figures.restore_durations(decode_point(self._upkeep.note).durations)
                figures.add_earlier_rows(read_rows(self._folder / "episodes.csv").rows[: counts["rows"]])
        start = find_ring_position(ring.tail, self._start.session_id, counts)
        self.n_lost += start.lost
        ring.take(start.taken - ring.n_taken)
        self.context = ring.retained()
        builder = self._parts.builder
        if counts is not None and counts.get("life") == self._start.session_id:
            position = decode_point(self._upkeep.note)
            self._parts.accounts.restore(position.opened)
            builder.episode_start = position.began
        gaps = builder.gaps
        builder.add(self.context)
        builder.gaps = gaps  # already counted
        self._event(
            "memory_restored",
            inserted=self._parts.memory.storage.inserted,
            closed=requests.feed.last_closed_episode,
            again=ring.n_waiting,
            lost=start.lost,
        )

    def _resume(self, recovery: Recovery) -> int:
        """Restore the state of the resumed run, and report its position to the loop."""
        counts = self._upkeep.restored
        requests, figures, loop_state = self._parts.requests, self._parts.figures, self._parts.loop_state
        if counts is not None:
            requests.feedback.last_batch = 0  # the learner of a resumed run is new as well
            self._has_new_names = False
            self._checkpointed_episode = self._repetition.resume(recovery.start.episode)
        if recovery.durations is not None:
            figures.restore_durations(recovery.durations)
        figures.add_earlier_rows(recovery.rows, recovery.unrecorded, recovery.n_checkpointed_records)
        self._n_newer_than_checkpoint += sum(row.steps + 1 for row in recovery.unrecorded)
        self._n_newer_than_checkpoint -= recovery.n_checkpointed_records
        requests.feed.last_closed_episode = recovery.start.episode
        self._parts.policies.reserve_ids(max((row.policy_id for row in recovery.rows), default=0))
        policy = self._parts.policies.reinstate()
        if loop_state.take() is None:  # otherwise a loop is already running and reports its own position
            loop_state.put(encode_state(recovery.start))
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

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint_episode(self, episode: int) -> bool:
        """Write a checkpoint at the barrier after this episode if one is due; return whether this episode's checkpoint
        is on disk (lockstep)."""
        self._parts.policies.prune()
        if episode > self._checkpointed_episode:
            self._mark_collected(self._upkeep.checkpoint_episode(episode, self._content))
        counts = self._upkeep.durable_counts
        return counts is not None and counts["closed"] == episode

    def checkpoint_if_due(self, now_s: float) -> None:
        """Collect a checkpoint if one is due at ``now_s`` on the monotonic clock (real time)."""
        self._mark_collected(self._upkeep.checkpoint_if_due(now_s, self._content))

    def _mark_collected(self, is_collected: bool) -> None:
        """Mark the data of a collected checkpoint as covered, because writing it is retried until it succeeds."""
        if is_collected:
            self._parts.policies.mark_synced(self._unsynced_policies)
            self._has_new_names = False

    def close(self) -> None:
        """Write a last checkpoint, if the run can be continued from its current state, and stop."""
        self._upkeep.close(self._content if self._repetition.is_at_rest else None)

    def abandon(self) -> None:
        """Stop once the checkpoint in progress has been written, without collecting another."""
        self._upkeep.close(None)

    def _content(self) -> CheckpointContent:
        """Return the content of a checkpoint other than the memory; raises CheckpointError if rows or policies are
        still waiting for disk space."""
        parts = self._parts
        parts.policies.prune()
        parts.rows.flush()
        if parts.rows.waiting or parts.policies.waiting:
            raise CheckpointError(
                f"{self._folder}: {parts.rows.waiting} rows and {parts.policies.waiting} policies are waiting for "
                "disk space; no checkpoint is written before them"
            )
        next_seq = parts.ring.n_taken
        log = self._log.account()
        extra = {
            "closed": parts.requests.feed.last_closed_episode,
            "error_batch": parts.requests.feedback.last_batch,
            "error_batches": parts.requests.feedback.batches,
            "gaps": parts.builder.gaps,
            "rows": parts.rows.count,
            "dropped": self.n_dropped,
            "dropped_before": self._n_dropped_before,
            "lost": self.n_lost + parts.ring.n_damaged,
            "unlogged": self.n_unlogged_before + (log.missing if log is not None and not log.ended_by_limit else 0),
            "given": self._n_logged_before + (next_seq if log is not None else 0),
            "given_before": self._n_logged_before,
            "newer": self._n_newer_than_checkpoint,
            "life": self._start.session_id,
            "taken": next_seq,
            # The last record, which forms a pair with the next one, is read again for its context.
            "since": max(0, next_seq - 1),
            "updates": parts.requests.updates,
            "mismatches": parts.requests.mismatches,
            **parts.figures.counts(),
            **parts.policies.counts(),
            **(parts.promise.counts() if parts.promise is not None else {}),
        }
        loop_state, durations = decode_state(parts.loop_state.take()), parts.figures.durations()
        open_episodes, episode_start, requests = parts.accounts.state(), parts.builder.episode_start, parts.requests
        note = encode_point(
            Point(
                loop_state,
                durations,
                open_episodes,
                episode_start,
                requests.memory_name,
                requests.lineage,
                self._start.run,
                self._start.config_text,
                self.files(),
                parts.policies.rolled_back_crc32,
            )
        )
        required_files = [self._folder / name for name in ("episodes.csv", *self._repetition.relies_on)]
        if self._has_new_names:
            required_files.append(self._folder)
        self._unsynced_policies = parts.policies.unsynced
        if self._unsynced_policies:
            required_files += [*self._unsynced_policies, self._folder / POLICY_INDEX, self._folder / "policies"]
        return CheckpointContent(extra, note, required_files)
