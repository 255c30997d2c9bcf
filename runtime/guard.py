"""Guard for third-party Python code in the tick: exceptions, unusable results and overruns become faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from onrig.runtime import registry

BUDGET_FRACTION: Final = 0.1
"""Largest share of the sampling period that one third-party call may take."""
MAX_BUDGET_NS: Final = 2_000_000

T = TypeVar("T")
P = ParamSpec("P")


def budget_ns(period_us: int) -> int:
    """Return the time budget of one third-party call per tick."""
    return min(round(BUDGET_FRACTION * 1e3 * period_us), MAX_BUDGET_NS)


class Guard:
    """Guard around a tick's third-party calls that reports each failure to ``on_failure``."""

    def __init__(self, on_failure: Callable[[str], None], budget_ns: int, clock: Callable[[], int] | None) -> None:
        """``clock``: clock in ns that detects overruns; None, as in virtual time and in replays, disables this
        check."""
        self._on_failure, self._budget_ns, self._clock = on_failure, budget_ns, clock

    def wrap(self, name: str, call: Callable[P, T], fallback: T) -> Callable[P, T]:
        """Wrap ``call``: an exception is reported and ``fallback`` returned; an overrun is reported and its result
        returned."""
        on_failure, max_ns, clock = self._on_failure, self._budget_ns, self._clock or _no_clock

        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            start_ns = clock()
            try:
                result = call(*args, **kwargs)
            except Exception as error:
                on_failure(f"{name} raises {registry.describe_exception(error)}")
                return fallback
            elapsed_ns = clock() - start_ns
            if elapsed_ns > max_ns:
                on_failure(f"{name} took {elapsed_ns / 1e3:.0f} us; its budget is {max_ns / 1e3:.0f} us")
            return result

        return guarded


def _no_clock() -> int:
    return 0


def measure_ns(call: Callable[[], object], n_calls: int = 200) -> int:
    """Return the 99th-percentile duration (ns) of ``n_calls`` consecutive calls, made after as many warm-up calls."""
    for _ in range(n_calls):
        call()
    durations_ns = []
    for _ in range(n_calls):
        start_ns = time.perf_counter_ns()
        call()
        durations_ns.append(time.perf_counter_ns() - start_ns)
    return sorted(durations_ns)[-1 - n_calls // 100]
