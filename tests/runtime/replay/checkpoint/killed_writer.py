"""A process that forks others, which write checkpoints until they are killed (see ``test_killed``).

It reads lines ``FOLDER RETENTION CALLS`` and answers with one line each: the child's pid, its progress, ``dead``.  A
child reports the step of each checkpoint on disk; after CALLS calls to the operating system it kills itself, in the
middle of a write if that is the call (0: it waits to be killed).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from onrig.runtime.replay.checkpoint import CheckpointWriter, restore
from tests.runtime.replay.checkpoint.streams import FedMemory

CAPACITY = 600


def kill_self_after(max_calls: int) -> None:
    """Kill this process at its ``max_calls``-th call."""
    calls_left = max_calls

    def counting_calls(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def counted_call(*arguments: object, **kwargs: object) -> object:
            nonlocal calls_left
            calls_left -= 1
            if calls_left == 0:
                if name == "write":
                    fd, data = arguments
                    assert isinstance(data, bytes | memoryview)
                    original(fd, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **kwargs)

        return counted_call

    for name in ("open", "ftruncate", "write", "fdatasync", "fsync", "replace", "rename", "unlink"):
        setattr(os, name, counting_calls(name, getattr(os, name)))


def write_until_killed(folder: Path, retention: str, max_calls: int) -> None:
    """Continue from the existing checkpoint; reading it does not count as calls."""
    out = sys.stdout
    memory = FedMemory(retention, CAPACITY, per_step=200)
    restored = restore(folder, memory, memory.identity)
    if restored is not None:
        memory.continue_from(restored)
    if max_calls:
        kill_self_after(max_calls)
    writer = CheckpointWriter(folder, memory.identity, restored)
    while True:
        memory.resume()
        memory.write(writer)
        out.write(f"{memory.steps}\n")
        out.flush()


def main() -> None:
    for line in sys.stdin:
        folder, retention, max_calls = line.split()
        pid = os.fork()
        if pid == 0:
            print(os.getpid(), flush=True)
            write_until_killed(Path(folder), retention, int(max_calls))
        os.waitpid(pid, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
