"""A learner's feedback on replayed experiences, which some retentions use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onrig.runtime.link.messages import MAX_FEEDBACK_EXPERIENCES, Feedback, Refused
from onrig.runtime.memory.keepers.keeper import FEEDBACK
from onrig.runtime.replay.experiences import Memory


class FeedbackIntake:
    """Applies each batch of feedback once, in the order of the batches."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.last_batch = 0
        """Last batch applied; repeated batches are skipped."""
        self.batches = 0
        """Number of batches applied."""

    def is_known(self, request: Feedback) -> bool:
        """Whether the batch repeats one that has already been applied."""
        return request.batch <= self.last_batch

    def apply(self, request: Feedback, payloads: Sequence[bytes]) -> Refused | None:
        """Apply a new batch; a malformed one is refused and changes nothing."""
        try:
            slots, generations, values = (
                np.frombuffer(data, dtype) for data, dtype in zip(payloads, ("<i8", "<u4", "<f4"), strict=True)
            )
            if len(slots) > MAX_FEEDBACK_EXPERIENCES or len(generations) != len(slots):
                raise ValueError(f"unequal lengths, or more than {MAX_FEEDBACK_EXPERIENCES} experiences")
            values = values.reshape(len(request.kinds), len(slots))
            signals = [FEEDBACK[kind] for kind in request.kinds]
        except ValueError as error:
            return Refused(f"malformed feedback: {error}")
        except KeyError as unknown:
            return Refused(f"feedback of unknown kind {unknown}; known kinds are {', '.join(FEEDBACK)}")
        self.last_batch = request.batch
        self.batches += 1
        slots, generations = slots.astype(np.int64), generations.astype(np.uint32)
        for signal, magnitudes in zip(signals, np.abs(values).astype(np.float32), strict=True):
            self._memory.take_feedback(signal, slots, generations, magnitudes)
        return None
