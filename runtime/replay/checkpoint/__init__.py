"""Checkpoints of the memory on disk, which let the replay process's state survive kill -9 and power loss.

A folder (``buffer/`` of a run folder) contains the newest checkpoint, the previous one, and the files they share:

* ``rows-N.seg``: experiences as exported by :meth:`Storage.rows`, appended as they are written;
* ``order-N.seg``: those of the keeper's arrays that have one entry per slot, first complete, then only the changed
  entries;
* ``manifest-N.json``: one per checkpoint.  It names the segments and the part of each that counts (length, CRC), and
  contains all small state: keeper, random streams and counts.

A segment is a sequence of blocks.  Each block has a CRC-32 that continues the CRC of the previous block; the first one
continues the CRC of the segment's name.  The single CRC in the manifest thus covers a segment's entire content, in
order.

**Order of writing.**  0. fsync the other files that the checkpoint relies on (``episodes.csv``, policies). 1. Append
after the part counted by the last manifest, fdatasync.  2. If there is a new segment, fsync the folder. 3. Write
``manifest.tmp``, fsync, rename to ``manifest-N.json``, fsync the folder.  4. Only then delete files that neither this
manifest nor the previous one names.  The counted part of a segment is never rewritten.  A power cut at any moment
therefore leaves the last checkpoint intact, as does kill -9, which spares the page cache.  If the newest checkpoint is
damaged (a failing medium), the previous one is used, as reported in :class:`RestoredCheckpoint`.

**Cost.**  A write takes time and bytes proportional to the new content, plus one copy and one comparison of the
keeper's per-slot arrays (8 bytes per slot for TDE and Expl, 12 for eviction by episode, none for the others), of which
one copy remains in memory (``Keeper.checkpoint_bytes_per_slot``).  Encoding, CRC and fsync run in a thread that
releases the GIL.

**Disk space.**  Cyclic storage takes up to 1.5 times the capacity, in rows of 12 + ``Layout.row_bytes`` bytes.
Otherwise a generation of segments grows to twice the stored rows before a new one replaces it step by step; together
they have at most 3.5 times the stored rows.  Each of these figures may be exceeded by up to 4096 rows.  In addition,
there are at most three order segments, each up to twice the size of the per-slot arrays.
"""

from __future__ import annotations

from onrig.runtime.replay.checkpoint.blocks import CheckpointError
from onrig.runtime.replay.checkpoint.manifest import Experiences, Identity, identity_of
from onrig.runtime.replay.checkpoint.restore import RestoredCheckpoint, restore
from onrig.runtime.replay.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointError",
    "CheckpointWriter",
    "Experiences",
    "Identity",
    "RestoredCheckpoint",
    "identity_of",
    "restore",
]
