"""Processes of a benchmark: subjects, one per process and measured in turns, and background companions.

Every subject is measured in a process of its own, so that no library's threads, allocator or garbage disturb another's
times.  Calls and replies are lines of JSON on its stdin and stdout: the name of a method and its arguments, what it
returned or why it was refused.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NoReturn, Self, TypeVar, get_type_hints

import msgspec

from onrig.tools.progress import Progress

START_S: Final = 3.0
"""Approximate start-up time of a process."""
ONE_CORE: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
_JAX: Final = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}
_QUIET: Final = {"RL_WARNINGS": "0", "PYTHONWARNINGS": "ignore", "TORCHRL_LOGLEVEL": "ERROR"}
_END_S: Final = 10.0
CPUS: Final = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
"""CPUs available to this process."""

R = TypeVar("R")


class Unavailable(Exception):
    """The library is installed but cannot do this here; gives the reason."""


class _Reply(msgspec.Struct, omit_defaults=True):
    """Result of a call; the first reply of a process reports its start."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    refused: str | None = None


class Worker:
    """One subject's process; a context that ends it."""

    def __init__(self, subject: str, module: str) -> None:
        """Run ``module`` with ``subject`` as its argument; raises ``Unavailable`` when it does not come up."""
        self.subject: Final = subject
        self._complaints: Final = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", module, subject],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=os.environ | ONE_CORE | _JAX | _QUIET,
        )
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, *arguments: object, returns: type[R]) -> R:
        """Call a method of the subject; raises ``Unavailable`` when the library cannot do it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode((method, arguments)) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._gone()
        return msgspec.json.decode(self._take(), type=returns)

    def _take(self) -> msgspec.Raw:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._gone()
        reply = msgspec.json.decode(line, type=_Reply)
        if reply.refused is not None:
            raise Unavailable(reply.refused)
        return reply.value

    def _gone(self) -> NoReturn:
        code = self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        raise Unavailable(f"its process ended with {code}: {said[-1] if said else 'no output'}")

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # closing flushes what could not be sent
                    stream.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._complaints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(come_up: Callable[[], object]) -> None:
    """Answer calls of the methods of what ``come_up`` returns until stdin ends; ``Unavailable`` is a refusal."""
    # Libraries print to stdout; replies get a channel of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(reply: _Reply) -> None:
        answers.write(msgspec.json.encode(reply) + b"\n")
        answers.flush()

    try:
        subject = come_up()
    except Unavailable as reason:
        say(_Reply(refused=str(reason)))
        return
    say(_Reply())
    for line in sys.stdin.buffer:
        method, arguments = msgspec.json.decode(line, type=tuple[str, list[msgspec.Raw]])
        call = getattr(subject, method)
        hints = get_type_hints(call)
        types = [hints[name] for name in inspect.signature(call).parameters]
        try:
            value = call(*(msgspec.json.decode(a, type=t) for a, t in zip(arguments, types, strict=True)))
            say(_Reply(msgspec.Raw(msgspec.json.encode(value))))
        except Unavailable as reason:
            say(_Reply(refused=str(reason)))


class Crew:
    """Subjects that start, take turns, and drop out with a reason when their library fails."""

    def __init__(self, progress: Progress, module: str) -> None:
        self._progress: Final = progress
        self._module: Final = module
        self.unavailable: Final[dict[tuple[str, str], str]] = {}
        """Reasons by subject and kind; the kind is empty where the library as a whole failed."""

    def start(self, subjects: Iterable[str], stack: ExitStack) -> list[Worker]:
        """Start a process for each subject that has not failed; ``stack`` ends them."""
        workers = []
        for subject in subjects:
            self._progress.doing(f"starting {subject}")
            try:
                if (subject, "") not in self.unavailable:
                    workers.append(stack.enter_context(Worker(subject, self._module)))
            except Unavailable as reason:
                self.unavailable[subject, ""] = str(reason)
            self._progress.done(START_S)
        return workers

    def ask(self, worker: Worker, kind: str, method: str, *arguments: object, returns: type[R]) -> R | None:
        """Call a method; None when the library cannot do ``kind``, now or before."""
        if worker.ended or (worker.subject, kind) in self.unavailable:
            return None
        try:
            return worker.ask(method, *arguments, returns=returns)
        except Unavailable as reason:
            self.unavailable[worker.subject, kind] = str(reason)
            return None


def in_turn(workers: Sequence[Worker], rounds: int) -> Iterator[Worker]:
    """Round-robin over the workers, starting with another one each round, so that disturbances affect all alike."""
    for turn in range(rounds):
        first = turn % max(len(workers), 1)
        yield from (*workers[first:], *workers[:first])


@contextlib.contextmanager
def on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """Context that restricts this process and its children to these CPUs."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Companion:
    """Background process until the context ends; shielded from Ctrl-C."""

    def __init__(self, module: str, *arguments: str, piped: bool = False) -> None:
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        with on_cpus(CPUS):
            self.process: Final = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=pipe,
                stdout=pipe,
                env=os.environ | ONE_CORE,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()
