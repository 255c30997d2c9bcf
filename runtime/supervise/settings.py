"""The section ``supervision`` of a run: how it ends, and how long it waits for whom."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from onrig.hw.bounds import Seconds

_HANG_S: Final = 30.0
_FROZEN_S: Final = 2.0


class Supervision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run ends and how long it waits for a person."""

    fade_s: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 0.3
    """On the first Ctrl-C the command fades to the safe output over this time (device time); 0: at once."""
    resume_timeout_s: Seconds = 600.0
    """How long a run that is paused, or latched a fault that a person must re-arm, waits before it ends."""
    hang_s: Annotated[float, msgspec.Meta(ge=2.0, le=3600.0)] | msgspec.UnsetType = msgspec.UNSET
    """A replay process or local learner that shows no progress for so long is killed and started again; 30 by
    default, which is not written to ``config.yaml``: the names of parent runs are digests of that."""
    frozen_s: Seconds | msgspec.UnsetType = msgspec.UNSET
    """Sensors that do not change by a count for so long (device time), while every actuator's output varies by a
    quarter of its range in each half of it, are a fault; 0: never, for rigs that are slower than that.  2 by default,
    not written either."""

    @property
    def hang_limit_s(self) -> float:
        """``hang_s``, or its default."""
        return _HANG_S if self.hang_s is msgspec.UNSET else self.hang_s

    @property
    def frozen_limit_s(self) -> float:
        """``frozen_s``, or its default."""
        return _FROZEN_S if self.frozen_s is msgspec.UNSET else self.frozen_s
