"""A process that forks others, which write checkpoints until they are killed (see ``test_killed``).

It reads ``FOLDER RETENTION CALLS`` per line and answers, a line each: the child's pid, its progress, ``dead``.  A child
says the step of each checkpoint that is on disk; after CALLS calls to the operating system it kills itself, in the
middle of a write if that is the call (0: it waits to be killed).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from onrig.runtime.replay.checkpoint import CheckpointWriter, restore
from tests.runtime.replay.checkpoint.streams import Fed

CAPACITY = 600


def die_after(calls: int) -> None:
    """Put an end to this process at its ``calls``-th call."""
    left = calls

    def last(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                if name == "write":
                    fd, data = arguments
                    assert isinstance(data, bytes | memoryview)
                    real(fd, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    for name in ("open", "ftruncate", "write", "fdatasync", "fsync", "replace", "rename", "unlink"):
        setattr(os, name, last(name, getattr(os, name)))


def write_until_killed(folder: Path, retention: str, calls: int) -> None:
    """Go on from what is there; reading it does not count as calls."""
    out = sys.stdout
    fed = Fed(retention, CAPACITY, per_step=200)
    restored = restore(folder, fed, fed.identity)
    if restored is not None:
        fed.taken_up(restored)
    if calls:
        die_after(calls)
    writer = CheckpointWriter(folder, fed.identity, restored)
    while True:
        fed.resume()
        fed.write(writer)
        out.write(f"{fed.steps}\n")
        out.flush()


def main() -> None:
    for line in sys.stdin:
        folder, retention, calls = line.split()
        pid = os.fork()
        if pid == 0:
            print(os.getpid(), flush=True)
            write_until_killed(Path(folder), retention, int(calls))
        os.waitpid(pid, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
