"""Complete runs in this process and in virtual time, with their log: the real loop, a twin, synthetic policies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import onnx
from onnx import helper

from onrig.hw.clock import VirtualClock
from onrig.hw.session import DeviceSession
from onrig.hw.transport import Transport
from onrig.learner.export import LogStdHead, export_policy
from onrig.runtime.control.frames import Stopped
from onrig.runtime.control.loop import ControlLoop
from onrig.runtime.control.loop_state import SharedMemory
from onrig.runtime.control.outside import Requests
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.log.mcap_log import McapLog
from onrig.runtime.policy.contract import SQUASHED_GAUSSIAN, contract_for
from onrig.runtime.policy.probation import probation_limits
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_loading import load_run, save_resolved
from onrig.runtime.run_state.episodes import EpisodeAccounts, EpisodeFile
from onrig.runtime.run_state.events import EventFile
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.images import ImageSource
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot, loop_state_in
from onrig.runtime.shm.ring import RingReader, RingWriter, ring_bytes
from onrig.runtime.shm.segment import Segment
from onrig.sim.plants import Magman, Pendulum
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.sim.twin.options import TwinOptions
from tests.runtime.policy.models import node, proto, recurrent, serialized

SHORT: Final = ("episodes=2", "task.episode_s=0.6")


def make_policy(config: RunConfig, policy_id: int, scale: float = 1.0) -> bytes:
    """A policy that moves a rig, different for each id; stochastic if the rig requires it."""
    rng = np.random.default_rng(policy_id)
    rig = config.rig
    n, m, signals = len(config.signals), len(rig.actuators), config.signals
    constants = {
        "w0": (rng.standard_normal((n, 16)) / 4).astype(np.float32),
        "b0": rng.standard_normal(16).astype(np.float32),
        "w1": (rng.standard_normal((16, m)) / 4).astype(np.float32),
        "b1": rng.standard_normal(m).astype(np.float32),
        "half": np.array([scale * a.half_range for a in rig.actuators], np.float32),
        "centre": np.array([a.centre for a in rig.actuators], np.float32),
    }
    if config.stochastic:
        behaviour = SQUASHED_GAUSSIAN
        contract = contract_for(
            rig, config.rate_hz, policy_id=1, parent_run="", training_step=0, behaviour=behaviour, signals=signals
        )
        std_head = LogStdHead(constants["w1"], scale * constants["b1"], (-2.0, 0.5))
        return export_policy([(constants[f"w{i}"], constants[f"b{i}"]) for i in (0, 1)], contract, std_head)
    nodes = [
        node("Gemm", ["observation", "w0", "b0"], ["s0"]),
        node("Relu", ["s0"], ["h0"]),
        node("Gemm", ["h0", "w1", "b1"], ["s1"]),
        node("Tanh", ["s1"], ["h1"]),
        node("Mul", ["h1", "half"], ["h2"]),
        node("Add", ["h2", "centre"], ["action"]),
    ]
    float_type = onnx.TensorProto.FLOAT
    ports = ([helper.make_tensor_value_info("observation", float_type, [1, n])],)
    outputs = [helper.make_tensor_value_info("action", float_type, [1, m])]
    contract = contract_for(rig, config.rate_hz, policy_id=policy_id, parent_run="", training_step=0, signals=signals)
    model = proto(nodes, constants, contract=contract, inputs=ports[0], outputs=outputs)
    return bytes(model.SerializeToString())


class _HookedRing(RingWriter):
    at_push: Callable[[int], None] = staticmethod(lambda n: None)
    n_pushed = 0

    def push(self, fields: tuple[float, ...]) -> bool:
        was_pushed = super().push(fields)
        self.n_pushed += 1
        self.at_push(self.n_pushed)
        return was_pushed


class _ImmediateSwitch(PolicySwitch):
    """Takes as much time as it needs: what it prepares is ready at the next tick edge."""

    def prepare(self, slack_ns: int) -> None:
        super().prepare(1 << 62)


class LoggedRun:
    """A run whose folder holds what a replay needs; ``at`` is called after the n-th record."""

    def __init__(
        self,
        folder: Path,
        config: str,
        *settings: str,
        lockstep: bool = True,
        reset: bool = True,
        actions_at: Mapping[int, Callable[[LoggedRun], None]] | None = None,
        recurrent: bool = False,
        native: bool = False,
    ) -> None:
        self.folder, self.native = folder, native
        folder.mkdir()
        pace = "device.pace=lockstep" if lockstep else "device.pace=realtime"
        self.config = load_run(config, [*SHORT, pace, *settings])
        save_resolved(self.config, folder / "config.yaml")
        (folder / "meta.json").write_text("{}\n")
        (folder / "policies").mkdir()
        self.shm = folder / "shm"
        self.shm.mkdir()
        self.images: ImageSource | None = None
        self.at_start: Callable[[ControlLoop], None] = lambda loop: None
        self.make_line: Callable[[TwinDevice, VirtualClock], Transport] = lambda d, c: LoopbackDevice(d, c).transport
        self._lockstep, self._reset, self._actions_at, self._recurrent = (
            lockstep,
            reset,
            dict(actions_at or {}),
            recurrent,
        )
        self.layout = record_layout(self.config)
        segment = Segment.create(self.shm / "board", BOARD_BYTES, BOARD_SCHEMA)
        self.board, self._state_store = Board(segment), loop_state_in(segment)
        self.board[Word.BARRIER] = 1 << 20
        ring = Segment.create(self.shm / "ring", ring_bytes(self.layout, 256), self.layout.schema)
        self.ring, self._reader = _HookedRing(ring, self.layout), RingReader(ring, self.layout)
        self.slot = PolicySlot(Segment.create(self.shm / "slot", SLOT_BYTES, SLOT_SCHEMA))
        self.orders = Requests(self.board)
        self.events = EventFile(folder / "events.jsonl")
        self._accounts = EpisodeAccounts(self.config.task, self.config.rate_hz, self.config.rig)
        self.rows = EpisodeFile(folder / "episodes.csv")
        self.log = self.open_log()
        self.records: list[np.void] = []
        self.admit_policy(1)

    def open_log(self, session: str = "session") -> McapLog:
        """A log of a replay process that has just started."""
        return McapLog(self.config, self.folder, session, self.events.write, self._state_store.take)

    def admit_policy(self, policy_id: int, scale: float = 1.0) -> None:
        """Admit a policy."""
        model = serialized(recurrent()) if self._recurrent else make_policy(self.config, policy_id, scale)
        (self.folder / "policies" / f"{policy_id}.onnx").write_bytes(model)
        self.slot.put(policy_id, model, is_native=self.native)

    def run(self) -> LoggedRun:
        """Run to the end, or until stopped."""
        rig, start = self.config.rig, self.config.task.all_starts
        plant = Pendulum() if "pendulum" in rig.name else Magman()
        if not self._reset:  # somewhere other than its start
            start = {"angle": 2.0, "velocity": -5.0} if "pendulum" in rig.name else {"position": 0.05, "velocity": 0.0}
        device = TwinDevice(
            rig, TwinOptions(plant=plant, reset=self._reset), start, time_scale=0.0 if self._lockstep else 1.0
        )
        clock = VirtualClock()
        session = DeviceSession(self.make_line(device, clock), rig, clock)
        session.connect()
        session.configure(self.config.period_us, rig.lease_periods)
        switch = _ImmediateSwitch(self.slot, probation_limits(self.config))
        shared = SharedMemory(self.ring, self.board, self._state_store, images=self.images)
        loop = ControlLoop(self.config, session, shared, switch, self.orders)
        self.device, self.clock = device, clock
        self.at_start(loop)
        self.ring.at_push = self._after_push
        with contextlib.suppress(Stopped):
            loop.run()
        self._log_pending()
        self.log.close()
        self.events.close()
        self.rows.close()
        return self

    def _after_push(self, n: int) -> None:
        if n in self._actions_at:
            self._actions_at[n](self)
        if n % 7 == 0:  # batches of any length
            self._log_pending()

    def _log_pending(self) -> None:
        records = self._reader.peek()
        self._reader.take(len(records))
        self._reader.release(self._reader.n_taken)
        if not len(records):
            return
        self.records += list(records)
        self.log.add(records)
        for row in self._accounts.add(records):
            self.log.episode(row)
            self.rows.append(row)

    def events_of_kind(self, kind: str) -> list[dict[str, object]]:
        """Events of one kind."""
        lines = (self.folder / "events.jsonl").read_bytes().splitlines()
        events = [msgspec.json.decode(line, type=dict[str, object]) for line in lines]
        return [event for event in events if event["kind"] == kind]
