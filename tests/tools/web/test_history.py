from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.record import Flag, Kind, Rule
from onrig.runtime.run_state.episodes import EpisodeRow
from onrig.runtime.view.sentences import Event
from onrig.tools.web.history import FIELDS, SAMPLES_PER_S, EpisodeHistory, EventHistory, Motion
from tests.runtime.samples import PENDULUM, Records, episode, records


def row(episode: int, kind: str = "train", score: float = 0.5) -> EpisodeRow:
    return EpisodeRow(episode, kind, 200, -1.0, -0.5, score, 0.25, 2, 1, 9, 0)


def test_rows_are_sent_in_the_form_that_the_page_needs() -> None:
    curve = EpisodeHistory()
    new_points = curve.add([row(1), row(1, "eval", 0.75)])
    assert new_points == [[1, 0, 200, 0.5, 0.25, 2, 1, 9], [1, 1, 200, 0.75, 0.25, 2, 1, 9]]
    assert curve.add([row(2)]) == [[2, 0, 200, 0.5, 0.25, 2, 1, 9]]
    assert len(curve.rows) == 3
    assert len(FIELDS) == len(curve.rows[0])


def test_without_references_the_return_is_the_score() -> None:
    raw = row(1)._replace(normalized=None, reward_sum=-26102.4531)
    assert EpisodeHistory().add([raw]) == [[1, 0, 200, -26102.5, 0.25, 2, 1, 9]]


def test_an_episode_without_a_step_has_no_score() -> None:
    assert EpisodeHistory().add([row(1, score=float("nan"))]) == [[1, 0, 200, None, 0.25, 2, 1, 9]]


@given(n=st.integers(1, 200), limit=st.integers(2, 40))
def test_it_stays_within_its_limit_and_loses_no_intervention(n: int, limit: int) -> None:
    curve = EpisodeHistory(limit)
    for number in range(1, n + 1):
        curve.add([row(number), row(number, "eval", 1.0)])
    assert len(curve.rows) <= max(limit, 2)
    for kind in (0, 1):
        rows = [r for r in curve.rows if r[1] == kind]
        assert sum(r[5] or 0 for r in rows) == 2 * n
        assert rows[-1][0] == n
        assert {r[3] for r in rows} == {0.5 + 0.5 * kind}
    assert [r[0] for r in curve.rows] == sorted(r[0] or 0 for r in curve.rows)


def test_merging_is_reported_so_that_all_rows_are_sent_again() -> None:
    curve = EpisodeHistory(4)
    assert curve.add([row(i) for i in range(1, 5)]) is not None
    assert curve.add([row(5)]) is None
    assert curve.merged == 2


def test_episodes_repeated_by_a_resumed_run_replace_the_earlier_ones() -> None:
    curve = EpisodeHistory()
    both_kinds = [row(n, kind) for n in range(1, 6) for kind in ("train", "eval")]
    curve.add(both_kinds)
    assert curve.add([row(4, score=0.75), row(4, "eval")]) is None, "all rows are sent anew"
    assert [(r[0], r[1]) for r in curve.rows] == [(n, kind) for n in range(1, 5) for kind in (0, 1)]
    assert curve.rows[-2][3] == 0.75
    assert curve.add(both_kinds[:4]) is None
    assert len(curve.rows) == 4


def test_a_restarted_curve_is_no_longer_merged() -> None:
    curve = EpisodeHistory(4)
    curve.add([row(n) for n in range(1, 7)])
    assert curve.merged == 2
    assert curve.add([row(1)]) is None
    assert (curve.merged, len(curve.rows)) == (1, 1)


def test_policies_are_sent_with_their_verdicts_and_reasons() -> None:
    history = EventHistory()
    items, policies = history.add(
        [
            Event(0.0, "policy_admitted", {"policy": 1}),
            Event(0.0, "policy_refused", {"policy": 0, "stage": "outputs", "reason": "not finite"}),
            Event(0.0, "policy_rolled_back", {"policy": 1, "reason": "trips"}),
        ]
    )
    assert policies == [[1, "admitted", ""], [0, "refused", "outputs: not finite"], [1, "rolled back", "trips"]]
    assert [i["text"] for i in items] == ["a policy refused: outputs: not finite", "policy 1 rolled back: trips"]
    assert history.policies == policies


def test_repeated_events_state_their_number() -> None:
    [item], _ = EventHistory().add([Event(7.0, "warning", {"source": "x", "message": "slow", "count": 3})])
    assert item == {"t": 7.0, "what": "run", "level": "warn", "text": "x: slow (3 times)"}


def test_only_the_newest_are_kept() -> None:
    history = EventHistory()
    history.add(Event(0.0, "error", {"source": "x", "message": str(i)}) for i in range(500))
    assert len(history.items) == 200
    assert history.items[-1]["text"] == "x: 499"


def records_at_rate(n: int, rate_hz: float) -> Records:
    rows = records(n)
    rows["t_mono_ns"] = 10**15 + (np.arange(n) * 1e9 / rate_hz).astype(np.int64)
    return rows


def times(samples: dict[str, object] | None) -> list[float]:
    assert samples is not None
    values = samples["t"]
    assert isinstance(values, list)
    return values


def beginnings(samples: dict[str, object]) -> list[bool]:
    values = samples["begins"]
    assert isinstance(values, list)
    return values


@pytest.mark.parametrize("rate_hz", [20, 200, 1000])
@pytest.mark.parametrize("chunk_size", [1, 7, 100])
def test_a_live_rig_is_thinned_to_what_is_visible(rate_hz: float, chunk_size: int) -> None:
    rows, motion = records_at_rate(1000, rate_hz), Motion(PENDULUM)
    live_samples = [motion.live(rows[i : i + chunk_size]) for i in range(0, len(rows), chunk_size)]
    shown_times = [t for samples in live_samples if samples is not None for t in times(samples)]
    seconds = len(rows) / rate_hz
    assert len(shown_times) == pytest.approx(min(rate_hz, SAMPLES_PER_S) * seconds, rel=0.05)
    assert shown_times == sorted(set(shown_times))


def test_an_intervention_is_shown_even_if_its_record_is_left_out() -> None:
    rows = records_at_rate(1000, 1000)
    rows["rule"][130] = Rule.PREDICTED
    samples = Motion(PENDULUM).live(rows)
    assert samples is not None
    assert samples["rule"].count(Rule.PREDICTED) == 1  # type: ignore[attr-defined]


def test_non_finite_values_are_not_drawn() -> None:
    rows = records_at_rate(2, 20)
    rows["policy"][0] = np.nan
    samples = Motion(PENDULUM).live(rows)
    assert samples is not None
    assert samples["policy"] == [[None, 0.0]]


def test_a_clip_is_the_newest_complete_episode_in_device_time() -> None:
    rows = np.concatenate([episode(20, episode=1), episode(30, episode=2, kind=Kind.EVAL), records(5, episode=3)])
    samples = Motion(PENDULUM).clip(rows)
    assert samples is not None
    assert (samples["episode"], samples["kind"]) == (2, "evaluation")
    assert times(samples) == pytest.approx([0.02 * i for i in range(31)], abs=1e-3)


def test_a_long_episode_is_thinned_and_keeps_both_ends() -> None:
    samples = Motion(PENDULUM).clip(episode(5000))
    assert len(times(samples)) <= 400
    assert (times(samples)[0], times(samples)[-1]) == (0.0, 100.0)


def test_without_a_complete_episode_there_is_no_clip() -> None:
    assert Motion(PENDULUM).clip(records(50)) is None
    without_start = episode(20)[5:]
    assert Motion(PENDULUM).clip(without_start) is None
    reset_episode = episode(20, kind=Kind.RESET)
    assert reset_episode["flags"][-1] & Flag.NO_ACTION
    assert Motion(PENDULUM).clip(reset_episode) is None


def test_an_episode_that_begins_after_the_last_sample_is_sent_with_the_next_call() -> None:
    rows = records_at_rate(300, 1000)
    rows["flags"] = 0
    rows["flags"][204] = Flag.FIRST  # of samples 200 and 225
    motion = Motion(PENDULUM)
    live_samples = [motion.live(part) for part in (rows[:206], rows[206:210], rows[210:])]
    beginning_times = [
        t
        for s in live_samples
        if s is not None
        for t, is_beginning in zip(times(s), beginnings(s), strict=True)
        if is_beginning
    ]
    assert beginning_times == [pytest.approx(rows["t_mono_ns"][225] / 1e9)]


def test_an_episode_that_begins_between_two_samples_is_sent_with_the_second() -> None:
    rows = records_at_rate(1000, 1000)
    rows["flags"] = 0
    rows["flags"][131] = Flag.FIRST
    samples = Motion(PENDULUM).live(rows)
    assert samples is not None
    beginning_times = [t for t, is_beginning in zip(times(samples), beginnings(samples), strict=True) if is_beginning]
    next_time_s = float(rows["t_mono_ns"][131]) / 1e9
    assert beginning_times == [min(t for t in times(samples) if t >= next_time_s)]
