"""Audit of a finished run: its own account must agree with its files, and every loss must be reported.

The audit compares the run's own account, the files on disk (``run_folder``), independent counts, and a passive mirror
of the memory.  The mirror uses only the link's messages and the storage, not the learner's mirror: two implementations
of one protocol must produce the same bytes.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import LinkClient, LinkClosed, RequestRejected
from onrig.runtime.link.keys import LearnerKeys
from onrig.runtime.link.messages import LINK_VERSION, UNKNOWN, Attach, Attached, Pull, Rows
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.storage import STAMP_WORDS, Storage
from onrig.runtime.run_config import RunConfig
from tests.lab.rig.run_folder import Fields, FolderContents, kept_memory

ON_REQUEST: Final = (ExitCode.INTERRUPTED, ExitCode.INCOMPLETE)
"""Exit codes of a run ended by a request."""
_WITH_SUMMARY: Final = (ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.HARDWARE, ExitCode.SAFETY, ExitCode.INTERRUPTED)
"""Exit codes after which a summary must exist and be correct; others mean a lost part of the rig."""


class Observed(NamedTuple):
    """Observations of a run from outside."""

    code: int | None
    """Exit code, negative for a signal; None while it is not over."""
    closed: int | None = None
    """Number of training episodes closed by the loop, from the shared status words; None if not read."""
    resumed: bool = False
    """Whether it was resumed: episodes after a checkpoint were then repeated."""


def losses(contents: FolderContents, config: RunConfig, observed: Observed) -> list[str]:
    """Data missing on disk, one line each."""
    return [
        *([contents.rows_problem] if contents.rows_problem else []),
        *_lost_rows(contents, config, observed),
        *_lost_records(contents),
        *_lost_experiences(contents, config, observed),
        *_lost_policies(contents),
    ]


def findings(contents: FolderContents, config: RunConfig, observed: Observed) -> list[str]:
    """List the contradictions between a run's account and its files."""
    missing = losses(contents, config, observed)
    if observed.code not in _WITH_SUMMARY:  # this code reports that a part of the run died
        return []
    if not contents.summary:
        return [f"ended with {observed.code} and left no summary.json"]
    completeness = contents.summary.get("whole")
    names = ", ".join(sorted(contents.unfinished_files)[:5])
    reported = isinstance(completeness, dict) and completeness.get("complete") is False
    found = (
        [f"{len(contents.unfinished_files)} files were left half-written: {names}"] if contents.unfinished_files else []
    )
    if missing and not reported:
        found += [f"lost without a report (exit {observed.code}): {line}" for line in missing]
    if reported and observed.code == ExitCode.OK:
        found.append("summary.json says that data are missing, and the exit code is 0")
    if observed.code == ExitCode.INCOMPLETE and not reported:
        found.append("the exit code says that data are missing, and summary.json does not")
    if isinstance(completeness, dict):
        found += _false_counts(completeness, contents)
        if reported and not completeness.get("lost"):
            found.append("summary.json says that data are missing, and not which")
    return found


def differences(ours: FolderContents, reference: FolderContents) -> list[str]:
    """List differences from an undisturbed run; in lockstep there must be none."""
    found = []
    if ours.rows != reference.rows:
        first = next((i for i, (a, b) in enumerate(zip(ours.rows, reference.rows, strict=False)) if a != b), None)
        where = f"from row {first + 1} on" if first is not None else f"{len(ours.rows)} of {len(reference.rows)}"
        found.append(f"episodes.csv differs: {where}")
    if _digest(ours) != _digest(reference):
        found.append(f"the memory differs: {_offered(ours)} experiences offered, {_offered(reference)} when left alone")
    return found


def policy_differences(ours: dict[int, bytes], reference: dict[int, bytes]) -> list[str]:
    """Return ids of policies that differ from those of an undisturbed run."""
    other = sorted(i for i in ours.keys() | reference.keys() if ours.get(i) != reference.get(i))
    return [f"policies differ: {_ranges(other)}"] if other else []


def _digest(contents: FolderContents) -> str:
    return "" if contents.checkpoint is None else contents.checkpoint.digest


def _offered(contents: FolderContents) -> int | None:
    return None if contents.checkpoint is None else contents.checkpoint.offered


def _lost_rows(contents: FolderContents, config: RunConfig, observed: Observed) -> list[str]:
    trained = [row.episode for row in contents.rows if row.kind == "train"]
    evaluated = [row.episode for row in contents.rows if row.kind == "eval"]
    last = max(trained, default=0)
    if contents.summary.get("exit_reason") == "completed":
        last = config.episodes
    if observed.closed is not None and not observed.resumed:
        last = max(last, observed.closed)
    wanted, found = range(1, last + 1), []
    if absent := sorted(set(wanted) - set(trained)):
        found.append(f"rows of training episodes {_ranges(absent)} of {last} are missing")
    if twice := sorted({n for n in trained if trained.count(n) > 1}):
        found.append(f"rows of training episodes {_ranges(twice)} are there twice")
    every = config.evaluate_every
    behind = range(every, max(trained, default=0), every) if every else range(0)  # the last one may be unfinished
    redone = config.lockstep or not observed.resumed  # in real time an interrupted evaluation is not repeated
    if absent := sorted(set(behind) - set(evaluated) if redone else ()):
        found.append(f"rows of evaluation episodes {_ranges(absent)} are missing")
    return found


def _lost_records(contents: FolderContents) -> list[str]:
    log, found = contents.log, []
    if log is None:
        return []
    if log.problem:
        found.append(f"the log cannot be read: {log.problem}")
    if log.missing:
        found.append(f"the log lacks {log.missing} records between those that it holds")
    absent = [row for row in contents.rows if (row.episode, row.kind) not in log.episodes]
    if absent:
        found.append(f"the log lacks the records of episodes {_ranges(row.episode for row in absent)}")
    for row in contents.rows:
        logged = log.episodes.get((row.episode, row.kind))
        if logged is not None and logged.steps != row.steps:
            found.append(f"the log has {logged.steps} steps of {row.kind} episode {row.episode}, its row {row.steps}")
    return found


def _lost_experiences(contents: FolderContents, config: RunConfig, observed: Observed) -> list[str]:
    """Compare the steps that make experiences, from the rows, with the number offered to the memory."""
    made, offered = sum(row.steps for row in contents.rows if row.kind == "train"), _offered(contents)
    if offered is None:
        return [f"no checkpoint that can be read, and {made} experiences made"] if made else []
    short = offered != made if config.lockstep else offered < made and not observed.resumed
    return [f"{offered} experiences of {made}"] if short else []


def _lost_policies(contents: FolderContents) -> list[str]:
    acted = {row.policy_id for row in contents.rows} - {0}
    if contents.log is not None:
        acted |= {number for episode in contents.log.episodes.values() for number in episode.policies}
    absent = sorted(acted - contents.policies)
    return [f"policies {_ranges(absent)} acted and are not kept"] if absent else []


def _false_counts(completeness: Fields, contents: FolderContents) -> list[str]:
    rows = completeness.get("rows")
    present = rows.get("present") if isinstance(rows, dict) else None
    if present is None or present == len(contents.rows):
        return []
    return [f"summary.json counts {present} rows, episodes.csv holds {len(contents.rows)}"]


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ``1-3, 7``."""
    spans: list[list[int]] = []
    for n in sorted(set(numbers)):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in spans)


_WAIT_MS: Final = 200
_COMPARE_S: Final = 2.0
_PAUSE_S: Final = 0.2


def differing(mirror: Storage, kept: Storage) -> int:
    """Count the slots in which two copies of one memory differ but must agree.

    Either copy may include more writes than the other.  A slot whose last write is in both must contain the same write,
    bit for bit.
    """
    slots = np.arange(mirror.capacity)
    ours, theirs = mirror.number(slots), kept.number(slots)
    both = (ours <= min(mirror.inserted, kept.inserted)) & (theirs <= min(mirror.inserted, kept.inserted))
    unequal = (ours != theirs) | (mirror.words != kept.words).any(axis=1)
    return int(np.count_nonzero(both & unequal))


class MirrorState(NamedTuple):
    """State of the mirror."""

    token: bytes
    """Id of the mirrored memory; each replay process has its own."""
    inserted: int
    behind: int
    """Number of the rig's writes that the mirror lacked at the last message."""
    last_message_s: float
    """Monotonic time of the last message."""
    digest: str


class WatchingMirror(threading.Thread):
    """Mirror of the memory at ``endpoint`` until ``close``, compared with the run folder's."""

    def __init__(self, config: RunConfig, endpoint: str, keys: LearnerKeys) -> None:
        super().__init__(daemon=True)
        self._config, self._endpoint, self._keys = config, endpoint, keys
        self._closing = False
        self._session: Final = os.urandom(16)
        self._lock = threading.Lock()
        self._storage: Storage | None = None
        self._token = b""
        self._behind, self._last_message_s = 0, 0.0
        self.folder: Path | None = None
        """Run folder of the running rig."""
        self.applied = 0
        """Number of writes mirrored, over all memories."""
        self.attached = 0
        self.compared = self.compared_complete = self.mismatches = 0
        """Numbers of comparisons with a checkpoint, of those with equal length, by hash, and of those with a
        difference."""
        self.problem = ""

    @property
    def state(self) -> MirrorState:
        """Current state of the mirror."""
        with self._lock:
            storage = self._storage
            digest = "" if storage is None else storage.digest().hex()
            inserted = 0 if storage is None else storage.inserted
            return MirrorState(self._token, inserted, self._behind, self._last_message_s, digest)

    @property
    def progress(self) -> tuple[float, int]:
        """(time of the last message, number of writes behind); cheap to call."""
        return self._last_message_s, self._behind

    def run(self) -> None:
        """Mirror until closed, reconnecting as needed."""
        while not self._closing:
            client = LinkClient(self._endpoint, lambda: self._closing, self._keys, math.inf)
            with contextlib.suppress(LinkClosed):
                self._follow(client)
            client.close()

    def close(self) -> None:
        self._closing = True
        self.join()

    def _follow(self, client: LinkClient) -> None:
        attached = False
        compared_s = time.monotonic()
        while not self._closing:
            try:
                if not attached:
                    self._attach(client)
                    attached = True
                ending = self._pull(client)
                if time.monotonic() - compared_s >= _COMPARE_S or ending:
                    compared_s = time.monotonic()
                    self._compare(client)
                if ending:
                    return
            except RequestRejected as refusal:
                if refusal.code != UNKNOWN:
                    self.problem = str(refusal)
                attached = False
                time.sleep(_PAUSE_S)

    def _attach(self, client: LinkClient) -> None:
        answer, _ = client.ask(Attach(LINK_VERSION, self._session, "watch", self._token))
        if not isinstance(answer, Attached):
            raise RequestRejected(f"unexpected answer to attach: {type(answer).__name__}")
        self.attached += 1
        if answer.memory == self._token and self._storage is not None:
            return
        with self._lock:
            layout = Layout(len(self._config.signals), len(self._config.rig.actuators), answer.behaviour)
            self._storage = Storage(answer.capacity, layout, cyclic=answer.cyclic)
            self._token = answer.memory

    def _pull(self, client: LinkClient) -> bool:
        """Apply the next writes; returns whether the run is over and the mirror complete."""
        storage = self._storage
        assert storage is not None
        closed = 1 << 62  # only writes end the wait
        rows, payloads = client.ask(Pull(storage.inserted, closed, _WAIT_MS))
        if not isinstance(rows, Rows) or len(payloads) != 1:
            raise RequestRejected("the rig answered a pull with something else")
        with self._lock:
            if payloads[0]:
                words = np.frombuffer(payloads[0], "<u4").astype(np.uint32)
                before = storage.inserted
                storage.write_rows(words.reshape(-1, STAMP_WORDS + storage.layout.width))
                self.applied += storage.inserted - before
            self._behind, self._last_message_s = rows.inserted - storage.inserted, time.monotonic()
        return rows.ending and not self._behind

    def _compare(self, client: LinkClient) -> None:
        """Compare with the newest checkpoint of the run; one that is just being replaced is skipped."""
        folder = self.folder
        memory = None if folder is None else kept_memory(self._config, folder)
        if memory is None:
            return
        kept = memory.storage
        # The same rig must reply after the checkpoint was read; otherwise the checkpoint may belong to a later memory.
        self._pull(client)
        mirror = self._storage
        assert mirror is not None
        if kept.capacity != mirror.capacity:
            return
        found = differing(mirror, kept)
        self.compared += 1
        if mirror.inserted == kept.inserted:
            self.compared_complete += 1
            found += mirror.digest() != kept.digest()
        if found:
            self.mismatches += 1
            self.problem = f"{found} slots differ at write {mirror.inserted}, on disk {kept.inserted}"
