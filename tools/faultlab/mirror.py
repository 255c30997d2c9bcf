"""A mirror of the rig's memory that only watches, and its comparison with what the rig has kept on disk.

It is written against the link's messages and the storage alone, without the learner's own mirror: two readings of one
protocol must come to the same bytes.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from onrig.runtime.link.client import LinkClient, LinkClosed, RequestRejected
from onrig.runtime.link.keys import LearnerKeys
from onrig.runtime.link.messages import LINK_VERSION, UNKNOWN, Attach, Attached, Pull, Rows
from onrig.runtime.replay.memory.storage import STAMP_WORDS, Storage
from onrig.runtime.run_config import RunConfig
from onrig.tools.faultlab.run_folder import kept_memory

_WAIT_MS: Final = 200
_COMPARE_S: Final = 2.0
_PAUSE_S: Final = 0.2


def differing(mirror: Storage, kept: Storage) -> int:
    """Slots in which two readings of one memory differ and must not.

    Either may have seen more writes than the other.  A slot whose last write both have seen must hold the same write,
    bit for bit.
    """
    slots = np.arange(mirror.capacity)
    ours, theirs = mirror.number(slots), kept.number(slots)
    both = (ours <= min(mirror.inserted, kept.inserted)) & (theirs <= min(mirror.inserted, kept.inserted))
    unequal = (ours != theirs) | (mirror.words != kept.words).any(axis=1)
    return int(np.count_nonzero(both & unequal))


class Seen(NamedTuple):
    """State of the mirror."""

    token: bytes
    """Of the memory it mirrors; each replay process has its own."""
    inserted: int
    behind: int
    """Writes of the rig that the mirror lacked when it last heard."""
    heard_s: float
    """Monotonic time at which it last heard."""
    digest: str


class WatchingMirror(threading.Thread):
    """Mirrors whatever memory answers at ``endpoint`` until ``close``, and compares it with the run folder's."""

    def __init__(self, config: RunConfig, endpoint: str, keys: LearnerKeys) -> None:
        super().__init__(daemon=True)
        self._config, self._endpoint, self._keys = config, endpoint, keys
        self._closing = False
        self._session: Final = os.urandom(16)
        self._lock = threading.Lock()
        self._storage: Storage | None = None
        self._token = b""
        self._behind, self._heard_s = 0, 0.0
        self.folder: Path | None = None
        """The run folder of the rig that is running."""
        self.applied = 0
        """Writes mirrored, over all memories."""
        self.attached = 0
        self.compared = self.whole = self.mismatches = 0
        """Comparisons with a checkpoint; those of equal length, by hash; those that found a difference."""
        self.complaint = ""

    @property
    def seen(self) -> Seen:
        """Its state now."""
        with self._lock:
            storage = self._storage
            digest = "" if storage is None else storage.digest().hex()
            inserted = 0 if storage is None else storage.inserted
            return Seen(self._token, inserted, self._behind, self._heard_s, digest)

    @property
    def standing(self) -> tuple[float, int]:
        """(when it last heard, how many writes it is behind), at no cost."""
        return self._heard_s, self._behind

    def run(self) -> None:
        """Mirror, over as many connections as it takes."""
        while not self._closing:
            client = LinkClient(self._endpoint, lambda: self._closing, self._keys, math.inf)
            with contextlib.suppress(LinkClosed):
                self._follow(client)
            client.close()

    def close(self) -> None:
        """End."""
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
                    self.complaint = str(refusal)
                attached = False
                time.sleep(_PAUSE_S)

    def _attach(self, client: LinkClient) -> None:
        answer, _ = client.ask(Attach(LINK_VERSION, self._session, "watch", self._token))
        if not isinstance(answer, Attached):
            raise RequestRejected(f"unexpected answer to attach: {type(answer).__name__}")
        self.attached += 1
        if answer.memory == self._token and self._storage is not None:
            return
        rig = self._config.rig
        with self._lock:
            self._storage = Storage(answer.capacity, len(rig.signals), len(rig.actuators), cyclic=answer.cyclic)
            self._token = answer.memory

    def _pull(self, client: LinkClient) -> bool:
        """Apply the next writes; whether the run is over and nothing is missing."""
        storage = self._storage
        assert storage is not None
        closed = 1 << 62  # only writes are news
        rows, payloads = client.ask(Pull(storage.inserted, closed, _WAIT_MS))
        if not isinstance(rows, Rows) or len(payloads) != 1:
            raise RequestRejected("the rig answered a pull with something else")
        with self._lock:
            if payloads[0]:
                words = np.frombuffer(payloads[0], "<u4").astype(np.uint32)
                before = storage.inserted
                storage.write_rows(words.reshape(-1, STAMP_WORDS + storage.layout.width))
                self.applied += storage.inserted - before
            self._behind, self._heard_s = rows.inserted - storage.inserted, time.monotonic()
        return rows.ending and not self._behind

    def _compare(self, client: LinkClient) -> None:
        """Compare with the newest checkpoint of the run; one that is being replaced now is skipped."""
        folder = self.folder
        memory = None if folder is None else kept_memory(self._config, folder)
        if memory is None:
            return
        kept = memory.storage
        # The same rig must answer after the checkpoint was read: else the checkpoint may be of a later memory.
        self._pull(client)
        mirror = self._storage
        assert mirror is not None
        if kept.capacity != mirror.capacity:
            return
        found = differing(mirror, kept)
        self.compared += 1
        if mirror.inserted == kept.inserted:
            self.whole += 1
            found += mirror.digest() != kept.digest()
        if found:
            self.mismatches += 1
            self.complaint = f"{found} slots differ at write {mirror.inserted}, on disk {kept.inserted}"
