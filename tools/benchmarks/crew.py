"""The measured processes as a crew: they start, take turns, and fall out with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

import msgspec

from onrig.tools.benchmarks.peers import Unavailable
from onrig.tools.benchmarks.progress import Progress
from onrig.tools.benchmarks.workers import Worker

START_S: Final = 3.0
"""What a process takes to come up, roughly."""

R = TypeVar("R", bound=msgspec.Struct)


class Crew:
    """Starts processes and asks them; a library that fails on the way falls out."""

    def __init__(self, progress: Progress, worker: Callable[[str], Worker] = Worker) -> None:
        self._progress: Final = progress
        self._worker: Final = worker
        self.unavailable: Final[dict[tuple[str, str], str]] = {}
        """Reasons by package and kind; the kind is empty where it is the library as a whole."""

    def start(self, packages: Iterable[str], stack: ExitStack) -> list[Worker]:
        """Start a process for each of ``packages`` that has not failed; ``stack`` ends them."""
        workers = []
        for package in packages:
            self._progress.doing(f"starting {package}")
            try:
                if (package, "") not in self.unavailable:
                    workers.append(stack.enter_context(self._worker(package)))
            except Unavailable as reason:
                self.unavailable[package, ""] = str(reason)
            self._progress.done(START_S)
        return workers

    def ask(self, worker: Worker, kind: str, call: msgspec.Struct, expected: type[R]) -> R | None:
        """Send ``call``; None when the library cannot do ``kind``, now or before."""
        if worker.ended or (worker.package, kind) in self.unavailable:
            return None
        try:
            return worker.ask(call, expected)
        except Unavailable as reason:
            self.unavailable[worker.package, kind] = str(reason)
            return None


def in_turn(workers: Sequence[Worker], turn: int) -> Sequence[Worker]:
    """Return the ``workers``, each turn another one first: the moods of the machine hit all alike."""
    first = turn % max(len(workers), 1)
    return (*workers[first:], *workers[:first])
