"""Guard of Python code from outside in the tick: its exceptions, unusable results and overruns become a fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from onrig.runtime import registry

BUDGET_SHARE: Final = 0.1
"""Share of the sampling period that the pieces of a tick may each use."""
MOST_BUDGET_NS: Final = 2_000_000

T = TypeVar("T")
Given = ParamSpec("Given")


def budget_ns(period_us: int) -> int:
    """Budget of each foreign piece in one tick."""
    return min(round(BUDGET_SHARE * 1e3 * period_us), MOST_BUDGET_NS)


class Guard:
    """Calls foreign code of one tick; the first failure of an episode is reported to ``failed``."""

    def __init__(self, failed: Callable[[str], None], budget_ns: int, clock: Callable[[], int] | None) -> None:
        """``clock`` in ns measures overruns; without one, as in virtual time and in a replay, there are none."""
        self._failed, self._budget_ns, self._clock = failed, budget_ns, clock

    def wrapped(self, name: str, call: Callable[Given, T], instead: T) -> Callable[Given, T]:
        """The function ``call`` under guard; after a failure its result is ``instead``."""
        failed, most_ns, clock = self._failed, self._budget_ns, self._clock or _still

        def guarded(*given: Given.args, **named: Given.kwargs) -> T:
            began_ns = clock()
            try:
                result = call(*given, **named)
            except Exception as error:
                failed(f"{name} raises {registry.blame(error)}")
                return instead
            took_ns = clock() - began_ns
            if took_ns > most_ns:
                failed(f"{name} took {took_ns / 1e3:.0f} us, its budget is {most_ns / 1e3:.0f} us")
            return result

        return guarded


def _still() -> int:
    return 0


def measured_ns(call: Callable[[], object], calls: int = 200) -> int:
    """Time of a call that 99 of 100 keep within, of ``calls`` in a row after as many for practice."""
    for _ in range(calls):
        call()
    times = []
    for _ in range(calls):
        began_ns = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - began_ns)
    return sorted(times)[-1 - calls // 100]
