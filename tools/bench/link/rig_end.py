"""The rig's end of the link without a rig, in this process or another: memory, admission and server.

Its experiences are random; ``untrained`` makes policies for it.
"""

from __future__ import annotations

import itertools
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.export import Spread, export_policy, export_recurrent_policy
from onrig.learner.refer_settings import VracerConfig
from onrig.learner.settings import learner_settings
from onrig.runtime.config.yaml_nodes import dump
from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import RigKeys, load_rig_keys
from onrig.runtime.link.server import LinkServer, TcpDoor
from onrig.runtime.policy.contract import GAUSSIAN, SQUASHED_GAUSSIAN, PolicyContract, contract_for
from onrig.runtime.replay.learners.admission_terms import admission_limits
from onrig.runtime.replay.learners.desk import LearnerDesk
from onrig.runtime.replay.learners.policy_desk import PolicyDesk
from onrig.runtime.replay.memory.experiences import Memory
from onrig.runtime.replay.memory.transitions import Transitions
from onrig.runtime.replay.settings import Selection
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment, create_folder, remove_folder
from onrig.tools.bench.processes import Companion
from onrig.tools.bench.timing import quiet_collector


def with_memory(config: RunConfig, strategy: str, capacity: int) -> RunConfig:
    """The same run with another memory."""
    return msgspec.structs.replace(config, selection=Selection(strategy, capacity))


class RigEnd:
    """Serves learners of ``config`` at ``endpoints`` (ipc, then tcp) while somebody calls ``turn``."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        keys: RigKeys | None = None,
        event: Callable[..., None] = lambda kind, **what: None,
    ) -> None:
        self.config = config
        self.memory = Memory(config)
        self.slot = PolicySlot(Segment.create(folder / "slot", SLOT_BYTES, SLOT_SCHEMA))
        self._shm = create_folder()  # as a rig's: a socket's name is short, and other folders may lie deep
        self.server = LinkServer(f"ipc://{self._shm}/learner", TcpDoor(parse_tcp("tcp://127.0.0.1:0"), keys))
        policies = PolicyDesk(
            config.rig, config.rate_hz, config.seed, admission_limits(config), self.slot, folder / "policies", event
        )
        self.desk = LearnerDesk(
            self.memory,
            policies,
            run="",
            run_id="bench",
            config_text=dump(msgspec.to_builtins(config)).encode(),
            lockstep=config.lockstep,
            event=event,
            is_gone=self.server.is_gone,
        )
        self.endpoints = self.server.endpoints
        self._rng = np.random.default_rng(config.seed)

    def __enter__(self) -> RigEnd:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.close()
        remove_folder(self._shm)

    def fill(self, n: int) -> None:
        """Offer ``n`` random experiences to the memory."""
        self.memory.insert(self.made_up(n))

    def made_up(self, n: int) -> Transitions:
        """``n`` random experiences."""
        rng, rig = self._rng, self.config.rig
        return Transitions(
            observation=rng.uniform(-1, 1, (n, len(rig.signals))).astype(np.float32),
            action=rng.uniform(-1, 1, (n, len(rig.actuators))).astype(np.float32),
            reward=rng.uniform(-1, 0, n).astype(np.float32),
            next_observation=rng.uniform(-1, 1, (n, len(rig.signals))).astype(np.float32),
            flags=np.zeros(n, np.uint32),
            policy_id=np.ones(n, np.uint32),
            exploration=rng.uniform(0, 1, n).astype(np.float32),
            episode=np.ones(n, np.uint32),
            step=np.arange(n, dtype=np.uint32),
            behaviour=np.zeros((n, 0), np.float32),
        )

    def turn(self, wait_ms: int = 1) -> None:
        """One iteration of the replay process."""
        self.server.wait(wait_ms)
        self.server.serve(self.desk.handle)
        for ticket, answer in self.desk.due():
            self.server.send(ticket, answer)


_BATCH: Final = 64
"""Experiences per iteration, as with a backlog in the ring."""
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


class Hosted(Companion):
    """A rig's end in a process of its own; a context that ends it."""

    def __init__(self, folder: Path, capacity: int, stored: int, keys: Path | None) -> None:
        super().__init__(__name__, piped=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self._say(msgspec.json.encode(Start(str(folder), capacity, stored, None if keys is None else str(keys))))
        line = self._out.readline()
        if not line:
            raise RuntimeError("the benchmark's rig process did not start; see the messages above")
        self.endpoints = msgspec.json.decode(line, type=Listening).endpoints

    def feed(self, experiences: int) -> None:
        """Feed further experiences, some in each iteration."""
        self._say(b"%d" % experiences)

    def _say(self, line: bytes) -> None:
        self._in.write(line + b"\n")
        self._in.flush()

    def __exit__(self, *error: object) -> None:
        self._in.close()
        try:
            self.process.wait(_PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self._out.close()


def new_policy_desk(end: RigEnd, folder: Path) -> PolicyDesk:
    """Return a desk like the rig's, to time admission alone."""
    config = end.config
    return PolicyDesk(
        config.rig, config.rate_hz, config.seed, admission_limits(config), end.slot, folder, lambda kind, **what: None
    )


HIDDEN: Final = (50, 20)
"""Units of the actor's hidden layers (de Bruin et al. 2018, §B.1)."""


def untrained(config: RunConfig, contract: PolicyContract | None = None, seed: int = 0) -> bytes:
    """Return ONNX bytes of a random actor for the rig of ``config``, a stochastic one where it takes those.

    It is recurrent where those of the configuration's learner are.  Its id is 1 by default.
    """
    wanted = contract or contract_for(
        config.rig, config.rate_hz, policy_id=1, parent_run="bench", training_step=0, signals=config.signals
    )
    rng = np.random.default_rng(seed)

    def layer(inputs: int, outputs: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return 0.1 * rng.standard_normal((inputs, outputs)), np.zeros(outputs)

    n, m = len(config.signals), len(config.rig.actuators)
    selected = learner_settings(config.learner).selected
    if isinstance(selected, VracerConfig) and selected.recurrent is not msgspec.UNSET:
        units = selected.recurrent.units
        cells = [layer(inputs + own, 4 * own) for inputs, own in itertools.pairwise((n, *units))]
        wanted = msgspec.structs.replace(wanted, behaviour=GAUSSIAN, format=2)
        return export_recurrent_policy([*cells, layer(units[-1], m)], np.full(m, 0.1), wanted)
    spread: Spread | None = None
    if config.stochastic:
        wanted = msgspec.structs.replace(wanted, behaviour=SQUASHED_GAUSSIAN, format=2)
    layers = [layer(*shape) for shape in itertools.pairwise((n, *HIDDEN, m))]
    if config.stochastic:
        spread = Spread(*layers[-1], bounds=(-20.0, 2.0))
    return export_policy(layers, wanted, spread)


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


if __name__ == "__main__":
    main()
