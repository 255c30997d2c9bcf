"""A trainer in the loop, in virtual time: in time, late, silent, and with another request."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from onrig.runtime.control import actor as module
from onrig.runtime.control.actor import TrainerActor
from onrig.runtime.record import Flag, Kind, Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.board import Word
from onrig.runtime.shm.exchange import NO_SEED, Sample, TrainerRequest
from tests.runtime.samples import PENDULUM

LEASE_PERIODS = PENDULUM.rig.lease_periods
REALTIME = msgspec.structs.replace(PENDULUM, device=msgspec.structs.replace(PENDULUM.device, pace="realtime"))
LOCKSTEP = msgspec.structs.replace(PENDULUM, device=msgspec.structs.replace(PENDULUM.device, pace="lockstep"))


def a_step(tick: int) -> Step:
    frame: Any = (1, 0, 0, 0, 0, (0, 0), (0,), (0,), (0.0, 0.0), *[(0.0,)] * 4, (0,), (0.0,))
    return Step(tick, 1, Kind.TRAIN, *frame)


class Trainer:
    """The trainer's side; ``answers`` gives the order that arrives while it is waited for."""

    def __init__(self, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        self.request = TrainerRequest(1, NO_SEED, -1, 0, False, (0.0,))
        self.samples: list[Sample] = []
        self.delay_ns: int | None = None
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))
        self.board: dict[Word, int] = {Word.EPISODE: 0}
        episode_end: Any = SimpleNamespace(is_over=lambda state, terminated: terminated)
        requests: Any = SimpleNamespace(stop=0)
        end: Any = self
        self.lateness_ns = 0
        self.tick, self.actor = 0, TrainerActor(config, end, episode_end, requests, self.board, end)  # type: ignore[arg-type]
        assert self.actor.await_episode(lambda condition, *args: None)

    def due_ns(self, t_device_us: int, now_ns: int) -> int:
        return now_ns - self.lateness_ns

    def send(self, sample: Sample) -> None:
        self.samples.append(sample)

    def wait(self, timeout_ns: int) -> None:
        self.now_ns += timeout_ns
        if self.delay_ns is not None and self.now_ns >= self.reply_due_ns:
            self.request = self.request._replace(tick=self.tick, action=(0.25 + self.tick,))

    def act(self, delay_ns: int | None) -> Step:
        """A tick whose answer arrives after ``delay_ns``; None: never."""
        self.tick += 1
        self.delay_ns = delay_ns
        self.reply_due_ns = self.now_ns + (delay_ns or 0)
        step = a_step(self.tick)
        self.actor.act(step)
        return step

    def is_over(self) -> bool:
        state: Any = None
        return self.actor.is_over(state, False)


@pytest.fixture
def realtime_trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    return Trainer(REALTIME, monkeypatch)


def test_an_action_in_time_is_applied(realtime_trainer: Trainer) -> None:
    step = realtime_trainer.act(0)
    assert (step.policy, step.flags) == ((1.25,), 0)
    assert realtime_trainer.now_ns < 0.75 * REALTIME.wall_period_ns + 1


def test_a_late_action_counts_from_the_next_tick(realtime_trainer: Trainer) -> None:
    assert realtime_trainer.act(0).policy == (1.25,)
    step = realtime_trainer.act(None)
    assert (step.policy, step.flags) == ((1.25,), Flag.HELD)
    realtime_trainer.request = realtime_trainer.request._replace(tick=2, action=(9.0,))
    held_step = realtime_trainer.act(None)
    assert (held_step.policy, held_step.flags) == ((9.0,), Flag.HELD)
    for _ in range(2 * LEASE_PERIODS):  # as long as any action arrives, the trainer is present
        realtime_trainer.request = realtime_trainer.request._replace(tick=realtime_trainer.tick)
        assert math.isfinite(realtime_trainer.act(None).policy[0])
    assert not realtime_trainer.is_over()


def test_after_a_lease_without_an_action_the_fallback_acts_and_the_episode_ends(realtime_trainer: Trainer) -> None:
    realtime_trainer.act(0)
    actions = [realtime_trainer.act(None).policy[0] for _ in range(LEASE_PERIODS)]
    assert actions[:-1] == [1.25] * (LEASE_PERIODS - 1)
    assert math.isnan(actions[-1])
    assert realtime_trainer.is_over()


def test_before_the_first_action_the_safe_output_applies_for_a_while(realtime_trainer: Trainer) -> None:
    ticks = round(module._FIRST_ACTION_TIMEOUT_S * REALTIME.rate_hz)
    actions = [realtime_trainer.act(None).policy[0] for _ in range(ticks)]
    assert actions[:-1] == [0.0] * (ticks - 1)
    assert math.isnan(actions[-1])


def test_another_episode_ends_the_current_one_without_a_fallback(realtime_trainer: Trainer) -> None:
    realtime_trainer.act(0)
    realtime_trainer.request = realtime_trainer.request._replace(episodes=2, tick=-1)
    start_ns = realtime_trainer.now_ns
    step = realtime_trainer.act(None)
    assert (step.policy, step.flags) == ((1.25,), Flag.HELD)
    assert realtime_trainer.now_ns == start_ns, "the loop did not wait"
    assert realtime_trainer.is_over()


@pytest.mark.parametrize(
    ("period_us", "wait_us"), [(20_000, 15_000), (4000, 3000), (2000, 1000), (1000, 250)], ids="{} us".format
)
def test_the_rest_of_the_period_is_long_enough_for_the_command(period_us: int, wait_us: int) -> None:
    assert module.action_wait_ns(1000 * period_us) == 1000 * wait_us


@pytest.mark.parametrize(("lateness", "wait"), [(0.1, 0.65), (0.5, 0.25), (0.9, 0.0)])
def test_a_late_tick_waits_less(realtime_trainer: Trainer, lateness: float, wait: float) -> None:
    realtime_trainer.lateness_ns = round(lateness * REALTIME.wall_period_ns)
    realtime_trainer.act(None)
    assert realtime_trainer.now_ns == pytest.approx(wait * REALTIME.wall_period_ns)


def test_a_reply_that_waits_is_applied_in_a_tick_too_late_to_wait(realtime_trainer: Trainer) -> None:
    realtime_trainer.lateness_ns = REALTIME.wall_period_ns
    realtime_trainer.request = realtime_trainer.request._replace(tick=1, action=(9.0,))
    assert realtime_trainer.act(None).policy == (9.0,)


def test_in_lockstep_virtual_time_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(LOCKSTEP, monkeypatch)
    assert trainer.act(10 * LOCKSTEP.wall_period_ns).policy == (1.25,)
    assert math.isnan(trainer.act(None).policy[0])
    assert trainer.now_ns >= 1e9 * LOCKSTEP.barrier_timeout_s
    assert trainer.is_over()


def test_a_seed_numbers_the_episodes_that_follow(realtime_trainer: Trainer) -> None:
    assert realtime_trainer.actor.seed_and_offset is None
    realtime_trainer.board[Word.EPISODE] = 4
    realtime_trainer.request = realtime_trainer.request._replace(episodes=2, seed=99)
    assert realtime_trainer.actor.await_episode(lambda condition, *args: None)
    assert realtime_trainer.actor.seed_and_offset == (99, 4)
    realtime_trainer.request = realtime_trainer.request._replace(episodes=3, seed=NO_SEED, is_closing=True)
    assert not realtime_trainer.actor.await_episode(lambda condition, *args: None)
