from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.record import STAGES
from onrig.runtime.replay.accounts.timing import Timing, TimingFile
from tests.runtime.samples import Records, records


def timed(n: int, tick_ns: int) -> Records:
    rows = records(n)
    rows["tick_ns"], rows["lateness_ns"] = tick_ns, 50
    rows["stage_ns"] = np.arange(1, len(STAGES) + 1) * 1000
    return rows


def read(path: Path) -> Timing:
    return msgspec.json.decode(path.read_bytes(), type=Timing)


def bin_of(duration_ns: int) -> int:
    return int(np.floor(8 * np.log2(duration_ns)))


@pytest.mark.parametrize("pieces", [1, 7, 300])
def test_every_tick_is_counted_where_it_belongs_however_it_came(tmp_path: Path, pieces: int) -> None:
    file = TimingFile(tmp_path / "timing.json", lockstep=False)
    rows = np.concatenate([timed(900, 100_000), timed(100, 3_000_000)])
    for part in np.array_split(rows, pieces):
        file.add(part)
    file.write()
    histograms = read(tmp_path / "timing.json").histograms
    tick = histograms["tick"]
    assert (tick.first, tick.counts[0], tick.counts[-1]) == (bin_of(100_000), 900, 100)
    assert tick.first + len(tick.counts) - 1 == bin_of(3_000_000)
    for i, stage in enumerate(STAGES):
        assert (histograms[stage].first, histograms[stage].counts) == (bin_of(1000 * (i + 1)), (1000,))
    assert histograms["lateness"].counts == (1000,)


def test_in_lockstep_nothing_is_late(tmp_path: Path) -> None:
    file = TimingFile(tmp_path / "timing.json", lockstep=True)
    file.add(timed(3, 1000))
    file.write()
    assert "lateness" not in read(tmp_path / "timing.json").histograms


def test_a_record_that_closes_an_episode_has_no_stages_to_count(tmp_path: Path) -> None:
    file = TimingFile(tmp_path / "timing.json", lockstep=True)
    rows = timed(3, 1000)
    rows["stage_ns"][-1] = 0
    file.add(rows)
    file.write()
    assert sum(read(tmp_path / "timing.json").histograms["policy"].counts) == 2


def test_a_run_without_a_tick_has_none(tmp_path: Path) -> None:
    TimingFile(tmp_path / "timing.json", lockstep=False).write()
    assert read(tmp_path / "timing.json").histograms == {}
