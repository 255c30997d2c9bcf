"""Layout of the segment ``view``, which holds the newest figures and the newest sample of the memory.

The replay process writes it; viewers read it and write one word, to signal that they are watching.  They read the
step records directly from the loop's ring (``onrig.runtime.shm.ring.RingHistory``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from onrig.runtime.histogram import N_COARSE_BINS
from onrig.runtime.record import Miss, RecordLayout, Rule
from onrig.runtime.shm.latest import Latest, latest_bytes
from onrig.runtime.shm.segment import Segment

SAMPLE_POINTS: Final = 4096
_WORDS_BYTES: Final = 64

FIGURES: Final = np.dtype(
    [
        ("t_mono_ns", "<i8"),
        ("ticks", "<i8"),
        ("missed", "<i8", (len(Miss),)),
        ("rules", "<i8", (len(Rule),)),
        ("faults", "<i8"),
        ("late_commands", "<i8"),
        ("episode", "<i8"),
        ("stored", "<i8"),
        ("capacity", "<i8"),
        ("inserted", "<i8"),
        ("offered", "<i8"),
        ("dropped", "<i8"),
        ("gaps", "<i8"),
        ("updates", "<i8"),
        ("updates_per_s", "<f8"),
        ("score_last20", "<f8"),
        ("policies_offered", "<i8"),
        ("policies_admitted", "<i8"),
        ("policies_refused", "<i8"),
        ("tick_bins", "<i8", (N_COARSE_BINS,)),
        ("lateness_bins", "<i8", (N_COARSE_BINS,)),
        ("tick_max_ns", "<i8"),
        ("lateness_max_ns", "<i8"),
    ]
)
"""One row: counts since the run began (``missed`` by ``Miss``, ``rules`` by ``Rule``); unknown floats are NaN."""


def sample_dtype(n_observations: int, n_actions: int) -> np.dtype[np.void]:
    """Return the type of one experience in the memory's sample, normalised; ``number`` is the number of its write, and
    ``abs_td`` is NaN if unknown."""
    return np.dtype(
        [
            ("number", "<i8"),
            ("observation", "<f4", (n_observations,)),
            ("action", "<f4", (n_actions,)),
            ("reward", "<f4"),
            ("exploration", "<f4"),
            ("abs_td", "<f4"),
            ("policy_id", "<u2"),
            ("flags", "<u2"),
        ]
    )


def view_schema(layout: RecordLayout) -> str:
    """Return the text that identifies the segment's layout."""
    sample = sample_dtype(layout.n_policy_inputs, layout.n_actions)
    return f"view-2 {SAMPLE_POINTS} {FIGURES.descr} {sample.descr}"


def view_bytes(layout: RecordLayout) -> int:
    """Return the size of the segment's body."""
    return sum(_sizes(layout))


def _sizes(layout: RecordLayout) -> tuple[int, int, int]:
    sample = SAMPLE_POINTS * sample_dtype(layout.n_policy_inputs, layout.n_actions).itemsize
    return _WORDS_BYTES, latest_bytes(FIGURES.itemsize), latest_bytes(sample)


class ViewParts(NamedTuple):
    """Parts of an attached segment."""

    figures: Latest
    sample: Latest
    watched: memoryview
    """One word: monotonic time in ns at which a viewer last signalled."""

    def close(self) -> None:
        """Release the views, so that the segment can be unmapped."""
        self.figures.close()
        self.sample.close()
        self.watched.release()


def view_parts(segment: Segment, layout: RecordLayout) -> ViewParts:
    """Return the parts of a segment with this schema."""
    words, figures, sample = _sizes(layout)
    body = segment.body
    sample_size = SAMPLE_POINTS * sample_dtype(layout.n_policy_inputs, layout.n_actions).itemsize
    return ViewParts(
        Latest(body[words : words + figures], FIGURES.itemsize),
        Latest(body[words + figures : words + figures + sample], sample_size),
        body[:8].cast("Q"),
    )
