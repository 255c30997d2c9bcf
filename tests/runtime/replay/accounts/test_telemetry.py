from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.histogram import BINS_PER_OCTAVE, N_COARSE_BINS, coarse_counts, coarse_edges_us
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.storage import Storage
from onrig.runtime.record import Flag, Miss, RecordLayout, Rule
from onrig.runtime.replay.accounts.telemetry import TdErrorSample, open_telemetry
from onrig.runtime.shm.board import Word
from onrig.runtime.shm.view_segment import SAMPLE_POINTS
from onrig.runtime.view.reader import ViewReader
from tests.runtime.samples import PENDULUM, records
from tests.runtime.view.live import LiveRun

REALTIME = msgspec.structs.replace(PENDULUM, device=msgspec.structs.replace(PENDULUM.device, pace="realtime"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LiveRun]:
    with LiveRun(tmp_path / "run", tmp_path / "shm", REALTIME) as live_run:
        yield live_run


@pytest.fixture
def view(run: LiveRun) -> Iterator[ViewReader]:
    with ViewReader.attach(run.running) as reader:
        yield reader


def test_viewers_see_the_newest_records_first_and_then_only_new_ones(run: LiveRun, view: ViewReader) -> None:
    rows = records(30)
    run.push(rows)
    cursor, newest_records = view.records(0, 10)
    assert newest_records["tick"].tolist() == list(range(20, 30))
    np.testing.assert_array_equal(newest_records["observation"], rows["observation"][20:])
    assert len(view.records(cursor, 10)[1]) == 0
    run.push(records(3, tick=30))
    assert view.records(cursor, 10)[1]["tick"].tolist() == [30, 31, 32]


def test_the_figures_count_what_the_records_hold(run: LiveRun, view: ViewReader) -> None:
    rows = records(20)
    rows["missed"][4], rows["miss"][4] = 3, Miss.HOST
    rows["rule"][7:9] = Rule.PREDICTED
    rows["fault"][9] = 2
    rows["flags"][10] = Flag.LATE
    rows["tick_ns"], rows["lateness_ns"] = 2000, 0
    rows["lateness_ns"][3] = 50_000
    run.push(rows)
    assert view.figures() is None
    run.telemetry.poll(10.0)
    figures = view.figures()
    assert figures is not None
    assert (figures.ticks, figures.missed, figures.faults, figures.late_commands) == (20, (0, 0, 0, 3), 1, 1)
    assert (figures.rules[Rule.NONE], figures.rules[Rule.PREDICTED]) == (18, 2)
    assert (figures.episode, figures.updates, figures.score_last20) == (3, 500, 0.5)
    assert (figures.tick.max_ns, figures.lateness.max_ns) == (2000, 50_000)
    assert figures.tick.percentile_us(50) == pytest.approx(2.0, rel=0.1)
    assert figures.t_mono_ns == 10_000_000_000


def test_in_lockstep_nothing_is_late(tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", tmp_path / "shm") as run, ViewReader.attach(run.running) as view:
        rows = records(5)
        rows["lateness_ns"] = 1000
        run.push(rows)
        run.telemetry.poll(1.0)
        figures = view.figures()
        assert figures is not None
        assert figures.lateness.percentile_us(99) is None


def test_figures_are_sent_at_most_four_times_a_second(run: LiveRun, view: ViewReader) -> None:
    run.telemetry.poll(10.0)
    run.push(records(5))
    run.telemetry.poll(10.2)
    figures_before = view.figures()
    run.telemetry.poll(10.25)
    figures_after = view.figures()
    assert figures_before is not None
    assert figures_after is not None
    assert (figures_before.ticks, figures_after.ticks) == (0, 5)


def test_a_replay_process_that_takes_over_continues_the_counts(run: LiveRun, view: ViewReader) -> None:
    run.push(records(5))
    run.telemetry.close()
    run.telemetry = run.make_telemetry()
    run.push(records(4, tick=5))
    run.telemetry.poll(1e6)
    figures = view.figures()
    assert figures is not None
    assert figures.ticks == 9


def test_the_memory_is_sampled_only_while_there_are_viewers(run: LiveRun, view: ViewReader) -> None:
    run.insert_random(50, np.random.default_rng(0))
    now = time.monotonic() + 10.0
    run.telemetry.poll(now)
    assert view.sample() is None
    view.keep_sampling()
    run.telemetry.poll(time.monotonic())
    sample = view.sample()
    assert sample is not None
    np.testing.assert_array_equal(sample["observation"], run.memory.storage.observation[:50])
    np.testing.assert_array_equal(sample["action"], run.memory.storage.action[:50])
    assert sample["number"].tolist() == list(range(1, 51))
    assert sample["policy_id"].tolist() == [7] * 50
    assert np.isnan(sample["abs_td"]).all()


def test_a_sample_reports_td_errors_only_of_experiences_still_stored(run: LiveRun, view: ViewReader) -> None:
    run.insert_random(10, np.random.default_rng(0))
    storage = run.memory.storage
    slots = np.array([2, 3, 3])
    run.memory.take_feedback(Signal.TD_ERROR, slots, storage.generation(slots), np.array([0.5, 1.0, 2.0], np.float32))
    storage.insert(2, storage.observation[0], storage.action[0], 0.0, storage.observation[0])
    view.keep_sampling()
    run.telemetry.poll(time.monotonic())
    sample = view.sample()
    assert sample is not None
    assert np.isnan(sample["abs_td"][2]), "the slot holds another experience now"
    assert sample["abs_td"][3] == 2.0


def test_words_of_the_board_are_included(run: LiveRun, view: ViewReader) -> None:
    run.board[Word.EPISODE] = 12
    assert view.word(Word.EPISODE) == 12


@settings(max_examples=25)
@given(n_stored=st.integers(0, 200_000))
def test_a_sample_is_bounded_and_spread_over_the_complete_memory(n_stored: int) -> None:
    slots = TdErrorSample().select_slots(n_stored)
    assert len(slots) <= SAMPLE_POINTS
    assert len(slots) >= min(n_stored, SAMPLE_POINTS // 3)
    if n_stored:
        assert slots[0] == 0
        assert n_stored - slots[-1] <= slots[1] - slots[0] if len(slots) > 1 else n_stored == 1


@settings(max_examples=25)
@given(n_first=st.integers(1, 20_000), n_more=st.integers(0, 100_000), seed=st.integers(0, 9))
def test_errors_remain_with_their_slots_when_the_memory_grows(n_first: int, n_more: int, seed: int) -> None:
    sample = TdErrorSample()
    slots = sample.select_slots(n_first)
    errors = np.random.default_rng(seed).random(len(slots)).astype(np.float32)
    sample.record(slots, np.ones(len(slots), np.uint32), errors)
    expected = dict(zip(slots.tolist(), errors.tolist(), strict=True))
    later_slots = sample.select_slots(n_first + n_more)
    sampled_td = sample.sampled_abs_td(np.ones(len(later_slots), np.uint32)).tolist()
    for slot, value in zip(later_slots.tolist(), sampled_td, strict=True):
        if slot in expected:
            assert value == expected[slot]
        else:
            assert np.isnan(value)


@settings(max_examples=50)
@given(duration=st.integers(1, 10**12))
def test_a_duration_lies_between_the_edges_of_its_bin(duration: int) -> None:
    (bin_index,) = np.flatnonzero(coarse_counts(np.array([duration]))).tolist()
    edges = coarse_edges_us() * 1000
    assert edges[bin_index] * 0.999 <= duration <= edges[bin_index + 1] * 1.001 or bin_index == N_COARSE_BINS - 1
    assert len(edges) == N_COARSE_BINS + 1
    assert edges[BINS_PER_OCTAVE] == 2.0


def test_without_a_segment_there_is_no_telemetry(tmp_path: Path) -> None:
    layout, storage = RecordLayout(2, 2, 1), Storage(8, Layout(2, 1))
    assert open_telemetry(tmp_path, layout, storage, lambda: pytest.fail("asked"), lockstep=True) is None
