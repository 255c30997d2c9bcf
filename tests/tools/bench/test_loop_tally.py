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


def timed(n: int, late_us: list[int] | None = None, *, tick: int = 0) -> Records:
    """Records of consecutive frames, received so late each, with a tick of 100 us."""
    rows = records(n, tick=tick, frame=tick + 1)
    rows["t_device_us"] = rows["frame"].astype(np.uint64) * (PERIOD_NS // US)
    late = np.zeros(n, np.int64) if late_us is None else np.array(late_us, np.int64) * US
    rows["t_receive_ns"] = rows["frame"].astype(np.int64) * PERIOD_NS + 10**9 + late
    rows["tick_ns"] = 100 * US
    rows["stage_ns"] = np.arange(1, len(STAGES) + 1) * US
    return rows


def on_time(rows: Records) -> SendTimes:
    """Frames that were sent when they were due, 10 us before a punctual loop has them."""
    due_ns = rows["frame"].astype(np.int64) * PERIOD_NS + 10**9 - 10 * US
    return SendTimes(due_ns, due_ns.copy())


def told(*parts: Records | tuple[Records, SendTimes]) -> Tally:
    tally = Tally(PERIOD_NS)
    for part in parts:
        rows, sent = part if isinstance(part, tuple) else (part, on_time(part))
        tally.add(rows, sent)
    tally.finish()
    return tally


def p(tally: Tally, name: str, q: float = 100) -> float | None:
    return tally.histograms[name].percentile_us(q)


# -- lateness ----------------------------------------------------------------------------------------------------------


def test_a_twin_tells_when_it_sent_each_frame(tmp_path: Path) -> None:
    rows = timed(100)
    sent_ns = rows["t_receive_ns"] - 30 * US
    with closing(TraceWriter(tmp_path)) as writer, closing(TraceReader(tmp_path)) as reader:
        for frame, ns in zip(rows["frame"].tolist(), sent_ns.tolist(), strict=True):
            writer.record(frame, ns - 5 * US, ns)
        found = send_times(rows, reader)
        assert (found.n_unknown, (found.sent_ns == sent_ns).all(), (found.due_ns == sent_ns - 5 * US).all()) == (
            0,
            1,
            1,
        )
        rows["frame"][40:50] += 1 << 14  # not sent yet, or long ago
        rows["lateness_ns"] = 7 * US
        found = send_times(rows, reader)
        assert found.n_unknown == 10
        assert (found.sent_ns[40:50] == rows["t_receive_ns"][40:50] - 7 * US).all()


def test_a_device_at_a_port_is_as_punctual_as_the_loop_makes_out() -> None:
    rows = timed(10)
    rows["lateness_ns"] = np.arange(10) * US
    found = send_times(rows, None)
    assert (rows["t_receive_ns"] - found.sent_ns).tolist() == (np.arange(10) * US).tolist()
    assert found.n_unknown == 0


def test_a_twin_that_pauses_makes_nobody_late_and_its_pauses_are_counted() -> None:
    rows = timed(300)
    stood_ns = np.cumsum(np.isin(np.arange(300), [100, 101, 150]) * [round(1.7 * PERIOD_NS)])
    rows["t_receive_ns"] += stood_ns
    sent = on_time(timed(300))
    tally = told((rows, SendTimes(sent.due_ns + stood_ns, sent.sent_ns + stood_ns)))
    assert (tally.pauses, p(tally, "lateness")) == (3, 10.0)


def test_what_a_twin_sends_late_is_not_the_loop_s_lateness() -> None:
    rows = timed(100, [0] * 60 + [700] + [0] * 39)
    sent = on_time(rows)
    sent.sent_ns[60] += 700 * US
    tally = told((rows, sent))
    assert (p(tally, "lateness"), p(tally, SENT_LATE)) == (10.0, 700.0)


# -- the tally ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_it_does_not_matter_in_which_portions_records_come(sizes: list[int], seed: int) -> None:
    n = sum(sizes)
    rng = np.random.default_rng(seed)
    rows = timed(n, rng.integers(0, 900, n).tolist())
    rows["policy_id"] = np.cumsum(rng.random(n) < 0.05)
    rows["missed"], rows["miss"] = rng.random(n) < 0.1, Miss.HOST
    edges = np.cumsum([0, *sizes])
    whole, portions = told(rows), told(*[rows[a:b] for a, b in pairwise(edges)])
    assert (whole.ticks, whole.swaps, whole.missed_ticks) == (
        portions.ticks,
        portions.swaps,
        portions.missed_ticks,
    )
    assert whole.misses == portions.misses
    for name, histogram in whole.histograms.items():
        assert histogram.summary_us() == portions.histograms[name].summary_us()


def test_every_stage_has_a_histogram_of_its_own() -> None:
    tally = told(timed(50))
    assert [p(tally, name) for name in STAGES] == [float(k) for k in range(1, len(STAGES) + 1)]
    assert p(tally, "tick") == 100.0


def test_an_episode_s_last_record_is_no_tick_but_its_frame_may_be_late() -> None:
    rows = timed(50, [0] * 49 + [700])
    rows["flags"][-1] |= Flag.NO_ACTION
    rows["tick_ns"][-1] = 10**9
    tally = told(rows)
    assert (tally.ticks, p(tally, "tick"), p(tally, "lateness")) == (49, 100.0, 710.0)


def test_intervals_are_told_on_both_clocks_and_not_across_episodes() -> None:
    rows = timed(60, [0] * 30 + [400] + [0] * 29)
    second = timed(60)
    second["episode"] = 2
    second["flags"][0] |= Flag.FIRST
    tally = told(rows, second)
    assert p(tally, DEVICE_CLOCK_ERROR) == pytest.approx(0.001)
    assert p(tally, HOST_CLOCK_ERROR) == 400.0
    assert tally.histograms[HOST_CLOCK_ERROR].count == 118


def test_swaps_in_the_midst_of_an_episode_are_found_with_their_neighbours() -> None:
    rows = timed(200, [0] * 95 + [600] * 5 + [0] * 100)
    rows["policy_id"][100:] = 9
    tally = told(rows)
    assert (tally.swaps, p(tally, "lateness near a swap"), p(tally, "lateness elsewhere")) == (1, 610.0, 10.0)
    assert tally.histograms["tick near a swap"].count == 21


def test_another_policy_in_another_episode_is_no_swap() -> None:
    rows = timed(20)
    rows["policy_id"][10:], rows["episode"][10:] = 9, 2
    assert not is_policy_swap(rows).any()


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 12))
def test_near_is_what_is_at_most_so_many_ticks_away(swapped: list[bool], ticks: int) -> None:
    at = [i for i, s in enumerate(swapped) if s]
    found = is_near_swap(np.array(swapped, np.bool_), ticks)
    assert found.tolist() == [any(abs(i - k) <= ticks for k in at) for i in range(len(swapped))]


def test_a_miss_is_kept_with_the_time_its_frame_was_due_and_the_work_before_it() -> None:
    rows = timed(100)
    rows = np.delete(rows, [50, 51])
    rows["missed"][50], rows["miss"][50] = 2, Miss.PROGRAM
    rows["t_receive_ns"][50] += 300 * US
    rows["tick_ns"][49] = 1500 * US
    rows["stage_ns"][49, STAGES.index("shield")] = 1300 * US
    tally = told(rows)
    [missed] = tally.misses
    assert (missed.frames, missed.cause, missed.tick_before_us) == (2, Miss.PROGRAM, 1500.0)
    assert missed.longest_stage == "shield"
    assert missed.due_ns == 51 * PERIOD_NS + 10**9 - 10 * US
    assert missed.received_ns == 53 * PERIOD_NS + 10**9 + 300 * US
    assert tally.missed_ticks[Miss.PROGRAM] == 2


def test_tallies_of_slices_add_up() -> None:
    a, b = told(timed(100)), told(timed(50, [0] * 49 + [500]))
    a.merge(b)
    assert (a.ticks, p(a, "lateness"), a.histograms["lateness"].count) == (150, 510.0, 150)


# -- stalls ------------------------------------------------------------------------------------------------------------


def sentinel(kind: Kind, *stalls: tuple[int, int], counts: tuple[int, ...] = (), max_ns: int = 0) -> SentinelRecords:
    return SentinelRecords(kind, 0, True, list(counts), max_ns, list(stalls))


def a_miss(due_ns: int = 100 * PERIOD_NS) -> MissedTicks:
    return MissedTicks(1, Miss.HOST, due_ns, due_ns + PERIOD_NS, False, 100.0)


@pytest.mark.parametrize(
    ("due_ns", "woken_ns", "explains"),
    [
        (100 * PERIOD_NS, 100 * PERIOD_NS + 800 * US, True),
        (99 * PERIOD_NS - 10 * US, 99 * PERIOD_NS + 990 * US, True),
        (97 * PERIOD_NS, 98 * PERIOD_NS, False),
        (102 * PERIOD_NS, 103 * PERIOD_NS, False),
        (100 * PERIOD_NS, 100 * PERIOD_NS + 300 * US, False),
    ],
    ids=["within", "ends within", "before", "after", "too short"],
)
def test_a_stall_explains_a_miss_at_its_time_if_it_is_long_enough(due_ns: int, woken_ns: int, explains: bool) -> None:
    stalls = Stalls([sentinel("timer", (due_ns, woken_ns))], PERIOD_NS)
    assert stalls.explain(a_miss()).caused_by_machine is explains


def test_of_several_stalls_the_longest_is_named_and_line_and_machine_are_told_apart() -> None:
    at = 100 * PERIOD_NS
    both = [sentinel("timer", (at, at + 600 * US), (at, at + 900 * US)), sentinel("line", (at, at + 700 * US))]
    explain_misses = Stalls(both, PERIOD_NS).explain(a_miss())
    assert (explain_misses.stall_ms, explain_misses.line_ms, explain_misses.caused_by_line) == (0.9, 0.7, False)
    assert Stalls(both[1:], PERIOD_NS).explain(a_miss()).caused_by_line


def test_the_chance_of_mere_coincidence_grows_with_what_was_seen() -> None:
    quiet = Stalls([], PERIOD_NS)
    noisy = Stalls([sentinel("timer", *[(n * 10**7, n * 10**7 + 600 * US) for n in range(50)])], PERIOD_NS)
    assert quiet.chance_fraction(1.0) == 0.0
    assert noisy.chance_fraction(1.0) == pytest.approx(50 * (600 * US + 2 * PERIOD_NS) / 1e9)
    assert noisy.chance_fraction(0.01) == 1.0


def test_a_sentinel_s_histogram_has_every_wake_up_and_the_latest_exactly() -> None:
    histogram = sentinel("timer", counts=(5, 3, 0, 2), max_ns=MIN_RECORDED_NS + 1).histogram()
    assert histogram.count == 10
    assert histogram.summary_us()["max"] == (MIN_RECORDED_NS + 1) / 1000
    assert sentinel("timer").histogram().count == 0
