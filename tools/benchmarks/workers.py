"""The processes in which libraries are measured, seen from the benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Final, NoReturn, Self, TypeVar

import msgspec

from onrig.tools.benchmarks.messages import Ready, Refused, Reply
from onrig.tools.benchmarks.peers import Unavailable

_ONE_CORE: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
_QUIET: Final = {"RL_WARNINGS": "0", "PYTHONWARNINGS": "ignore", "TORCHRL_LOGLEVEL": "ERROR"}

R = TypeVar("R", bound=msgspec.Struct)

_MEMORIES: Final = "onrig.tools.benchmarks.worker"


class Worker:
    """One library's process; closed as a context manager."""

    def __init__(self, package: str, module: str = _MEMORIES) -> None:
        """Start ``module``; raises ``Unavailable`` when the library does not come up."""
        self.package: Final = package
        self._complaints: Final = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", module, package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=os.environ | _ONE_CORE | _QUIET,
        )
        self._decoder: Final = msgspec.json.Decoder(Reply)
        try:
            self._take(Ready)
        except BaseException:
            self.close()
            raise

    def ask(self, call: msgspec.Struct, expected: type[R]) -> R:
        """Send ``call`` and return the reply; raises ``Unavailable`` when the library cannot do it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(call) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._gone()
        return self._take(expected)

    def _take(self, expected: type[R]) -> R:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._gone()
        reply = self._decoder.decode(line)
        if isinstance(reply, Refused):
            raise Unavailable(reply.reason)
        if not isinstance(reply, expected):
            raise TypeError(f"{self.package} replied {type(reply).__name__}, expected {expected.__name__}")
        return reply

    def _gone(self) -> NoReturn:
        code = self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        raise Unavailable(f"its process ended with {code}: {said[-1] if said else 'it said nothing'}")

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # what could not be sent is sent once more
                    stream.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._complaints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
