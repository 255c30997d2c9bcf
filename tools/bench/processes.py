"""Processes of a benchmark: subjects, which are measured in turn, and background companions.

Each subject has a separate process, so that one library's threads, allocator and garbage collector do not disturb the
measurements of the other libraries.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, Self, TypeVar

from onrig.tools.progress import Progress
from onrig.tools.workers import ONE_THREAD_ENVIRONMENT, Unavailable, WorkerProcess

START_UP_TIME_S: Final = 3.0
"""Approximate start-up time of a process."""
_JAX_ENVIRONMENT: Final = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
_QUIET_ENVIRONMENT: Final = {"RL_WARNINGS": "0", "PYTHONWARNINGS": "ignore", "TORCHRL_LOGLEVEL": "ERROR"}
CPUS: Final = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
"""CPUs available to this process."""

R = TypeVar("R")


class Worker(WorkerProcess):
    """Process of one subject."""

    def __init__(self, subject: str, module: str) -> None:
        """Run ``module`` with ``subject`` as its argument. Raises ``Unavailable`` if it does not start."""
        super().__init__(module, subject, environment=_JAX_ENVIRONMENT | _QUIET_ENVIRONMENT)
        self.subject: Final = subject
        try:
            self.wait_for_value()
        except BaseException:
            self.stop()
            self.close()
            raise


class ProcessGroup:
    """Processes of the subjects; a subject whose library fails is skipped, and the reason is recorded."""

    def __init__(self, progress: Progress, module: str) -> None:
        self._progress: Final = progress
        self._module: Final = module
        self.unavailable_reasons: Final[dict[tuple[str, str], str]] = {}
        """Reasons by subject and kind; the kind is empty if the library itself failed."""

    def start(self, subjects: Iterable[str], stack: ExitStack) -> list[Worker]:
        """Start a process for each subject that has not failed; ``stack`` ends these processes."""
        workers = []
        for subject in subjects:
            self._progress.begin_step(f"starting {subject}")
            try:
                if (subject, "") not in self.unavailable_reasons:
                    workers.append(stack.enter_context(Worker(subject, self._module)))
            except Unavailable as reason:
                self.unavailable_reasons[subject, ""] = str(reason)
            self._progress.finish_step(START_UP_TIME_S)
        return workers

    def ask(self, worker: Worker, kind: str, method: str, *arguments: object, returns: type[R]) -> R | None:
        """Call a method in the subject's process and return its result.

        The result is None if the process has ended or if the library does not support ``kind``.
        """
        if worker.has_ended or (worker.subject, kind) in self.unavailable_reasons:
            return None
        try:
            return worker.ask(method, *arguments, returns=returns)
        except Unavailable as reason:
            self.unavailable_reasons[worker.subject, kind] = str(reason)
            return None


def round_robin(workers: Sequence[Worker], rounds: int) -> Iterator[Worker]:
    """Yield the workers in turn, starting each round with a different one, so that disturbances affect all equally."""
    for round_index in range(rounds):
        first_index = round_index % max(len(workers), 1)
        yield from (*workers[first_index:], *workers[:first_index])


@contextlib.contextmanager
def restrict_to_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """Restrict this process and its children to these CPUs within a context."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    previous = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, previous)


class Companion:
    """Background process that ends with its context; Ctrl-C does not reach it."""

    def __init__(self, module: str, *arguments: str, has_stdin_pipe: bool = False) -> None:
        pipe = subprocess.PIPE if has_stdin_pipe else subprocess.DEVNULL
        with restrict_to_cpus(CPUS):
            self.process: Final = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=pipe,
                stdout=pipe,
                env=os.environ | ONE_THREAD_ENVIRONMENT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()
