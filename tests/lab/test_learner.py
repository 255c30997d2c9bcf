"""``python -m tests.lab.learner`` on tiny sizes: its output, but no durations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from onrig.learner.algorithms.ddpg import Ddpg
from onrig.tools.bench.replay.cases import Shape
from onrig.tools.bench.timing import Timings
from onrig.tools.progress import PlainProgress
from onrig.tools.workers import Unavailable
from tests.lab import learner
from tests.lab.learner import limit_sentence, limit_table, rates_table
from tests.lab.learners.cases import (
    GROUPS,
    JAX_PEER,
    LIMIT,
    ONRIG,
    PEER,
    PENDULUM,
    STORED,
    STRATEGY_RUNS,
    LearnerCase,
    Rates,
    StrategyRun,
    Throughput,
    Work,
    group,
    mega_flop,
    share,
    speed_checks,
    throughput,
    times_faster,
)
from tests.lab.learners.session import WEIGHTS, Minutes, Plan, Session, StrategyPlan, minutes, strategy_checks
from tests.lab.learners.subjects import Strategy, full_memories, onrig

TINY = Plan((group("small", PENDULUM, (1, 2)),), rounds=2, limit_ms=1, updates=2)
TINY_STRATEGY_RUNS = StrategyPlan((StrategyRun("FIFO[Uniform]", 20.0),), trials=2, of_episodes=3000, episodes=1)


def case(work: Work, trials: int = 1) -> LearnerCase:
    return LearnerCase(work, "small", PENDULUM, trials)


def steady(*rounds: float) -> Throughput:
    return Throughput(rounds, rounds)


def test_the_report_has_the_documented_shape_and_names_missing_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learner, "installed_version", lambda package: None if package in (PEER, JAX_PEER) else "1.0")
    monkeypatch.setattr(learner, "QUICK", TINY)
    monkeypatch.setattr(learner, "QUICK_STRATEGY_RUNS", TINY_STRATEGY_RUNS)
    file = tmp_path / "learner.json"
    assert learner.main(["--quick", "--strategy", "--json", str(file)]) == 0
    output = capsys.readouterr().out
    assert "stable-baselines3: not installed, left out" in output
    assert "sbx-rl: not installed, left out" in output
    assert "s/episode at 50%" in output
    report = json.loads(file.read_bytes())
    assert set(report) == {"machine", "stall_floor_us", "rows", "checks"}
    assert report["stall_floor_us"] > 0
    assert "unavailable" not in report["machine"]
    assert report["machine"]["floating_point_limit"] in output
    rows = report["rows"]
    assert all(set(row) == {"case", "subject", "unit", "p50", "p99", "p999", "max"} for row in rows)
    assert all(0 < row["p50"] <= row["p99"] <= row["p999"] <= row["max"] for row in rows)
    assert {row["subject"] for row in rows} == {ONRIG, LIMIT}
    rates = {row["case"] for row in rows if row["unit"] == "trial_updates_per_s"}
    assert rates == {case(work, n).title for work in (Work.UPDATE, Work.SAMPLED) for n in (1, 2)}
    assert {row["case"] for row in rows if row["unit"] == "minutes"} == {
        "FIFO[Uniform], 2 trials x 3000 episodes",
        "FIFO[Uniform], 2 trials x 3000 episodes, quietest episodes",
        "FIFO[Uniform], 2 trials x 3000 episodes, processor time",
    }
    assert [check["name"] for check in report["checks"]] == ["FIFO[Uniform], 2 trials x 3000 episodes: minutes at most"]


def test_the_operations_counted_follow_from_the_layer_sizes() -> None:
    # Written out for 2/1, batch 16: forward passes, parameters' and inputs' gradients; the biases are no products.
    actor = 3 * (2 * 50 + 50 * 50 + 50 * 1) + 50 * 50 + 50 * 1
    # On (s, a), (s, pi(s)) and (s', pi-(s')); the first two share the first layer.
    behind = 51 * 50 + 50 * 20 + 20
    critic = 2 * 2 * 50 + 3 * behind + (2 * 50 + behind) + 2 * behind
    assert mega_flop(case(Work.UPDATE)) == pytest.approx(2 * 16 * (actor + critic) / 1e6)


def test_updates_with_sampling_learn_from_each_trials_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Ddpg, "update", lambda self, batches: seen.append(batches))
    run = onrig(case(Work.SAMPLED, 3), 2, 0)
    run()
    run()
    first, second = seen
    assert first.reward.shape == (2, 3, 16)
    assert not np.array_equal(first.reward, second.reward)
    assert not np.array_equal(first.reward[:, 0], first.reward[:, 1])
    again = onrig(case(Work.UPDATE, 3), 2, 0)
    again()
    again()
    assert seen[2] is seen[3]


def test_memories_are_full_before_anything_is_timed() -> None:
    memories = full_memories(case(Work.SAMPLED, 2), 0)
    drawn = np.concatenate([memories.draw(100)[0].reward.reshape(-1) for _ in range(3)])
    assert drawn.min() < 0.05
    assert drawn.max() > 0.95
    assert len(np.unique(drawn)) > STORED / 10


def test_sizes_that_no_rig_has_are_refused() -> None:
    odd = LearnerCase(Work.UPDATE, "small", Shape(3, 1), 1)
    with pytest.raises(Unavailable, match="pendulum is not of sizes 3/1"):
        onrig(odd, 1, 0)


def test_the_peer_is_asked_for_one_trial_and_onrig_for_all() -> None:
    asked = {(c.work, c.trials): c.subjects for c in group("small", PENDULUM, (1, 50))}
    assert asked[Work.SAMPLED, 1] == asked[Work.UPDATE, 1] == (ONRIG, PEER)
    assert asked[Work.SAMPLED, 50] == (ONRIG,)
    assert asked[Work.PRODUCTS, 50] == (LIMIT,)
    assert LearnerCase(Work.SAMPLED, "64-64", PENDULUM, 1, "sac").subjects == (ONRIG, PEER, JAX_PEER)


@pytest.mark.study
def test_a_failing_peer_is_dropped() -> None:
    single_trial = Plan((group("small", PENDULUM, (1,)),), rounds=1, limit_ms=1, updates=1)
    session = Session(single_trial, (ONRIG, "no-such-library"), PlainProgress(10.0))
    session.run()
    assert "KeyError: 'no-such-library'" in session.unavailable_reasons["no-such-library", ""]
    assert {subject for _, subject in session.rates} == {ONRIG}
    assert limit_sentence(session.rates) is None


def test_rates_are_updates_of_all_trials_by_time() -> None:
    rates = throughput(case(Work.UPDATE, 50), 100, [[10**9, 2 * 10**9, 10**9], [], [5 * 10**8]])
    assert rates.rounds == (5000.0, 10_000.0)
    assert rates.all == (5000.0, 2500.0, 5000.0, 10_000.0)
    assert throughput(case(Work.LARGE), 100, [[10**9]]).p50 == pytest.approx(2 * 1024**3 / 1e9)
    with pytest.raises(ValueError, match="no durations"):
        throughput(case(Work.UPDATE), 100, [[]])


def test_ratios_are_paired_by_round() -> None:
    rates: Rates = {
        (case(Work.SAMPLED, 16), ONRIG): steady(3000.0, 300.0, 3000.0),
        (case(Work.SAMPLED), PEER): steady(100.0, 10.0, 100.0),
        (case(Work.UPDATE), PEER): steady(1.0, 1.0, 1.0),
    }
    assert times_faster(rates, case(Work.SAMPLED, 16)) == pytest.approx(30.0)
    assert times_faster(rates, case(Work.UPDATE, 16)) is None


def test_bounds_hold_or_not_by_the_figures() -> None:
    rates: Rates = {
        (case(Work.SAMPLED), ONRIG): steady(390.0),
        (case(Work.SAMPLED, 16), ONRIG): steady(2800.0),
        (case(Work.SAMPLED, 50), ONRIG): steady(3400.0),
        (case(Work.UPDATE), ONRIG): steady(390.0),
        (case(Work.SAMPLED), PEER): steady(100.0),
        (case(Work.UPDATE), PEER): steady(100.0),
    }
    checks = speed_checks(rates)
    assert [(check.bound, check.holds) for check in checks] == [(4.0, False), (28.0, True), (35.0, False)]
    assert speed_checks({found: t for found, t in rates.items() if found[1] == ONRIG}) == []


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_other_algorithms_are_compared_with_the_peers_of_the_same_name_and_size(algorithm: str) -> None:
    cases = [c for group in GROUPS for c in group if c.algorithm == algorithm]
    assert {(c.network, c.trials, c.settings.batch) for c in cases} == {
        ("256-256", 1, 256),
        ("64-64", 1, 64),
        ("64-64", 16, 64),
    }
    rates: Rates = {(c, ONRIG): steady(500.0 * c.trials) for c in cases}
    rates |= {(c, PEER): steady(510.0) for c in cases if c.trials == 1}
    rates |= {(c, JAX_PEER): steady(400.0) for c in cases if c.trials == 1}
    checks = speed_checks(rates)
    assert [(round(check.value, 2), round(check.bound, 2), check.holds) for check in checks] == [
        (0.98, 0.95, True),
        (1.25, 1.0, True),
        (0.98, {"sac": 20.0, "td3": 15.0}[algorithm], False),
        (1.25, 1.2, True),
        (16.0, 0.9, True),
    ]
    named = f"sample and update, {algorithm.upper()} 256-256, 2/1, 1 trial: times {PEER}'s single trial at least"
    assert checks[0].name == named


def test_the_distance_to_the_limit_is_reported() -> None:
    some = case(Work.UPDATE, 50)
    padded = mega_flop(some)
    rates: Rates = {
        (some, ONRIG): steady(20e3 / padded),
        (case(Work.PRODUCTS, 50), LIMIT): steady(40.0),
        (case(Work.LARGE), LIMIT): steady(100.0),
    }
    ratio = share(rates, some)
    assert ratio is not None
    assert (ratio.gflop_per_s, ratio.of_products, ratio.of_large) == pytest.approx((20.0, 0.5, 0.2))
    assert limit_table(rates).splitlines()[1].split()[-5:] == ["20.00", "40.00", "50%", "100", "20%"]
    sentence = limit_sentence(rates)
    assert sentence is not None
    assert "20.0 Gflop/s, 20% of what one of 1024 x 1024 reaches" in sentence
    assert "50% of what the same small products alone reach" in sentence
    assert limit_sentence({(some, ONRIG): steady(1.0)}) is None


def test_the_table_has_no_ratio_where_the_peer_is_missing() -> None:
    rates: Rates = {(case(Work.SAMPLED), ONRIG): steady(500.0)}
    assert rates_table(rates).splitlines()[1].split()[-3:] == ["500", "500", "500"]
    rates[case(Work.SAMPLED), PEER] = steady(100.0)
    assert rates_table(rates).splitlines()[1].split()[-2:] == ["100", "5.0x"]
    rates[case(Work.SAMPLED), JAX_PEER] = steady(400.0)
    assert rates_table(rates).splitlines()[1].split()[-4:] == ["100", "5.0x", "400", "1.2x"]


def test_a_strategys_minutes_are_the_integral_over_the_measured_points() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)
    second = 10**9
    even = minutes([Timings([second, 2 * second], busy_calls=[second, second])] * 3, 3000)
    assert even.fastest == pytest.approx(50.0)
    assert even.rounds == pytest.approx((50.0, 100.0))
    assert even.median == pytest.approx(75.0)
    assert even.busy == pytest.approx(50.0)
    # Constant at 1 s until 10 %, then 2 s more per half of the episodes.
    rising = minutes([Timings([int(s * second)], busy_calls=[second]) for s in (1, 2.6, 4.6)], 60)
    assert rising.median == pytest.approx(0.1 * 1 + 0.4 * 1.8 + 0.5 * 3.6)


def test_a_strategy_is_checked_against_its_bound() -> None:
    uniform, per = StrategyRun("FIFO[Uniform]", 20.0), StrategyRun("FULL[PER]", 40.0)
    slow = Minutes(1.0, (30.0,), (1.0, 1.0, 1.0), 1.0)
    assert [c.holds for c in strategy_checks({uniform: slow, per: slow}, StrategyPlan())] == [False, True]
    assert [run.bound_minutes for run in STRATEGY_RUNS] == [20.0, 20.0, 40.0, 20.0]


def test_a_strategy_advances_without_updates() -> None:
    strategy = Strategy("FIFO[Uniform]", 2)
    strategy.forward_to(7)
    assert strategy._trials.episodes.tolist() == [8, 8]
    assert strategy._trials.algorithm.updates == 0
    assert strategy._trials.memories.n_offered == 1400
    assert len(strategy.durations(1).calls) == 1
    assert strategy._trials.episodes.tolist() == [9, 9]
    assert strategy._trials.algorithm.updates == 100


def test_a_missing_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert learner.main(["--json", "no/such/folder/x.json"]) == 2
    assert capsys.readouterr().err == "python -m tests.lab.learner: --json: no such folder 'no/such/folder'\n"
