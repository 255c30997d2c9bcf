"""Worker processes, each of which runs a Python module and receives calls as lines of JSON on stdin.

A call consists of a method's name and its arguments. A worker replies with lines of JSON: one when it is ready and, for
each call, any number of progress notes followed by the value or the reason for the failure.
"""

from __future__ import annotations

import inspect
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Self, TypeVar, get_type_hints

import msgspec

from onrig.runtime.control.realtime import die_with_parent

ONE_THREAD_ENVIRONMENT: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
"""Environment variables that restrict numerical libraries to one thread."""
_EXIT_TIMEOUT_S: Final = 1.0

R = TypeVar("R")


class Unavailable(Exception):
    """A worker cannot execute its call; the message gives the reason."""


class Note(msgspec.Struct, frozen=True, tag=True):
    """Progress of a call."""

    value: msgspec.Raw


class Value(msgspec.Struct, frozen=True, tag=True):
    """Result of a call; null in the reply that announces that the worker is ready."""

    value: msgspec.Raw


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Refusal of a call that the worker cannot execute. If it is the first reply, the worker refuses all calls."""

    reason: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Failure of a call that raised an exception; the worker continues."""

    reason: str


Outcome = Value | Refused | Failed
Reply = Note | Outcome
_REPLY: Final = msgspec.json.Decoder(Reply)


class WorkerProcess:
    """Handle of a worker process. As a context manager, it ends the process on exit."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._partial_line = b""
        self._stderr: Final = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **ONE_THREAD_ENVIRONMENT, **(environment or {})},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.fd: Final = self._out.fileno()
        """File descriptor that is readable when replies have arrived."""
        os.set_blocking(self.fd, False)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def call(self, method: str, *arguments: object) -> None:
        """Send a call."""
        with suppress(BrokenPipeError):  # the process has ended, which `replies` reports
            self._in.write(msgspec.json.encode((method, arguments)) + b"\n")
            self._in.flush()

    def replies(self) -> Iterator[Reply | None]:
        """Yield the replies that have arrived, and finally None if the process has ended."""
        while True:
            try:
                data = os.read(self.fd, 1 << 20)
            except BlockingIOError:
                return
            if not data:
                yield None
                return
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            for line in lines:
                yield _REPLY.decode(line)

    def ask(self, method: str, *arguments: object, returns: type[R]) -> R:
        """Call a method, and return its value once it arrives. Raises Unavailable if the call fails or the process
        ends.
        """
        self.call(method, *arguments)
        return msgspec.json.decode(self.wait_for_value(), type=returns)

    def has_reply(self, within_s: float) -> bool:
        """Wait until a reply arrives or the process ends. Return False if neither happens in time."""
        return bool(select.select([self.fd], (), (), within_s)[0])

    def wait_for_value(self) -> msgspec.Raw:
        """Wait for the value of the last call, or for the worker to be ready. Raises Unavailable if it fails or ends
        instead.
        """
        while True:
            select.select([self.fd], (), ())
            for reply in self.replies():
                match reply:
                    case None:
                        raise Unavailable(self.end_reason())
                    case Value(value):
                        return value
                    case Refused(reason) | Failed(reason):
                        raise Unavailable(reason)

    @property
    def stderr_lines(self) -> str:
        """Output of the process on stderr."""
        # read by position, since the process shares the file offset
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0).decode(errors="replace")

    def end_reason(self) -> str:
        """Wait for the process to end, and return the cause."""
        code = self._process.wait()
        lines = self.stderr_lines.strip().splitlines()
        if code == -signal.SIGKILL:
            return "the worker was killed (out of memory?)"
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the worker ended {cause}: {lines[-1] if lines else 'no output'}"

    def stop(self) -> None:
        """Ask the process to end."""
        self._process.terminate()

    def close(self) -> None:
        """Wait for the process to end, and kill it if that takes too long. Call `stop` first."""
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._in, self._out, self._stderr):
            with suppress(BrokenPipeError):  # closing flushes unsent data
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self.close()


class Channel:
    """Worker's end of the connection: reads calls from stdin and replies on stdout.  All other output is redirected to
    stderr.
    """

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of the group; the caller handles it
        die_with_parent()
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # libraries may print to stdout

    def note(self, value: object) -> None:
        """Report progress of the current call."""
        self.reply(Note(msgspec.Raw(msgspec.json.encode(value))))

    def reply(self, reply: Reply) -> None:
        """Write one reply."""
        self._out.write(msgspec.json.encode(reply) + b"\n")
        self._out.flush()

    def serve(self, start_up: Callable[[], object], on_idle: Callable[[], None] | None = None) -> None:
        """Execute calls as methods of the object that ``start_up`` returns, until stdin ends. While no call is pending,
        ``on_idle`` is called repeatedly.
        """
        try:
            subject = start_up()
        except Unavailable as reason:
            self.reply(Refused(str(reason)))
            return
        self.reply(Value(msgspec.Raw(b"null")))
        with suppress(BrokenPipeError):  # the caller has ended
            while True:
                while on_idle is not None and not select.select([sys.stdin], (), (), 0)[0]:
                    on_idle()
                line = sys.stdin.buffer.readline()
                if not line:
                    return
                method, arguments = msgspec.json.decode(line, type=tuple[str, list[msgspec.Raw]])
                self.reply(execute_call(getattr(subject, method), arguments))


def execute_call(call: Callable[..., object], arguments: list[msgspec.Raw]) -> Outcome:
    """Call a function with JSON arguments, decoded according to its annotations."""
    hints = get_type_hints(call)
    types = [hints[name] for name in inspect.signature(call).parameters]
    try:
        value = call(*(msgspec.json.decode(a, type=t) for a, t in zip(arguments, types, strict=True)))
        return Value(msgspec.Raw(msgspec.json.encode(value)))
    except BrokenPipeError:
        raise
    except Unavailable as reason:
        return Refused(str(reason))
    except Exception as error:
        traceback.print_exc()
        return Failed(f"{type(error).__name__}: {error}")
