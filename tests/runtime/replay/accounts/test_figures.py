from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.record import STAGES, Miss, RecordLayout, Rule
from onrig.runtime.replay.accounts.figures import TickEvents, Timing, TimingFile
from tests.runtime.samples import Records, records


def reported_ticks(batches: list[list[tuple[Rule, int, Miss, int]]]) -> list[tuple[int, str, int, str, int]]:
    """Reported ticks, for batches of (rule, missed, cause, fault)."""
    lines: list[tuple[int, str, int, str, int]] = []

    def event(kind: str, **f: object) -> None:
        assert kind == "tick"
        lines.append((f["tick"], f["rule"], f["missed"], f["cause"], f["fault"]))  # type: ignore[arg-type]

    events, tick = TickEvents(event), 0
    for batch in batches:
        records = np.zeros(len(batch), RecordLayout(2, 2, 1).dtype)
        for record, (rule, n_missed, cause, fault) in zip(records, batch, strict=True):
            record["tick"], record["rule"], record["missed"] = tick, rule, n_missed
            record["miss"], record["fault"] = cause, fault
            tick += 1
        events.add(records)
    return lines


NO_EVENT = (Rule.NONE, 0, Miss.NONE, 0)
ENVELOPE = (Rule.ENVELOPE, 0, Miss.NONE, 0)
FALLBACK = (Rule.FALLBACK, 0, Miss.NONE, 0)


def test_a_rule_is_reported_when_it_begins_and_not_while_it_continues() -> None:
    assert reported_ticks([[NO_EVENT, ENVELOPE, ENVELOPE, FALLBACK], [FALLBACK, NO_EVENT, ENVELOPE]]) == [
        (1, "envelope", 0, "none", 0),
        (6, "envelope", 0, "none", 0),
    ]


def test_a_rule_that_continues_across_batches_is_reported_once() -> None:
    assert reported_ticks([[ENVELOPE], [ENVELOPE]]) == [(0, "envelope", 0, "none", 0)]


def test_missed_ticks_and_faults_are_all_reported() -> None:
    n_missed, fault_tick = (Rule.NONE, 2, Miss.HOST, 0), (Rule.FALLBACK, 0, Miss.NONE, 1)
    assert reported_ticks([[n_missed, NO_EVENT, n_missed, fault_tick]]) == [
        (0, "none", 2, "host", 0),
        (2, "none", 2, "host", 0),
        (3, "fallback", 0, "none", 1),
    ]


def timed_records(n: int, tick_ns: int) -> Records:
    rows = records(n)
    rows["tick_ns"], rows["lateness_ns"] = tick_ns, 50
    rows["stage_ns"] = np.arange(1, len(STAGES) + 1) * 1000
    return rows


def read_timing(path: Path) -> Timing:
    return msgspec.json.decode(path.read_bytes(), type=Timing)


def bin_index(duration_ns: int) -> int:
    return int(np.floor(8 * np.log2(duration_ns)))


@pytest.mark.parametrize("n_pieces", [1, 7, 300])
def test_every_tick_is_counted_in_its_place_whatever_the_batching(tmp_path: Path, n_pieces: int) -> None:
    file = TimingFile(tmp_path / "timing.json", lockstep=False)
    rows = np.concatenate([timed_records(900, 100_000), timed_records(100, 3_000_000)])
    for part in np.array_split(rows, n_pieces):
        file.add(part)
    file.write()
    histograms = read_timing(tmp_path / "timing.json").histograms
    tick = histograms["tick"]
    assert (tick.first, tick.counts[0], tick.counts[-1]) == (bin_index(100_000), 900, 100)
    assert tick.first + len(tick.counts) - 1 == bin_index(3_000_000)
    for i, stage in enumerate(STAGES):
        assert (histograms[stage].first, histograms[stage].counts) == (bin_index(1000 * (i + 1)), (1000,))
    assert histograms["lateness"].counts == (1000,)


def test_in_lockstep_nothing_is_late(tmp_path: Path) -> None:
    file = TimingFile(tmp_path / "timing.json", lockstep=True)
    file.add(timed_records(3, 1000))
    file.write()
    assert "lateness" not in read_timing(tmp_path / "timing.json").histograms


def test_a_record_that_closes_an_episode_has_no_stages_to_count(tmp_path: Path) -> None:
    file = TimingFile(tmp_path / "timing.json", lockstep=True)
    rows = timed_records(3, 1000)
    rows["stage_ns"][-1] = 0
    file.add(rows)
    file.write()
    assert sum(read_timing(tmp_path / "timing.json").histograms["policy"].counts) == 2


@pytest.mark.parametrize(("left", "ticks"), [(slice(None), 7), (slice(0, -9), 4)])
def test_a_resumed_run_adds_to_the_existing_figures_unless_they_are_damaged(
    left: slice, ticks: int, tmp_path: Path
) -> None:
    path = tmp_path / "timing.json"
    for count in (3, 4):
        file = TimingFile(path, lockstep=True)
        file.add(timed_records(count, 1000))
        file.write()
        if count == 3:
            path.write_bytes(path.read_bytes()[left])
    assert sum(read_timing(path).histograms["tick"].counts) == ticks


def test_a_run_without_a_tick_has_no_figures(tmp_path: Path) -> None:
    TimingFile(tmp_path / "timing.json", lockstep=False).write()
    assert read_timing(tmp_path / "timing.json").histograms == {}
