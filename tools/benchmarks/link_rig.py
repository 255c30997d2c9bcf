"""The rig's side of ``onrig bench link``, a process of its own, and the handle by which the benchmark holds it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import msgspec

from onrig.runtime.link.keys import load_rig_keys
from onrig.runtime.replay.learners.policy_desk import PolicyDesk
from onrig.runtime.run_loading import load_run
from onrig.tools.benchmarks.rig_end import RigEnd, with_memory
from onrig.tools.benchmarks.timing import quiet_collector

_BATCH: Final = 64
"""Experiences that come in one turn, as when the ring has been filling for a while."""
_PATIENCE_S: Final = 120.0


class Start(msgspec.Struct):
    """What the process is to be."""

    folder: str
    capacity: int
    stored: int
    keys: str | None


class Listening(msgspec.Struct):
    """Where it listens."""

    endpoints: list[str]


class Hosted:
    """A rig's end in a process of its own; a context that ends it."""

    def __init__(self, folder: Path, capacity: int, stored: int, keys: Path | None) -> None:
        start = Start(str(folder), capacity, stored, None if keys is None else str(keys))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "onrig.tools.benchmarks.link_rig"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._say(msgspec.json.encode(start))
        line = self._out.readline()
        if not line:
            raise RuntimeError("the rig's process of the benchmark did not come up; its reason stands above")
        self.endpoints = msgspec.json.decode(line, type=Listening).endpoints

    def feed(self, experiences: int) -> None:
        """Have it take in so many more experiences, some in each turn."""
        self._say(b"%d" % experiences)

    def _say(self, line: bytes) -> None:
        self._in.write(line + b"\n")
        self._in.flush()

    def __enter__(self) -> Hosted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close()
        try:
            self._process.wait(_PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._out.close()


def main() -> None:
    """Serve learners, and take in experiences as told on stdin, until that ends."""
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    config = with_memory(load_run("pendulum"), "FIFO[Uniform]", start.capacity)
    keys = None if start.keys is None else load_rig_keys(Path(start.keys))
    with RigEnd(config, Path(start.folder), keys) as end:
        end.fill(start.stored)
        quiet_collector()
        sys.stdout.buffer.write(msgspec.json.encode(Listening(list(end.endpoints))) + b"\n")
        sys.stdout.buffer.flush()
        owed = 0
        while True:
            if select.select([sys.stdin], (), (), 0)[0]:
                line = sys.stdin.buffer.readline()
                if not line:
                    return
                owed += int(line)
            if owed:
                end.fill(min(owed, _BATCH))
                owed -= min(owed, _BATCH)
            end.turn(wait_ms=0 if owed else 1)


def new_policy_desk(end: RigEnd, folder: Path) -> PolicyDesk:
    """Return a desk like the rig's, to time admission alone."""
    from onrig.runtime.replay.learners.policy_desk import admission_limits

    config = end.config
    return PolicyDesk(
        config.rig, config.rate_hz, config.seed, admission_limits(config), end.slot, folder, lambda kind, **what: None
    )


if __name__ == "__main__":
    main()
