"""Section ``supervision`` of a run: its end and its timeouts."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from onrig.hw.bounds import Seconds

# Unset rather than defaults: settings that came later are not written to config.yaml, by whose digest runs are named.
_HANG_S: Final = 30.0
_FROZEN_S: Final = 2.0


class Supervision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End and timeouts of a run."""

    fade_s: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 0.3
    """Time (device time) over which the first Ctrl-C fades the command to the safe output; 0: at once."""
    resume_timeout_s: Seconds = 600.0
    """Time after which a run ends that is paused or waits for a person to re-arm a fault."""
    hang_s: Annotated[float, msgspec.Meta(ge=2.0, le=3600.0)] | msgspec.UnsetType = msgspec.UNSET
    """Time without progress after which a replay process or local learner is killed and restarted (default 30)."""
    frozen_s: Seconds | msgspec.UnsetType = msgspec.UNSET
    """Time (device time) after which sensors that change by a count at most are a fault, if every actuator's output
    varies by a quarter of its range in each half of it (default 2); 0: never, for slower rigs."""

    @property
    def hang_limit_s(self) -> float:
        """``hang_s``, or its default."""
        return _HANG_S if self.hang_s is msgspec.UNSET else self.hang_s

    @property
    def frozen_limit_s(self) -> float:
        """``frozen_s``, or its default."""
        return _FROZEN_S if self.frozen_s is msgspec.UNSET else self.frozen_s
