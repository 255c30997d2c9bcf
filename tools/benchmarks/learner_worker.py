"""One subject of ``onrig bench learner`` in a process of its own, on one torch thread."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import torch

from onrig.tools.benchmarks.learner_cases import WARM_UP, LearnerCase, Play, Time, Work
from onrig.tools.benchmarks.learners import Learner, load
from onrig.tools.benchmarks.messages import Timings
from onrig.tools.benchmarks.service import serve
from onrig.tools.benchmarks.timing import measure, measure_beside_stalls, quiet_collector

if TYPE_CHECKING:
    from onrig.tools.benchmarks.learners.strategies import Strategy


class Worker:
    """Holds what is being measured."""

    def __init__(self, learner: Learner) -> None:
        self._learner: Final = learner
        self._calls: Final[dict[LearnerCase, Callable[[], object]]] = {}
        self._strategy: Strategy | None = None

    def answer(self, call: Time | Play) -> Timings:
        """Time what is asked for; raises ``Unavailable`` when the library cannot do it."""
        return self._time(call) if isinstance(call, Time) else self._play(call)

    def _time(self, call: Time) -> Timings:
        run = self._calls.get(call.case)
        if run is None:
            run = self._calls[call.case] = self._learner.build(call.case, call.updates, call.seed)
            quiet_collector()
        timed = run
        gc.collect()
        if call.case.work is Work.LARGE:
            beside = measure_beside_stalls(lambda _: timed(), range(call.calls), call.limit_ns)
            return Timings(beside.calls, beside.spans)
        return Timings(measure(lambda _: timed(), range(call.calls), call.limit_ns))

    def _play(self, call: Play) -> Timings:
        # Imported here: the peer's process has nothing to do with plants.
        from onrig.tools.benchmarks.learners.strategies import Strategy

        if self._strategy is None:
            self._strategy = Strategy(call)
        self._strategy.forward_to(call.done)
        self._strategy.durations(WARM_UP)
        return self._strategy.durations(call.episodes)


def main(subject: str) -> None:
    """Serve until stdin ends."""
    torch.set_num_threads(1)
    serve(lambda: Worker(load(subject)).answer, msgspec.json.Decoder(Time | Play))


if __name__ == "__main__":
    main(sys.argv[1])
