"""The rig's end of the link without a rig: memory, admission and server, fed with made-up experiences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np

from onrig.runtime.config.yaml_nodes import dump
from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import RigKeys
from onrig.runtime.link.server import LinkServer, TcpDoor
from onrig.runtime.replay.learners.desk import LearnerDesk
from onrig.runtime.replay.learners.policy_desk import PolicyDesk, admission_limits
from onrig.runtime.replay.memory import Memory
from onrig.runtime.replay.settings import Selection
from onrig.runtime.replay.transitions import Transitions
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment, create_folder, remove_folder


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()
        remove_folder(self._shm)

    def fill(self, n: int) -> None:
        """Offer so many more made-up experiences to the memory."""
        self.memory.insert(self.made_up(n))

    def made_up(self, n: int) -> Transitions:
        """Return so many experiences with random values."""
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
        )

    def turn(self, wait_ms: int = 1) -> None:
        """Do as the replay process does in one of its turns."""
        self.server.wait(wait_ms)
        self.server.serve(self.desk.handle)
        for ticket, answer in self.desk.due():
            self.server.send(ticket, answer)
