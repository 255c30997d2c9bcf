"""The memory on disk: what the replay process owns survives kill -9 and power loss.

A folder (``buffer/`` of a run folder) holds the newest checkpoint, the one before it, and what the two share:

* ``rows-N.seg``: experiences as :meth:`Storage.rows` exports them, appended as they are written;
* ``order-N.seg``: the keeper's arrays of one entry per slot, once whole, then only the entries that changed;
* ``manifest-N.json``: one per checkpoint.  It names the segments and how much of each counts (length, CRC), and holds
  everything small: keeper state with its random streams, counts.

Segments are rows of blocks, each with a CRC-32 that continues the one of the block before, from the segment's name
on; so the one number in the manifest stands for all of a segment's content, in order.

**Order of writing.**  0. fsync what the checkpoint relies on beside the folder (rows of ``episodes.csv``, policies).
1. Append behind what the last manifest counts, fdatasync.  2. If there is a new segment, fsync
the folder.  3. Write ``manifest.tmp``, fsync, rename to ``manifest-N.json``, fsync the folder.  4. Only then delete
what neither this manifest nor the one before it names.  Nothing that a manifest counts is ever written again.  So a
power cut at any moment leaves the last checkpoint whole, and kill -9, which spares the page cache, all the more.  If
the newest checkpoint turns out damaged (a failing medium), the one before it is taken, and :class:`Restored` says so.

**What it costs.**  A write takes time and bytes proportional to what is new, but for one copy and one comparison of
the keeper's per-slot arrays (8 bytes per slot for TDE and Expl, nothing for the others), of which a copy stays in
memory (``Keeper.checkpoint_bytes_per_slot``).  Encoding, CRC and fsync happen in a thread that does not hold the
interpreter.  On disk, in rows of 12 + ``Layout.row_bytes`` bytes (and, for each, at most 4096 rows more):
cyclic storage up to 1.5 times the capacity; otherwise a generation grows to twice what is stored, then the next one is
begun and takes over piece by piece, never more than 3.5 times together.  Requests: up to 16 bytes per slot and file, of
which there are at most three.
"""

from __future__ import annotations

from onrig.runtime.replay.checkpoint.blocks import CheckpointError
from onrig.runtime.replay.checkpoint.manifest import Experiences, Identity, identity_of
from onrig.runtime.replay.checkpoint.restore import Restored, restore
from onrig.runtime.replay.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointError",
    "CheckpointWriter",
    "Experiences",
    "Identity",
    "Restored",
    "identity_of",
    "restore",
]
