from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.record import STAGES, Flag, Miss
from onrig.sim.twin.pacing import TraceReader, TraceWriter
from onrig.tools.bench.loop.sentinel import MIN_RECORDED_NS, Kind, SentinelRecords
from onrig.tools.bench.loop.tally import (
    DEVICE_CLOCK_ERROR,
    HOST_CLOCK_ERROR,
    SENT_LATE,
    MissedTicks,
    SendTimes,
    Stalls,
    Tally,
    is_near_swap,
    is_policy_swap,
    send_times,
)
from tests.runtime.samples import Records, records

PERIOD_NS = 2_000_000
US = 1000


def timed_records(n: int, late_us: list[int] | None = None, *, tick: int = 0) -> Records:
    """Records of consecutive frames with these lateness values, each with a tick of 100 us."""
    rows = records(n, tick=tick, frame=tick + 1)
    rows["t_device_us"] = rows["frame"].astype(np.uint64) * (PERIOD_NS // US)
    lateness_ns = np.zeros(n, np.int64) if late_us is None else np.array(late_us, np.int64) * US
    rows["t_receive_ns"] = rows["frame"].astype(np.int64) * PERIOD_NS + 10**9 + lateness_ns
    rows["tick_ns"] = 100 * US
    rows["stage_ns"] = np.arange(1, len(STAGES) + 1) * US
    return rows


def on_time_sends(rows: Records) -> SendTimes:
    """Frames that were sent when due, 10 us before a punctual loop receives them."""
    due_ns = rows["frame"].astype(np.int64) * PERIOD_NS + 10**9 - 10 * US
    return SendTimes(due_ns, due_ns.copy())


def tally_of(*parts: Records | tuple[Records, SendTimes]) -> Tally:
    tally = Tally(PERIOD_NS)
    for part in parts:
        rows, sent = part if isinstance(part, tuple) else (part, on_time_sends(part))
        tally.add(rows, sent)
    tally.finish()
    return tally


def p(tally: Tally, name: str, q: float = 100) -> float | None:
    return tally.histograms[name].percentile_us(q)


# -- lateness ----------------------------------------------------------------------------------------------------------


def test_a_twin_reports_when_it_sent_each_frame(tmp_path: Path) -> None:
    rows = timed_records(100)
    sent_ns = rows["t_receive_ns"] - 30 * US
    with closing(TraceWriter(tmp_path)) as writer, closing(TraceReader(tmp_path)) as reader:
        for frame, sent_ns_of_frame in zip(rows["frame"].tolist(), sent_ns.tolist(), strict=True):
            writer.record(frame, sent_ns_of_frame - 5 * US, sent_ns_of_frame)
        sends = send_times(rows, reader)
        assert (sends.n_unknown, (sends.sent_ns == sent_ns).all(), (sends.due_ns == sent_ns - 5 * US).all()) == (
            0,
            1,
            1,
        )
        rows["frame"][40:50] += 1 << 14  # not sent yet, or long ago
        rows["lateness_ns"] = 7 * US
        sends = send_times(rows, reader)
        assert sends.n_unknown == 10
        assert (sends.sent_ns[40:50] == rows["t_receive_ns"][40:50] - 7 * US).all()


def test_a_device_on_a_port_is_as_punctual_as_the_loop_observes() -> None:
    rows = timed_records(10)
    rows["lateness_ns"] = np.arange(10) * US
    sends = send_times(rows, None)
    assert (rows["t_receive_ns"] - sends.sent_ns).tolist() == (np.arange(10) * US).tolist()
    assert sends.n_unknown == 0


def test_a_pausing_twin_causes_no_lateness_and_its_pauses_are_counted() -> None:
    rows = timed_records(300)
    paused_ns = np.cumsum(np.isin(np.arange(300), [100, 101, 150]) * [round(1.7 * PERIOD_NS)])
    rows["t_receive_ns"] += paused_ns
    sent = on_time_sends(timed_records(300))
    tally = tally_of((rows, SendTimes(sent.due_ns + paused_ns, sent.sent_ns + paused_ns)))
    assert (tally.pauses, p(tally, "lateness")) == (3, 10.0)


def test_frames_sent_late_by_a_twin_do_not_count_as_lateness_of_the_loop() -> None:
    rows = timed_records(100, [0] * 60 + [700] + [0] * 39)
    sent = on_time_sends(rows)
    sent.sent_ns[60] += 700 * US
    tally = tally_of((rows, sent))
    assert (p(tally, "lateness"), p(tally, SENT_LATE)) == (10.0, 700.0)


# -- the tally ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_the_batching_of_records_does_not_matter(sizes: list[int], seed: int) -> None:
    n = sum(sizes)
    rng = np.random.default_rng(seed)
    rows = timed_records(n, rng.integers(0, 900, n).tolist())
    rows["policy_id"] = np.cumsum(rng.random(n) < 0.05)
    rows["missed"], rows["miss"] = rng.random(n) < 0.1, Miss.HOST
    edges = np.cumsum([0, *sizes])
    at_once, in_portions = tally_of(rows), tally_of(*[rows[a:b] for a, b in pairwise(edges)])
    assert (at_once.ticks, at_once.swaps, at_once.missed_ticks) == (
        in_portions.ticks,
        in_portions.swaps,
        in_portions.missed_ticks,
    )
    assert at_once.misses == in_portions.misses
    for name, histogram in at_once.histograms.items():
        assert histogram.summary_us() == in_portions.histograms[name].summary_us()


def test_every_stage_has_its_own_histogram() -> None:
    tally = tally_of(timed_records(50))
    assert [p(tally, name) for name in STAGES] == [float(k) for k in range(1, len(STAGES) + 1)]
    assert p(tally, "tick") == 100.0


def test_the_last_record_of_an_episode_is_not_a_tick_but_its_frame_may_be_late() -> None:
    rows = timed_records(50, [0] * 49 + [700])
    rows["flags"][-1] |= Flag.NO_ACTION
    rows["tick_ns"][-1] = 10**9
    tally = tally_of(rows)
    assert (tally.ticks, p(tally, "tick"), p(tally, "lateness")) == (49, 100.0, 710.0)


def test_intervals_are_reported_on_both_clocks_and_not_across_episodes() -> None:
    rows = timed_records(60, [0] * 30 + [400] + [0] * 29)
    second_rows = timed_records(60)
    second_rows["episode"] = 2
    second_rows["flags"][0] |= Flag.FIRST
    tally = tally_of(rows, second_rows)
    assert p(tally, DEVICE_CLOCK_ERROR) == pytest.approx(0.001)
    assert p(tally, HOST_CLOCK_ERROR) == 400.0
    assert tally.histograms[HOST_CLOCK_ERROR].count == 118


def test_swaps_within_an_episode_are_found_with_their_neighbours() -> None:
    rows = timed_records(200, [0] * 95 + [600] * 5 + [0] * 100)
    rows["policy_id"][100:] = 9
    tally = tally_of(rows)
    assert (tally.swaps, p(tally, "lateness near a swap"), p(tally, "lateness elsewhere")) == (1, 610.0, 10.0)
    assert tally.histograms["tick near a swap"].count == 21


def test_another_policy_in_another_episode_is_not_a_swap() -> None:
    rows = timed_records(20)
    rows["policy_id"][10:], rows["episode"][10:] = 9, 2
    assert not is_policy_swap(rows).any()


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 12))
def test_nearby_ticks_are_at_most_a_given_number_away(has_swap: list[bool], ticks: int) -> None:
    swap_indices = [i for i, s in enumerate(has_swap) if s]
    is_near = is_near_swap(np.array(has_swap, np.bool_), ticks)
    assert is_near.tolist() == [any(abs(i - k) <= ticks for k in swap_indices) for i in range(len(has_swap))]


def test_a_miss_is_stored_with_the_due_time_of_its_frame_and_the_preceding_work() -> None:
    rows = timed_records(100)
    rows = np.delete(rows, [50, 51])
    rows["missed"][50], rows["miss"][50] = 2, Miss.PROGRAM
    rows["t_receive_ns"][50] += 300 * US
    rows["tick_ns"][49] = 1500 * US
    rows["stage_ns"][49, STAGES.index("shield")] = 1300 * US
    tally = tally_of(rows)
    [miss] = tally.misses
    assert (miss.frames, miss.cause, miss.tick_before_us) == (2, Miss.PROGRAM, 1500.0)
    assert miss.longest_stage == "shield"
    assert miss.due_ns == 51 * PERIOD_NS + 10**9 - 10 * US
    assert miss.received_ns == 53 * PERIOD_NS + 10**9 + 300 * US
    assert tally.missed_ticks[Miss.PROGRAM] == 2


def test_tallies_of_slices_add_up() -> None:
    a, b = tally_of(timed_records(100)), tally_of(timed_records(50, [0] * 49 + [500]))
    a.merge(b)
    assert (a.ticks, p(a, "lateness"), a.histograms["lateness"].count) == (150, 510.0, 150)


# -- stalls ------------------------------------------------------------------------------------------------------------


def sentinel(kind: Kind, *stalls: tuple[int, int], counts: tuple[int, ...] = (), max_ns: int = 0) -> SentinelRecords:
    return SentinelRecords(kind, 0, True, list(counts), max_ns, list(stalls))


def make_miss(due_ns: int = 100 * PERIOD_NS) -> MissedTicks:
    return MissedTicks(1, Miss.HOST, due_ns, due_ns + PERIOD_NS, False, 100.0)


@pytest.mark.parametrize(
    ("due_ns", "woken_ns", "is_explained"),
    [
        (100 * PERIOD_NS, 100 * PERIOD_NS + 800 * US, True),
        (99 * PERIOD_NS - 10 * US, 99 * PERIOD_NS + 990 * US, True),
        (97 * PERIOD_NS, 98 * PERIOD_NS, False),
        (102 * PERIOD_NS, 103 * PERIOD_NS, False),
        (100 * PERIOD_NS, 100 * PERIOD_NS + 300 * US, False),
    ],
    ids=["within", "ends within", "before", "after", "too short"],
)
def test_a_simultaneous_stall_explains_a_miss_if_it_is_long_enough(
    due_ns: int, woken_ns: int, is_explained: bool
) -> None:
    stalls = Stalls([sentinel("timer", (due_ns, woken_ns))], PERIOD_NS)
    assert stalls.explain(make_miss()).caused_by_machine is is_explained


def test_of_several_stalls_the_longest_is_named_and_line_and_machine_are_distinguished() -> None:
    start_ns = 100 * PERIOD_NS
    sentinels = [
        sentinel("timer", (start_ns, start_ns + 600 * US), (start_ns, start_ns + 900 * US)),
        sentinel("line", (start_ns, start_ns + 700 * US)),
    ]
    explanation = Stalls(sentinels, PERIOD_NS).explain(make_miss())
    assert (explanation.stall_ms, explanation.line_ms, explanation.caused_by_line) == (0.9, 0.7, False)
    assert Stalls(sentinels[1:], PERIOD_NS).explain(make_miss()).caused_by_line


def test_the_chance_of_coincidence_grows_with_the_number_of_stalls() -> None:
    quiet = Stalls([], PERIOD_NS)
    noisy_stalls = Stalls([sentinel("timer", *[(n * 10**7, n * 10**7 + 600 * US) for n in range(50)])], PERIOD_NS)
    assert quiet.chance_fraction(1.0) == 0.0
    assert noisy_stalls.chance_fraction(1.0) == pytest.approx(50 * (600 * US + 2 * PERIOD_NS) / 1e9)
    assert noisy_stalls.chance_fraction(0.01) == 1.0


def test_a_sentinels_histogram_has_every_wake_up_and_the_latest_exactly() -> None:
    histogram = sentinel("timer", counts=(5, 3, 0, 2), max_ns=MIN_RECORDED_NS + 1).histogram()
    assert histogram.count == 10
    assert histogram.summary_us()["max"] == (MIN_RECORDED_NS + 1) / 1000
    assert sentinel("timer").histogram().count == 0
