"""Sample times of frames, and their lateness."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onrig.runtime.control.frames import FrameSource, SlackGate, Stopped, attribute_miss
from onrig.runtime.control.outside import GRACEFUL_STOP, IMMEDIATE_STOP
from onrig.runtime.record import Miss
from onrig.runtime.run_loading import load_run

PERIOD_NS = 20_000_000


def lateness_ms(arrivals_ms: list[float]) -> list[float]:
    """Lateness reported by the loop for frames of which the n-th, sampled at 20 n ms by the device, arrives late."""
    config = load_run("pendulum")
    assert config.wall_period_ns == PERIOD_NS
    session: Any = SimpleNamespace(received_ns=0)
    hello: Any = SimpleNamespace(time_scale=1.0)
    source = FrameSource(config, session, hello, hello, hello, lambda: 0)
    lateness = []
    for n, delay_ms in enumerate(arrivals_ms):
        step: Any = SimpleNamespace()
        state: Any = SimpleNamespace(t_us=20_000 * n)
        source._last_received_ns = 10**9 + PERIOD_NS * n + round(delay_ms * 1e6)
        source.record_times(step, state, None)
        assert step.lateness_ns == step.t_receive_ns - step.t_mono_ns
        lateness.append(step.lateness_ns / 1e6)
    return lateness


def test_frames_are_late_by_their_actual_delay() -> None:
    delays_ms = np.random.default_rng(0).uniform(0.0, 5.0, 500)
    delays_ms[0] = 0.0
    assert lateness_ms(delays_ms.tolist()) == pytest.approx(delays_ms.tolist(), abs=0.2)


@pytest.mark.parametrize("pause_ms", [20.0, 33.0, 500.0])
def test_a_device_whose_clock_stalled_is_not_late_from_then_on(pause_ms: float) -> None:
    lateness = lateness_ms([0.0] * 200 + [pause_ms] * 300)
    assert lateness[200:263] == pytest.approx([pause_ms] * 63, rel=0.01), "so far it may be merely late"
    assert max(lateness[263:]) < 0.1


def test_frames_that_are_late_for_a_while_count_as_late() -> None:
    lateness = lateness_ms([0.0] * 200 + [30.0] * 60 + [0.0] * 5 + [30.0] * 60 + [0.0] * 100)
    assert lateness[200:260] == pytest.approx([30.0] * 60, rel=0.01)
    assert lateness[265:325] == pytest.approx([30.0] * 60, rel=0.01)
    assert max(lateness[325:]) < 0.1


def test_frames_late_by_less_than_a_period_count_as_late_however_many_there_are() -> None:
    lateness = lateness_ms([0.0] * 200 + [15.0] * 190)
    assert lateness[200:] == pytest.approx([15.0] * 190, rel=0.02)


def test_more_missed_frames_than_a_record_can_hold_saturate() -> None:
    session: Any = SimpleNamespace(received_ns=0)
    hello: Any = SimpleNamespace(time_scale=1.0)
    board: Any = {}
    source = FrameSource(load_run("pendulum"), session, hello, hello, board, lambda: 0)
    step: Any = SimpleNamespace()
    state: Any = SimpleNamespace(t_us=20_000, frame=100_002)
    previous: Any = SimpleNamespace(frame=1, t_receive_ns=0)
    source.record_times(step, state, previous)
    assert step.missed == 65_535


class PunctualDevice:
    """A device with a frame at each multiple of the period, and a clock that advances only by waits and rehearsals."""

    def __init__(self, period_ns: int, rehearsal_ns: int) -> None:
        self.now_ns = self.received_ns = self.due_ns = 1000 * period_ns
        self.has_rebooted = False
        self.counters = SimpleNamespace(skipped=0, not_advancing=0, bytes_dropped=0)
        self.started_ns: list[int] = []
        """Time before the next frame at which each rehearsal began."""
        self._period_ns, self._rehearsal_ns = period_ns, rehearsal_ns

    def wait_state(self, deadline_ns: int) -> Any:
        if self.due_ns > max(deadline_ns, self.now_ns):
            self.now_ns = deadline_ns
            return None
        self.now_ns = self.received_ns = max(self.now_ns, self.due_ns)
        self.due_ns += self._period_ns
        return SimpleNamespace()

    def run(self) -> None:
        self.started_ns.append(self.due_ns - self.now_ns)
        self.now_ns += self._rehearsal_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    thread_time_ns = monotonic_ns


@pytest.mark.parametrize(
    ("rate_hz", "rehearsal_ns", "lead_times_ns"),
    [
        pytest.param(50, 200_000, [900_000, 700_000], id="twice in a long period"),
        pytest.param(50, 451_000, [900_000], id="not again after one that took far too long"),
        pytest.param(500, 200_000, [550_000], id="once in a short one"),
        pytest.param(1000, 200_000, [], id="nothing runs before a frame at 1 kHz"),
    ],
)
def test_the_tick_is_rehearsed_shortly_before_each_frame(
    rate_hz: float, rehearsal_ns: int, lead_times_ns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_run("pendulum", [f"rate_hz={rate_hz:g}", "device.pace=realtime", "rig.lease_periods=3"])
    device: Any = PunctualDevice(config.wall_period_ns, rehearsal_ns)
    monkeypatch.setattr("onrig.runtime.control.frames.time", device)
    hello: Any = SimpleNamespace(time_scale=1.0)
    source = FrameSource(config, device, hello, device, hello, lambda: 0)
    source.next()
    for _ in range(2):
        device.started_ns.clear()
        source.next()
        assert device.started_ns == lead_times_ns
        assert device.now_ns == device.received_ns


class SilentDevice:
    """A device that never answers, with its own clock."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.has_rebooted = False
        self.counters = SimpleNamespace(skipped=0, not_advancing=0, bytes_dropped=0)

    def wait_state(self, limit_ns: int) -> None:
        self.now_ns = max(self.now_ns, limit_ns)

    def request_hello(self) -> None:
        pass

    def run(self) -> None:
        """A rehearsal."""

    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.mark.parametrize(
    ("stop", "periods"),
    [
        pytest.param(GRACEFUL_STOP, 5, id="a fade outlasts missed frames until the lease has made the outputs safe"),
        pytest.param(IMMEDIATE_STOP, 1, id="a stop at once ends with the first missed frame"),
    ],
)
def test_a_silent_device_ends_a_fade_when_its_lease_expires(
    stop: int, periods: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_run("pendulum", ["device.pace=realtime", "rig.lease_periods=5"])
    device: Any = SilentDevice()
    monkeypatch.setattr("onrig.runtime.control.frames.time", device)
    hello: Any = SimpleNamespace(time_scale=1.0)
    source = FrameSource(config, device, hello, device, hello, lambda: stop)
    with pytest.raises(Stopped):
        source.next()
    assert periods * PERIOD_NS <= device.now_ns < (periods + 1.5) * PERIOD_NS


@pytest.mark.parametrize(
    ("n_missed", "busy_until", "cpu", "n_overtaken", "cause"),
    [
        (0, 5000, 900, 0, Miss.NONE),
        (1, 500, 100, 0, Miss.LINK),
        (1, 5000, 4900, 0, Miss.LINK),
        (1, 1500, 1400, 1, Miss.PROGRAM),
        (3, 3900, 3800, 3, Miss.PROGRAM),
        (1, 999, 100, 1, Miss.HOST),
        (1, 1500, 100, 1, Miss.HOST),
        (1, 2100, 600, 1, Miss.HOST),
    ],
    ids=[
        "nothing missed",
        "the frame never came",
        "it never came, however long we worked",
        "we worked past its arrival",
        "we worked past the arrival of several",
        "we waited for it and were woken late",
        "our work was held up by the machine",
        "it had more than half a period of the processor, which does not last until the next frame",
    ],
)
def test_a_miss_is_attributed_to_its_cause(
    n_missed: int, busy_until: int, cpu: int, n_overtaken: int, cause: Miss
) -> None:
    assert attribute_miss(n_missed, 1000, busy_until, cpu, 1000, n_overtaken) == cause


MS = 1_000_000


def warmed_up_gate(period_ms: float, *work_us: int) -> SlackGate:
    gate = SlackGate(round(period_ms * MS))
    for duration_us in work_us:
        gate.allows_work_after(1000 * duration_us)
    return gate


def test_ticks_of_usual_length_leave_time_for_other_work() -> None:
    for work_us in (20, 200, 400):
        assert warmed_up_gate(1.0, *[work_us] * 100).allows_work_after(1000 * work_us + 30_000)


@pytest.mark.parametrize("work_us", [500, 700, 3000])
def test_no_other_work_follows_a_tick_of_half_a_period(work_us: int) -> None:
    assert not warmed_up_gate(1.0, *[400] * 100).allows_work_after(1000 * work_us)


def test_no_other_work_follows_a_tick_of_four_times_its_usual_length() -> None:
    gate = warmed_up_gate(5.0, *[200] * 100)
    assert gate.allows_work_after(700_000)
    assert not gate.allows_work_after(1_960_000)


def test_one_stall_does_not_change_the_usual_length() -> None:
    gate = warmed_up_gate(20.0, *[200] * 100, 8000)
    assert not gate.allows_work_after(1_000_000)


def test_ticks_that_have_become_longer_for_good_soon_count_as_usual() -> None:
    gate = SlackGate(100 * MS)
    allowed = [gate.allows_work_after(200_000) for _ in range(100)] + [
        gate.allows_work_after(3_000_000) for _ in range(200)
    ]
    assert all(allowed[:100])
    assert not allowed[100]
    assert all(allowed[200:])
