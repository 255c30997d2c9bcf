"""Rate limit of admission."""

from __future__ import annotations

import msgspec
import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.replay.learners.admission_rate import (
    ADMISSIONS_PER_S,
    PerBarrier,
    PerSecond,
    admission_rate,
    admissions_per_s,
)
from onrig.runtime.run_loading import load_run

RATE_HZ = 50.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("rate_per_s", "burst"), [(0.5, 1), (1.0, 1), (3.0, 3)])
def test_at_most_a_seconds_allowance_accumulates(rate_per_s: float, burst: int) -> None:
    rate = PerSecond(rate_per_s, RATE_HZ, Clock())
    rate.on_ticks(10**6)
    assert [rate.use_check(0) for _ in range(burst + 2)] == [True] * burst + [False] * 2


@pytest.mark.parametrize("rate_per_s", [0.5, 1.0, 3.0])
def test_the_average_rate_is_as_stated_however_often_it_is_used(rate_per_s: float) -> None:
    rate, seconds = PerSecond(rate_per_s, RATE_HZ, Clock()), 40
    n_admitted = 0
    for _ in range(round(RATE_HZ * seconds)):
        rate.on_ticks(1)
        n_admitted += sum(rate.use_check(0) for _ in range(4))
    assert n_admitted == pytest.approx(rate_per_s * seconds, abs=max(1.0, rate_per_s))


def test_before_the_first_tick_the_clock_counts_and_afterwards_only_ticks() -> None:
    clock = Clock()
    rate = PerSecond(1.0, RATE_HZ, clock)
    assert (rate.use_check(0), rate.use_check(0)) == (True, False)
    clock.now_s += 1.0
    assert rate.use_check(0), "a run whose first policy was refused must not wait for ever"
    rate.on_ticks(1)
    clock.now_s += 1000.0
    assert not rate.use_check(0)
    rate.on_ticks(round(RATE_HZ))
    assert rate.use_check(0)


def test_one_policy_is_judged_at_each_barrier() -> None:
    rate = PerBarrier()
    closed_episodes = (0, 0, 1, 1, 2, 5, 5, 4)
    assert [rate.use_check(c) for c in closed_episodes] == [True, False, True, False, True, True, False, False]


def test_the_admission_rate_is_in_the_resolved_configuration_only_if_it_was_set() -> None:
    config = load_run("pendulum")
    assert isinstance(admission_rate(config), PerBarrier)
    assert admissions_per_s(config) == ADMISSIONS_PER_S
    assert "admissions_per_s" not in msgspec.to_builtins(config)["link"]
    config = load_run("pendulum", ["device.pace=realtime", "link.admissions_per_s=2.5"])
    assert isinstance(admission_rate(config), PerSecond)
    assert admissions_per_s(config) == 2.5


@pytest.mark.parametrize("rate_per_s", ["0", "-1", "1001", ".nan", ".inf"])
def test_the_rate_has_bounds(rate_per_s: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", [f"link.admissions_per_s={rate_per_s}"])
    (problem,) = error.value.problems
    assert any(words in problem.message for words in ("expected 0.01 to 1000", "must be finite"))
