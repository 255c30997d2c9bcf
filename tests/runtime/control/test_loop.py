"""The loop with a twin in the same process, in virtual time: interference by operators and devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.messages import Fault, MessageType, Op, decode_request
from onrig.hw.rig import Rig
from onrig.hw.session import MAX_ATTEMPTS, DeviceSession
from onrig.hw.transport import LinkError, LoopbackTransport, Transport
from onrig.runtime.control import arming, outside
from onrig.runtime.control.frames import FrameSource, Stopped
from onrig.runtime.control.loop import ControlLoop
from onrig.runtime.control.loop_state import LoopState, SharedMemory, decode_state
from onrig.runtime.control.outside import IMMEDIATE_STOP, Requests
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.policy.probation import probation_limits
from onrig.runtime.record import Flag, Kind, RecordLayout
from onrig.runtime.run_loading import load_run
from onrig.runtime.run_state.faults import FaultName, Halted
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot, loop_state_in
from onrig.runtime.shm.ring import RingWriter, ring_bytes
from onrig.runtime.shm.segment import Segment
from onrig.runtime.targets import TargetFailed
from onrig.sim.plants import Pendulum
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.sim.twin.options import TwinOptions
from tests.runtime.policy import models

STEPS = 40
SETTINGS = ("episodes=3", "task.episode_s=0.8", "evaluate_every=0", "exploration={process: none}")
AtPush = Callable[[int], None]


class Ring(RingWriter):
    """Calls ``at_push`` with the number of each record once it is written."""

    at_push: AtPush = staticmethod(lambda n: None)
    n_pushed = 0

    def push(self, fields: tuple[float, ...]) -> bool:
        pushed = super().push(fields)
        self.n_pushed += 1
        self.at_push(self.n_pushed)
        return pushed


class Bench:
    """A loop, its device, and everything that either of them reported."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *settings: str,
        lockstep: bool = True,
        reset: bool = True,
        line: Callable[[Rig, VirtualClock], Transport] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        pace = "device.pace=lockstep" if lockstep else "device.pace=realtime"
        self.config = load_run("pendulum", [*SETTINGS, pace, *settings])
        rig, start = self.config.rig, self.config.task.start
        options = TwinOptions(plant=Pendulum(), reset=reset)
        if not reset:  # somewhere other than its start
            start = {"angle": 2.0, "velocity": -5.0}
        self.device = TwinDevice(rig, options, start, time_scale=0.0 if lockstep else 1.0)
        self.clock = VirtualClock(1_000_000_000)
        transport = line(rig, self.clock) if line else LoopbackDevice(self.device, self.clock).transport
        self.session = DeviceSession(transport, rig, self.clock)
        self.session.connect()
        self.session.configure(self.config.period_us, rig.lease_periods)
        layout = RecordLayout.for_rig(rig)
        self.segment = Segment.create(folder / "board", BOARD_BYTES, BOARD_SCHEMA)
        self.board = Board(self.segment)
        self.board[Word.BARRIER] = 1 << 20
        self.ring = Ring(Segment.create(folder / "ring", ring_bytes(layout, 4096), layout.schema), layout)
        self.slot = slot = PolicySlot(Segment.create(folder / "slot", SLOT_BYTES, SLOT_SCHEMA))
        contract = contract_for(rig, self.config.rate_hz, policy_id=1, parent_run="", training_step=0)
        slot.put(1, models.serialized(models.policy(contract=contract)))
        self.requests = Requests(self.board)
        switch = PolicySwitch(slot, probation_limits(self.config))
        self.loop = ControlLoop(self.config, self.session, SharedMemory(self.ring, self.board), switch, self.requests)
        self.layout = layout
        self.reports: list[tuple[str, str]] = []
        self.transitions: list[str] = []
        self.on_warning: Callable[[], None] = lambda: None

        def record_report(source: str, kind: str, message: str = "", **values: object) -> bool:
            if kind == "transition":
                self.transitions.append(f"{values['event']}:{values['state']}")
            else:
                self.reports.append((kind, message))
            if kind == "warning":
                self.on_warning()
            return True

        monkeypatch.setattr(arming, "report", record_report)
        monkeypatch.setattr(outside, "report", record_report)

    def wait_virtually(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the loop wait by the device's clock; by the machine's it would wait for the machine's uptime."""
        virtual_time = SimpleNamespace(
            monotonic=lambda: self.clock.monotonic_ns() / 1e9,
            monotonic_ns=self.clock.monotonic_ns,
            thread_time_ns=time.thread_time_ns,
        )
        monkeypatch.setattr("onrig.runtime.control.pace._POLL_NS", self.config.period_us * 1000)
        monkeypatch.setattr("onrig.runtime.explore.budgets._MINUTE_US", 2_000_000)  # pauses last "hours" of these
        for module in ("arming", "frames", "homing", "loop", "outside", "pace"):
            monkeypatch.setattr(f"onrig.runtime.control.{module}.time", virtual_time)

    def records(self) -> list[dict[str, float]]:
        data = bytes(self.ring._records[: len(self.ring) * self.layout.size])
        rows = np.frombuffer(data, self.layout.dtype)
        return [{name: row[name].tolist() for name in ("kind", "episode", "flags", "explored", "rule")} for row in rows]


@pytest.fixture
def paced_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Its device continues by itself, in virtual time."""
    return Bench(tmp_path, monkeypatch, lockstep=False)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


EPISODE = ["episode:resetting", "at_start:running", "episode_over:ready"]


@pytest.mark.rules("H603")
def test_a_complete_run_passes_through_its_states_and_ends_disarmed(bench: Bench) -> None:
    bench.loop.run()
    assert bench.transitions == ["connected:ready", *EPISODE * 3, "completed:disconnected"]
    assert not bench.device.armed
    assert bench.board[Word.SAFE_NS] > 0


def test_the_first_stop_fades_the_command_out_then_disarms_and_none_of_it_is_learned(bench: Bench) -> None:
    bench.ring.at_push = lambda n: bench.board.__setitem__(Word.STOP, 1) if n == 10 else None
    with pytest.raises(Stopped):
        bench.loop.run()
    assert bench.transitions == [
        "connected:ready",
        "episode:resetting",
        "at_start:running",
        "stop:fading",
        "faded:disconnected",
    ]
    assert not bench.device.armed
    faded_records = [r for r in bench.records() if int(r["flags"]) & Flag.INVALID]
    ticks = round(bench.config.supervision.fade_s * bench.config.rate_hz)
    assert ticks - 2 <= len(faded_records) <= ticks
    sizes = [abs(r["explored"][0]) for r in faded_records]  # type: ignore[index]
    assert sizes[-1] < 0.2 * sizes[0]


@pytest.mark.parametrize(("word", "value"), [(Word.STOP, 2), (Word.STOP_NOW_OUTSIDE, 1)])
def test_a_stop_at_once_disarms_before_the_next_command(bench: Bench, word: Word, value: int) -> None:
    bench.ring.at_push = lambda n: bench.board.__setitem__(word, value) if n == 10 else None
    with pytest.raises(Stopped):
        bench.loop.run()
    assert bench.transitions[-1] == "stop_now:disconnected"
    assert bench.ring.n_pushed == 10
    assert not bench.device.armed


def test_a_second_stop_cuts_the_fade_short(bench: Bench) -> None:
    levels = {10: 1, 13: 2}
    bench.ring.at_push = lambda n: bench.board.__setitem__(Word.STOP, levels[n]) if n in levels else None
    with pytest.raises(Stopped):
        bench.loop.run()
    assert bench.transitions[-2:] == ["stop:fading", "stop_now:disconnected"]
    assert bench.ring.n_pushed == 13


def test_a_pressed_emergency_stop_waits_for_an_operator_and_is_refused_until_released(paced_bench: Bench) -> None:
    n_prompts = 0

    def act() -> None:
        nonlocal n_prompts
        n_prompts += 1
        if n_prompts == 2:
            paced_bench.device.press_estop(pressed=False)
        paced_bench.board[Word.RESUME_OUTSIDE] += 1

    paced_bench.on_warning = act
    paced_bench.ring.at_push = lambda n: paced_bench.device.press_estop(pressed=True) if n == 10 else None
    paced_bench.loop.run()
    assert n_prompts == 2
    fault_transitions = ["trip:fault", "rearm:ready", "trip:fault", "rearm:ready"]
    assert paced_bench.transitions == [
        "connected:ready",
        *EPISODE[:2],
        *fault_transitions,
        *EPISODE * 2,
        "completed:disconnected",
    ]
    kind, message = paced_bench.reports[0]
    assert (kind, message.split(" (")[0]) == ("fault", "the emergency stop at the device was pressed")
    assert paced_bench.board[Word.FAULT] == Fault.ESTOP


def test_a_device_with_an_internal_fault_is_never_rearmed_even_after_an_emergency_stop(paced_bench: Bench) -> None:
    def act() -> None:
        paced_bench.device._latch(Fault.INTERNAL)
        paced_bench.device.press_estop(pressed=False)
        for _ in range(3):
            paced_bench.session.wait_state(paced_bench.clock.monotonic_ns() + 50_000_000)
        paced_bench.board[Word.RESUME_OUTSIDE] += 1

    paced_bench.on_warning = act
    paced_bench.ring.at_push = lambda n: paced_bench.device.press_estop(pressed=True) if n == 10 else None
    with pytest.raises(Halted) as error:
        paced_bench.loop.run()
    assert error.value.fault is FaultName.DEVICE_INTERNAL
    assert not paced_bench.device.armed
    assert "rearm:ready" not in paced_bench.transitions


@pytest.mark.rules("H620")
def test_an_emergency_stop_that_is_never_released_ends_the_run_disarmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, "supervision.resume_timeout_s=0", lockstep=False)
    bench.ring.at_push = lambda n: bench.device.press_estop(pressed=True) if n == 10 else None
    with pytest.raises(Halted) as error:
        bench.loop.run()
    assert error.value.fault is FaultName.DEVICE_ESTOP
    assert bench.transitions[-2:] == ["trip:fault", "expired:disconnected"]


def test_a_stop_is_obeyed_while_a_fault_waits_for_an_operator(paced_bench: Bench) -> None:
    paced_bench.on_warning = lambda: paced_bench.board.__setitem__(Word.STOP, 1)
    paced_bench.ring.at_push = lambda n: paced_bench.device.press_estop(pressed=True) if n == 10 else None
    with pytest.raises(Stopped):
        paced_bench.loop.run()
    assert paced_bench.transitions[-2:] == ["trip:fault", "stop:disconnected"]


@pytest.mark.rules("H620")
def test_a_lost_lease_is_rearmed_by_the_run_a_bounded_number_of_times(paced_bench: Bench) -> None:
    config = msgspec.structs.replace(paced_bench.config, episodes=1000)
    paced_bench.loop._config = config
    paced_bench.ring.at_push = lambda n: paced_bench.device.on_link_loss() if n % 5 == 0 else None
    with pytest.raises(Halted, match="too many device faults") as error:
        paced_bench.loop.run()
    assert error.value.fault is FaultName.DEVICE_LEASE
    assert paced_bench.transitions.count("rearm:ready") == 10
    assert paced_bench.transitions.count("trip:fault") == 11


def test_an_estop_pressed_between_episodes_is_found_when_arming(paced_bench: Bench) -> None:
    def act() -> None:
        paced_bench.device.press_estop(pressed=False)
        paced_bench.board[Word.RESUME] += 1

    paced_bench.on_warning = act
    closing_record = STEPS + 1
    paced_bench.ring.at_push = lambda n: paced_bench.device.press_estop(pressed=True) if n == closing_record else None
    paced_bench.loop.run()
    assert "trip:fault" in paced_bench.transitions
    assert paced_bench.transitions[-1] == "completed:disconnected"


def test_an_estop_not_yet_reported_by_a_frame_is_found_when_arming(paced_bench: Bench) -> None:
    """The frame waiting when the device refuses to arm was sampled before the button was pressed."""

    def act() -> None:
        paced_bench.device.press_estop(pressed=False)
        paced_bench.board[Word.RESUME] += 1

    paced_bench.on_warning = act
    arm, session = paced_bench.session.arm, paced_bench.session
    refusals: list[bool] = []

    def arm_after_fault() -> None:
        if not refusals:
            refusals.append(True)
            state = session.wait_state(session._now_ns() + 10**9)
            assert state is not None
            session._intake.newest = state
            paced_bench.device.press_estop(pressed=True)
        arm()

    session.arm = arm_after_fault  # type: ignore[method-assign]
    paced_bench.loop.run()
    assert paced_bench.transitions[:4] == ["connected:ready", "episode:resetting", "trip:fault", "rearm:ready"]
    assert paced_bench.transitions[-1] == "completed:disconnected"


def test_in_lockstep_a_fault_not_yet_reported_by_a_frame_is_found_when_arming(bench: Bench) -> None:
    """The device detects that a killed loop's connection is closed after the next loop has said hello."""
    arm = bench.session.arm
    refusals: list[bool] = []

    def arm_after_fault() -> None:
        if not refusals:
            refusals.append(True)
            bench.device.armed = True
            bench.device.on_link_loss()
        arm()

    bench.session.arm = arm_after_fault  # type: ignore[method-assign]
    bench.loop.run()
    assert bench.transitions[:4] == ["connected:ready", "episode:resetting", "trip:fault", "rearm:ready"]
    assert bench.transitions[-1] == "completed:disconnected"


def test_an_estop_during_the_recovery_from_a_lost_lease_waits_for_an_operator(paced_bench: Bench) -> None:
    paced_bench.ring.at_push = lambda n: paced_bench.device.on_link_loss() if n == 10 else None
    clear_fault, session = paced_bench.session.clear_fault, paced_bench.session
    calls: list[bool] = []

    def press_and_clear() -> None:
        if not calls:
            paced_bench.device.press_estop(pressed=True)
        calls.append(True)
        clear_fault()

    def act() -> None:
        paced_bench.device.press_estop(pressed=False)
        paced_bench.board[Word.RESUME] += 1

    session.clear_fault = press_and_clear  # type: ignore[method-assign]
    paced_bench.on_warning = act
    paced_bench.loop.run()
    assert [message.split(" (")[0] for kind, message in paced_bench.reports if kind == "fault"][-1].startswith(
        "the emergency stop"
    )
    assert paced_bench.transitions[-1] == "completed:disconnected"


def test_a_lost_disarm_is_confirmed_safe_only_by_the_frame_of_the_lease(paced_bench: Bench) -> None:
    handle = paced_bench.device.handle
    lost_disarms: list[int] = []

    def drop_disarm(body: bytes, offset_us: int = 0) -> list[bytes]:
        if body[0] == MessageType.REQUEST and decode_request(body).op == Op.DISARM:
            lost_disarms.append(paced_bench.board[Word.SAFE_NS])
            return []
        return handle(body, offset_us)

    paced_bench.device.handle = drop_disarm  # type: ignore[method-assign]
    paced_bench.ring.at_push = lambda n: paced_bench.board.__setitem__(Word.STOP_NOW_OUTSIDE, 1) if n == 10 else None
    with pytest.raises(LinkError, match="no answer to DISARM"):
        paced_bench.loop.run()
    assert len(lost_disarms) == MAX_ATTEMPTS
    assert not any(lost_disarms), "nothing is safe before a frame says so"
    assert paced_bench.device.fault is Fault.LEASE
    assert paced_bench.board[Word.SAFE_NS] > 0


def test_a_dead_line_confirms_nothing(paced_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "_LEASE_END_TIMEOUT_S", 0.0)

    def ignore(body: bytes, offset_us: int = 0) -> list[bytes]:
        return []

    elapsed_ns = 0

    def read_nothing(timeout_ns: int) -> bytes:
        nonlocal elapsed_ns
        elapsed_ns += max(timeout_ns, 1)
        return b""

    def cut_line(n: int) -> None:
        if n == 10:
            paced_bench.device.handle = ignore  # type: ignore[method-assign]
            paced_bench.session._transport.read = read_nothing  # type: ignore[method-assign]
            paced_bench.session._now_ns = lambda: elapsed_ns
            paced_bench.session._retry_s = 0.001
            paced_bench.board[Word.STOP_NOW_OUTSIDE] = 1

    paced_bench.ring.at_push = cut_line
    with pytest.raises(LinkError):
        paced_bench.loop.run()
    assert paced_bench.board[Word.STATE] == State.DISCONNECTED
    assert paced_bench.board[Word.SAFE_NS] == 0
    assert paced_bench.board[Word.ANSWERED_NS] > 0


def test_a_pause_remains_disarmed_until_it_is_resumed(bench: Bench) -> None:
    def act() -> None:
        assert not bench.device.armed
        assert bench.board[Word.STATE] == State.PAUSED
        bench.board[Word.RESUME] += 1

    bench.loop.arming.machine.state = State.READY
    bench.on_warning = act
    bench.loop.arming.pause("budget spent", "wait")
    bench.loop.arming.reports.send()
    assert bench.transitions == ["pause:paused", "resume:ready"]
    assert "budget spent; wait" in bench.reports[0][1]


def test_a_bounded_pause_is_not_shortened_by_a_resume_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, lockstep=False)
    bench.wait_virtually(monkeypatch)
    bench.loop.arming.machine.state = State.READY
    bench.on_warning = lambda: bench.board.__setitem__(Word.RESUME, bench.board[Word.RESUME] + 1)
    assert bench.loop.arming.pause("budget spent", "wait", 5.0) >= 5.0
    assert "the run continues by itself" in bench.reports[0][1]


def test_the_first_command_after_homing_continues_from_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = "{kind: settle, actuator: voltage, velocity: velocity, full_at: 0.5, within: {angle: 0.5, velocity: 2.0}"
    bench = Bench(
        tmp_path,
        monkeypatch,
        "limits={rate_per_s: {voltage: 5.0}}",
        "episodes=1",
        f"task.reset={settle}, hold_s: 0.2, timeout_s: 60, attempts: 3}}",
        lockstep=False,
        reset=False,
    )
    bench.wait_virtually(monkeypatch)
    bench.loop.run()
    data = bytes(bench.ring._records[: len(bench.ring) * bench.layout.size])
    rows = np.frombuffer(data, bench.layout.dtype)
    first_row = int(np.flatnonzero(rows["kind"] == Kind.TRAIN)[0])
    command, max_change = rows["commanded"][:, 0], 5.0 / bench.config.rate_hz
    assert abs(command[first_row - 1]) > 2 * max_change, "homing ends at once, with a command in force"
    assert abs(command[first_row] - command[first_row - 1]) <= 1.001 * max_change


def test_at_a_low_rate_a_stop_does_not_wait_for_the_next_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, lockstep=False)
    bench.wait_virtually(monkeypatch)
    config = msgspec.structs.replace(bench.config, rate_hz=0.2)
    hello = bench.session.hello
    assert hello is not None

    def read_nothing(timeout_ns: int) -> bytes:
        bench.clock.advance(max(timeout_ns, 1))
        return b""

    silent_session = DeviceSession(LoopbackTransport(lambda data: b"", read_nothing), config.rig, bench.clock)
    frames = FrameSource(config, silent_session, hello, bench.loop._rehearsal, bench.board, lambda: IMMEDIATE_STOP)
    start_ns = frames._last_received_ns = bench.clock.now_ns
    with pytest.raises(Stopped):
        frames.next()
    assert bench.clock.now_ns - start_ns <= 50_000_000


def test_a_pause_that_is_never_ended_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, "supervision.resume_timeout_s=0")
    bench.loop.arming.machine.state = State.READY
    with pytest.raises(Halted, match="budget spent") as error:
        bench.loop.arming.pause("budget spent", "wait")
    assert error.value.fault is FaultName.NOT_RESUMED


def test_a_bounded_pause_takes_no_time_in_lockstep(bench: Bench) -> None:
    bench.loop.arming.machine.state = State.READY
    assert bench.loop.arming.pause("hour's budget", "", 1800.0) == 1800.0
    assert bench.loop.arming.state is State.READY


def test_a_stop_in_a_pause_does_not_shorten_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly_budget = "exploration={process: none, budgets: {hour: {driven_s: 1.0}}}"
    first_run = Bench(tmp_path / "first", monkeypatch, hourly_budget, lockstep=False)
    state_store = first_run.loop._position.store = loop_state_in(first_run.segment)
    first_run.wait_virtually(monkeypatch)
    first_run.on_warning = lambda: first_run.board.__setitem__(Word.STOP, 1)
    with pytest.raises(Stopped):
        first_run.loop.run()
    assert first_run.transitions == ["connected:ready", *EPISODE * 2, "pause:paused", "stop:disconnected"]
    stopped_state = decode_state(state_store.take())
    assert stopped_state.episode == 2

    second_run = Bench(tmp_path / "second", monkeypatch, hourly_budget, lockstep=False)
    state_store = second_run.loop._position.store = loop_state_in(second_run.segment)
    second_run.wait_virtually(monkeypatch)
    states: list[LoopState] = []
    second_run.ring.at_push = lambda n: states.append(decode_state(state_store.take()))
    second_run.loop.run(stopped_state)
    assert second_run.transitions[:4] == ["connected:ready", "pause:paused", "resume:ready", "episode:resetting"]
    assert second_run.reports[0][1].startswith("paused for 12")
    assert (states[0].episode, states[0].tick) == (stopped_state.episode, stopped_state.tick)
    assert states[0].explorer.get("budget.hour.driven_s") == 0.0


def test_the_last_episode_of_a_run_is_not_followed_by_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly_budget = "exploration={process: none, budgets: {hour: {driven_s: 1.0}}}"
    bench = Bench(tmp_path, monkeypatch, "episodes=2", hourly_budget)
    bench.loop.run()
    assert len(bench.records()) < 2 * (STEPS + 1), "the budget ended the last episode"
    assert bench.transitions == ["connected:ready", *EPISODE * 2, "completed:disconnected"]


def test_a_failing_target_ends_the_run_before_the_device_is_armed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, "task.targets={goal: {kind: drawn, low: -1, high: 1}}")

    def fail(episode: int, kind: Kind) -> None:
        raise TargetFailed("a target of kind 'drawn' has a non-finite value")

    monkeypatch.setattr(bench.loop._tick, "prepare", fail)
    with pytest.raises(Halted, match="non-finite") as error:
        bench.loop.run()
    assert error.value.fault is FaultName.TICK_CODE_FAILED
    assert bench.transitions[-1] == "trip:fault"
    assert not bench.device.armed
    assert bench.records() == []


def test_a_reset_that_spends_a_budget_is_repeated_after_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly_budget = "exploration={process: none, budgets: {hour: {driven_s: 1.7}}}"
    bench = Bench(tmp_path, monkeypatch, hourly_budget, "episodes=1", lockstep=False, reset=False)
    bench.wait_virtually(monkeypatch)
    bench.loop.run()
    pause_transitions = ["episode:resetting", "pause:paused", "resume:ready"]
    assert bench.transitions == ["connected:ready", *pause_transitions, *EPISODE, "completed:disconnected"]
    kinds = [int(r["kind"]) for r in bench.records()]
    assert kinds.count(Kind.TRAIN) == STEPS + 1


def test_a_stop_in_the_pause_after_a_reset_keeps_the_wear_of_the_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly_budget = "exploration={process: none, budgets: {hour: {driven_s: 1.7}}}"
    first_run = Bench(tmp_path / "first", monkeypatch, hourly_budget, lockstep=False, reset=False)
    state_store = first_run.loop._position.store = loop_state_in(first_run.segment)
    first_run.wait_virtually(monkeypatch)
    first_run.on_warning = lambda: first_run.board.__setitem__(Word.STOP, 1)
    with pytest.raises(Stopped):
        first_run.loop.run()
    assert first_run.transitions == ["connected:ready", "episode:resetting", "pause:paused", "stop:disconnected"]
    stopped_state = decode_state(state_store.take())
    assert (stopped_state.episode, stopped_state.tick) == (0, first_run.ring.n_pushed)
    assert stopped_state.explorer["budget.hour.driven_s"] >= 1.7

    second_run = Bench(tmp_path / "second", monkeypatch, hourly_budget, lockstep=False, reset=False)
    second_run.wait_virtually(monkeypatch)
    second_run.on_warning = lambda: second_run.board.__setitem__(Word.STOP, 1)
    with pytest.raises(Stopped):
        second_run.loop.run(stopped_state)
    assert second_run.transitions == ["connected:ready", "pause:paused", "stop:disconnected"]


def test_a_run_ends_if_resets_alone_repeatedly_spend_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly_budget = "exploration={process: none, budgets: {hour: {driven_s: 0.9}}}"
    bench = Bench(tmp_path, monkeypatch, hourly_budget, "task.reset.hold_s=1.0", lockstep=False, reset=False)
    bench.wait_virtually(monkeypatch)
    with pytest.raises(Halted, match=r"3 resets exhausted a budget: .* used at exploration.budgets.hour.driven_s"):
        bench.loop.run()
    pause_transitions = ["episode:resetting", "pause:paused", "resume:ready"]
    assert bench.transitions == ["connected:ready", *pause_transitions * 2, "episode:resetting", "trip:fault"]
    assert not bench.device.armed
    assert {int(r["kind"]) for r in bench.records()} == {Kind.RESET}


def test_a_reset_ended_by_a_fault_on_a_spent_budget_is_repeated_after_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly_budget = "exploration={process: none, budgets: {hour: {driven_s: 1.2}}}"
    bench = Bench(tmp_path, monkeypatch, hourly_budget, "episodes=1", lockstep=False, reset=False)
    bench.wait_virtually(monkeypatch)
    bench.ring.at_push = lambda n: bench.device.on_link_loss() if n == 70 else None
    bench.loop.run()
    expected = ["episode:resetting", "trip:fault", "rearm:ready", "pause:paused", "resume:ready", "episode:resetting"]
    assert bench.transitions[: 1 + len(expected)] == ["connected:ready", *expected]
    assert bench.transitions[-1] == "completed:disconnected"


def test_a_device_without_reset_is_driven_to_its_start_before_every_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, lockstep=False, reset=False)
    bench.loop.run()
    assert bench.transitions == ["connected:ready", *EPISODE * 3, "completed:disconnected"]
    records = bench.records()
    kinds = [int(r["kind"]) for r in records]
    assert kinds[0] == Kind.RESET
    assert kinds.count(Kind.TRAIN) == 3 * (STEPS + 1)
    assert next(r["episode"] for r in records if int(r["kind"]) == Kind.RESET) == 0
    assert not any(int(r["flags"]) & Flag.NO_ACTION for r in records if int(r["kind"]) == Kind.RESET)


def test_a_failed_reset_is_a_fault_with_the_safe_output_and_ends_the_run_without_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible_reset = (
        "task.reset={kind: settle, actuator: voltage, velocity: velocity, full_at: 2, within: {angle: 1.0e-9}, "
        "attempts: 2, timeout_s: 1, hold_s: 0.5, rest_s: 0.1, push_s: 0.1}"
    )
    no_wait = "supervision.resume_timeout_s=0"
    bench = Bench(tmp_path, monkeypatch, no_wait, impossible_reset, lockstep=False, reset=False)
    with pytest.raises(Halted) as error:
        bench.loop.run()
    assert error.value.fault is FaultName.RESET_FAILED
    assert bench.transitions == ["connected:ready", "episode:resetting", "trip:fault", "expired:disconnected"]
    assert not bench.device.armed
    assert "2 attempts of 1 s" in bench.reports[0][1]


def test_a_resumed_run_continues_where_it_was(bench: Bench) -> None:
    start = LoopState(episode=2, evaluated=True, tick=82, device_us=1_000_000)
    bench.loop.run(start)
    assert bench.transitions == ["connected:ready", *EPISODE, "completed:disconnected"]
    data = np.frombuffer(bytes(bench.ring._records[: len(bench.ring) * bench.layout.size]), bench.layout.dtype)
    assert data["episode"].tolist() == [3] * (STEPS + 1)
    assert data["tick"].tolist() == list(range(82, 82 + STEPS + 1))
    assert data["t_mono_ns"][0] == (1_000_000 + bench.config.period_us) * 1000
    assert bench.board[Word.CLOSED] == 3


def test_an_evaluation_prevented_by_a_crash_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, "evaluate_every=2")
    bench.loop.run(LoopState(episode=2, evaluated=False, tick=82))
    kinds = [(int(r["kind"]), int(r["episode"])) for r in bench.records()]
    assert list(dict.fromkeys(kinds)) == [(Kind.EVAL, 2), (Kind.TRAIN, 3)]


def test_the_loop_saves_its_position_before_it_reports_an_episode_as_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    state_store = loop_state_in(bench.segment)
    states_by_closed: list[tuple[int, LoopState]] = []
    bench.loop._position.store = state_store
    bench.ring.at_push = lambda n: states_by_closed.append((bench.board[Word.CLOSED], decode_state(state_store.take())))
    bench.loop.run()
    assert {(word, state.episode) for word, state in states_by_closed} == {(0, 0), (1, 1), (2, 2)}
    final_state = decode_state(state_store.take())
    assert (final_state.episode, final_state.evaluated, final_state.tick) == (3, False, 3 * (STEPS + 1))
    # The very last frame, which confirms the safe outputs, belongs to no episode.
    assert final_state.device_us == bench.device.t_us - bench.config.period_us
    assert [seat.policy_id for seat in final_state.switch.seated] == [1]
    assert final_state.explorer["training_steps"] == 0


@pytest.mark.parametrize("process", ["ou", "parameter"])
def test_an_armed_device_does_not_wait_for_the_noise_of_its_episode(
    process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, f"exploration={{process: {process}}}", lockstep=False, reset=False)
    armed: list[bool] = []

    def recording_armed(draw_signal: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any) -> Any:
            armed.append(bench.device.armed)
            return draw_signal(*args)

        return draw

    explorer = bench.loop._explorer
    monkeypatch.setattr(explorer, "signal", recording_armed(explorer.signal))
    monkeypatch.setattr(explorer, "perturb", recording_armed(explorer.perturb))
    bench.loop.run()
    assert armed == [False] * (6 if process == "parameter" else 3)


def test_a_device_that_acknowledges_arming_but_remains_disarmed_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced_bench = Bench(tmp_path, monkeypatch, "episodes=20", lockstep=False)
    paced_bench.wait_virtually(monkeypatch)
    arm = paced_bench.device._arm

    def arm_falsely() -> object:
        reply = arm()
        paced_bench.device.armed = False
        return reply

    monkeypatch.setattr(paced_bench.device, "_arm", arm_falsely)
    with pytest.raises(Halted) as error:
        paced_bench.loop.run()
    assert error.value.fault is FaultName.DEVICE_DISARMED
    assert paced_bench.transitions.count("trip:fault") == 11


def test_a_stop_within_an_episode_keeps_its_wear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly_budget = "exploration={process: none, budgets: {hour: {driven_s: 100}}}"
    bench = Bench(tmp_path, monkeypatch, hourly_budget, lockstep=False)
    state_store = bench.loop._position.store = loop_state_in(bench.segment)
    bench.wait_virtually(monkeypatch)
    bench.ring.at_push = lambda n: bench.board.__setitem__(Word.STOP, 1) if n == STEPS + STEPS // 2 else None
    with pytest.raises(Stopped):
        bench.loop.run()
    stopped_state = decode_state(state_store.take())
    assert stopped_state.episode == 1
    assert stopped_state.explorer["budget.hour.driven_s"] > 1.4 * STEPS / bench.config.rate_hz


def test_a_resumed_run_that_starts_with_a_pause_keeps_its_time_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly_budget = "exploration={process: none, budgets: {hour: {driven_s: 0.8}}}"
    first_run = Bench(tmp_path / "first", monkeypatch, hourly_budget, "episodes=1")
    state_store = first_run.loop._position.store = loop_state_in(first_run.segment)
    first_run.loop.run()
    final_state = decode_state(state_store.take())
    second_run = Bench(tmp_path / "second", monkeypatch, hourly_budget, "episodes=2")
    state_store = second_run.loop._position.store = loop_state_in(second_run.segment)
    stored_states: list[bytes] = []
    monkeypatch.setattr(state_store, "put", stored_states.append)
    second_run.loop.run(final_state)
    assert [decode_state(state).device_us for state in stored_states[:2]] == [final_state.device_us] * 2
    assert final_state.device_us > 0
