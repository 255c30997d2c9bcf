"""The rig's end of the link (memory, admission and server) without a rig, in this process or a separate one.

Its experiences are random; ``random_policy`` creates policies for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.export import LogStdHead, export_policy, export_recurrent_policy
from onrig.learner.refer_settings import VracerConfig
from onrig.learner.settings import learner_settings
from onrig.runtime.config.yaml_nodes import dump_yaml
from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import RigKeys, load_rig_keys
from onrig.runtime.link.server import LinkServer, TcpAccess
from onrig.runtime.memory.settings import Selection
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.policy.contract import GAUSSIAN, SQUASHED_GAUSSIAN, PolicyContract, contract_for
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.learners.admission_terms import examination
from onrig.runtime.replay.learners.learner_requests import LearnerRequests, RunIdentity
from onrig.runtime.replay.learners.policy_admission import PolicyAdmission
from onrig.runtime.replay.learners.policy_folder import PolicyFolder
from onrig.runtime.replay.learners.succession import succession
from onrig.runtime.run_config import RunConfig, to_plain_data
from onrig.runtime.run_loading import load_run
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment, create_folder, remove_folder
from onrig.tools.bench.timing import disable_collector
from onrig.tools.workers import Channel, WorkerProcess


def with_memory(config: RunConfig, strategy: str, capacity: int) -> RunConfig:
    """Return ``config`` with a different memory strategy and capacity."""
    return msgspec.structs.replace(config, selection=Selection(strategy, capacity))


class RigEnd:
    """Server for learners of ``config`` at ``endpoints`` (ipc, then tcp); call ``serve_once`` repeatedly."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        keys: RigKeys | None = None,
        event: Callable[..., None] = lambda kind, **fields: None,
    ) -> None:
        self.config = config
        self.memory = Memory(config)
        self.slot = PolicySlot(Segment.create(folder / "slot", SLOT_BYTES, SLOT_SCHEMA))
        self._shm = create_folder()  # a short path, as on a rig, because the length of socket paths is limited
        self.server = LinkServer(f"ipc://{self._shm}/learner", TcpAccess(parse_tcp("tcp://127.0.0.1:0"), keys))
        policies = PolicyAdmission(examination(config), self.slot, PolicyFolder(folder / "policies"), event)
        self.desk = LearnerRequests(
            self.memory,
            policies,
            RunIdentity("", "bench", dump_yaml(to_plain_data(config)).encode()),
            succession(config),
            event,
            self.server.is_disconnected,
        )
        self.endpoints = self.server.endpoints
        self._rng = np.random.default_rng(config.seed)

    def __enter__(self) -> RigEnd:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.close()
        remove_folder(self._shm)

    def fill(self, n: int) -> None:
        """Insert ``n`` random experiences into the memory."""
        self.memory.insert(self.random_experiences(n))

    def random_experiences(self, n: int) -> Transitions:
        """Draw ``n`` random experiences."""
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

    def serve_once(self, wait_ms: int = 1) -> None:
        """Run one iteration of the replay process."""
        self.server.wait(wait_ms)
        self.server.serve(self.desk.handle)
        for ticket, reply in self.desk.feed.take_due_replies():
            self.server.send(ticket, reply)


_MAX_EXPERIENCES_PER_CALL: Final = 64
"""Maximum number of experiences inserted per iteration, as when the ring has a backlog."""


class RigEndWorker:
    """Rig's end inside a worker process: the methods that can be called, and the work done between calls."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack: Final = stack
        self._end: RigEnd | None = None
        self._n_pending = 0

    def listen(self, folder: str, capacity: int, n_stored: int, keys: str | None) -> list[str]:
        """Fill the memory, listen for learners and return the endpoints."""
        config = with_memory(load_run("pendulum"), "FIFO[Uniform]", capacity)
        rig_keys = None if keys is None else load_rig_keys(Path(keys))
        self._end = end = self._stack.enter_context(RigEnd(config, Path(folder), rig_keys))
        end.fill(n_stored)
        disable_collector()
        return list(end.endpoints)

    def feed(self, n_experiences: int) -> None:
        """Queue further experiences, to be inserted over the next iterations."""
        self._n_pending += n_experiences

    def serve_once(self) -> None:
        """Serve learners, and insert some of the queued experiences."""
        if self._end is None:
            time.sleep(0.001)
            return
        n = min(self._n_pending, _MAX_EXPERIENCES_PER_CALL)
        if n:
            self._end.fill(n)
            self._n_pending -= n
        self._end.serve_once(wait_ms=0 if self._n_pending else 1)


class RigEndProcess(WorkerProcess):
    """Context manager that runs a rig's end in a separate process."""

    def __init__(self, folder: Path, capacity: int, n_stored: int, keys: Path | None) -> None:
        super().__init__(__name__)
        try:
            self.wait_for_value()
            keys_folder = None if keys is None else str(keys)
            self.endpoints: Final = self.ask("listen", str(folder), capacity, n_stored, keys_folder, returns=list[str])
        except BaseException:
            self.stop()
            self.close()
            raise

    def feed(self, n_experiences: int) -> None:
        """Queue further experiences."""
        self.ask("feed", n_experiences, returns=type(None))


def new_policy_admission(end: RigEnd, folder: Path) -> PolicyAdmission:
    """Return a policy admission like the rig's, to be timed separately."""
    config = end.config
    return PolicyAdmission(examination(config), end.slot, PolicyFolder(folder), lambda kind, **fields: None)


HIDDEN_SIZES: Final = (50, 20)
"""Numbers of units in the actor's hidden layers (de Bruin et al. 2018, §B.1)."""


def random_policy(config: RunConfig, contract: PolicyContract | None = None, seed: int = 0) -> bytes:
    """Return a random actor for the rig of ``config`` as ONNX bytes.

    The actor is stochastic or recurrent if the configured learner's actor is. Without ``contract``, its policy id is 1.
    """
    final_contract = contract or contract_for(
        config.rig, config.rate_hz, policy_id=1, parent_run="bench", training_step=0, signals=config.signals
    )
    rng = np.random.default_rng(seed)

    def layer(n_inputs: int, n_outputs: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return 0.1 * rng.standard_normal((n_inputs, n_outputs)), np.zeros(n_outputs)

    n, m = len(config.signals), len(config.rig.actuators)
    algorithm = learner_settings(config.learner).algorithm_config
    if isinstance(algorithm, VracerConfig) and algorithm.recurrent is not msgspec.UNSET:
        units = algorithm.recurrent.units
        cells = [layer(n_inputs + n_cells, 4 * n_cells) for n_inputs, n_cells in itertools.pairwise((n, *units))]
        final_contract = msgspec.structs.replace(final_contract, behaviour=GAUSSIAN, format=2)
        return export_recurrent_policy([*cells, layer(units[-1], m)], np.full(m, 0.1), final_contract)
    log_std_head: LogStdHead | None = None
    if config.stochastic:
        final_contract = msgspec.structs.replace(final_contract, behaviour=SQUASHED_GAUSSIAN, format=2)
    layers = [layer(*shape) for shape in itertools.pairwise((n, *HIDDEN_SIZES, m))]
    if config.stochastic:
        log_std_head = LogStdHead(*layers[-1], bounds=(-20.0, 2.0))
    return export_policy(layers, final_contract, log_std_head)


if __name__ == "__main__":
    with ExitStack() as stack:
        worker = RigEndWorker(stack)
        Channel().serve(lambda: worker, worker.serve_once)
