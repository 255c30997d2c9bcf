"""A trainer in the loop, in virtual time: in time, late, silent, and with another wish."""

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

LEASE = PENDULUM.rig.lease_periods
REAL = msgspec.structs.replace(PENDULUM, device=msgspec.structs.replace(PENDULUM.device, pace="realtime"))
LOCK = msgspec.structs.replace(PENDULUM, device=msgspec.structs.replace(PENDULUM.device, pace="lockstep"))


class Trainer:
    """The trainer's side; ``answers`` gives the order that comes while it is waited for."""

    def __init__(self, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        self.request = TrainerRequest(1, NO_SEED, -1, 0, False, (0.0,))
        self.samples: list[Sample] = []
        self.delay_ns: int | None = None
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))
        self.board: dict[Word, int] = {Word.EPISODE: 0}
        ticking: Any = SimpleNamespace(is_over=lambda state, terminated: terminated)
        requests: Any = SimpleNamespace(stop=0)
        end: Any = self
        self.tick, self.acting = 0, TrainerActor(config, end, ticking, requests, self.board)  # type: ignore[arg-type]
        assert self.acting.await_episode(lambda condition, *rest: None)

    def send(self, sample: Sample) -> None:
        self.samples.append(sample)

    def wait(self, timeout_ns: int) -> None:
        self.now_ns += timeout_ns
        if self.delay_ns is not None and self.now_ns >= self.due_ns:
            self.request = self.request._replace(tick=self.tick, action=(0.25 + self.tick,))

    def act(self, delay_ns: int | None) -> Step:
        """A tick whose answer comes after ``delay_ns``; None: never."""
        self.tick += 1
        self.delay_ns = delay_ns
        self.due_ns = self.now_ns + (delay_ns or 0)
        frame: Any = (1, 0, 0, 0, 0, (0, 0), (0,), (0,), (0.0, 0.0), *[(0.0,)] * 4, (0,), (0.0,))
        step = Step(self.tick, 1, Kind.TRAIN, *frame)
        self.acting.act(step)
        return step

    def is_over(self) -> bool:
        state: Any = None
        return self.acting.is_over(state, False)


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    return Trainer(REAL, monkeypatch)


def test_an_action_in_time_is_taken(real: Trainer) -> None:
    step = real.act(0)
    assert (step.policy, step.flags) == ((1.25,), 0)
    assert real.now_ns < 0.75 * REAL.wall_period_ns + 1


def test_a_late_action_counts_from_the_next_tick_on(real: Trainer) -> None:
    assert real.act(0).policy == (1.25,)
    late = real.act(None)
    assert (late.policy, late.flags) == ((1.25,), Flag.HELD)
    real.request = real.request._replace(tick=2, action=(9.0,))
    held = real.act(None)
    assert (held.policy, held.flags) == ((9.0,), Flag.HELD)
    for _ in range(2 * LEASE):  # as long as some action comes, the trainer is there
        real.request = real.request._replace(tick=real.tick)
        assert math.isfinite(real.act(None).policy[0])
    assert not real.is_over()


def test_after_a_lease_without_an_action_the_fallback_acts_and_the_episode_ends(real: Trainer) -> None:
    real.act(0)
    actions = [real.act(None).policy[0] for _ in range(LEASE)]
    assert actions[:-1] == [1.25] * (LEASE - 1)
    assert math.isnan(actions[-1])
    assert real.is_over()


def test_before_the_first_action_the_safe_output_is_in_force_for_a_while(real: Trainer) -> None:
    ticks = round(module._FIRST_ACTION_TIMEOUT_S * REAL.rate_hz)
    actions = [real.act(None).policy[0] for _ in range(ticks)]
    assert actions[:-1] == [0.0] * (ticks - 1)
    assert math.isnan(actions[-1])


def test_another_episode_ends_this_one_without_a_fallback(real: Trainer) -> None:
    real.act(0)
    real.request = real.request._replace(episodes=2, tick=-1)
    before = real.now_ns
    step = real.act(None)
    assert (step.policy, step.flags) == ((1.25,), Flag.HELD)
    assert real.now_ns == before, "nothing was waited for"
    assert real.is_over()


def test_in_lockstep_virtual_time_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(LOCK, monkeypatch)
    assert trainer.act(10 * LOCK.wall_period_ns).policy == (1.25,)
    assert math.isnan(trainer.act(None).policy[0])
    assert trainer.now_ns >= 1e9 * LOCK.barrier_timeout_s
    assert trainer.is_over()


def test_a_seed_numbers_episodes_from_there_on(real: Trainer) -> None:
    assert real.acting.seed_and_offset is None
    real.board[Word.EPISODE] = 4
    real.request = real.request._replace(episodes=2, seed=99)
    assert real.acting.await_episode(lambda condition, *rest: None)
    assert real.acting.seed_and_offset == (99, 4)
    real.request = real.request._replace(episodes=3, seed=NO_SEED, is_closing=True)
    assert not real.acting.await_episode(lambda condition, *rest: None)
