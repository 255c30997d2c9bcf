from __future__ import annotations

import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.tools.cli import main
from onrig.tools.reports.run.tensorboard import write_curves
from tests.tools.reports.run.folders import STARTED_S, write_policy, write_run

pytest.importorskip("tensorboardX")


def events(path: Path) -> Iterator[bytes]:
    """Records of an event file: length, its CRC, data, its CRC (TFRecord)."""
    data = path.read_bytes()
    offset = 0
    while offset < len(data):
        (length,) = struct.unpack_from("<Q", data, offset)
        yield data[offset + 12 : offset + 12 + length]
        offset += 12 + length + 4


def curves(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(step, value, wall time) by tag, of the only event file in a folder."""
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[import-untyped, unused-ignore]

    [path] = folder.glob("events.out.tfevents.*")
    curves_by_tag: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for record in events(path):
        event = Event.FromString(record)
        for value in event.summary.value:
            curves_by_tag[value.tag].append((event.step, value.simple_value, event.wall_time))
    return curves_by_tag


def test_the_curves_are_read_back_by_episode(tmp_path: Path) -> None:
    config = write_run(tmp_path / "a run")
    n_written = write_curves(tmp_path / "a run", config, tmp_path / "tb")
    curves_read = curves(tmp_path / "tb" / "a run")
    assert sum(map(len, curves_read.values())) == n_written
    assert [(s, round(v, 5)) for s, v, _ in curves_read["train/normalized"]] == [
        (k, round(0.1 * k, 5)) for k in range(1, 7)
    ]
    assert [(s, round(v, 5)) for s, v, _ in curves_read["eval/normalized"]] == [
        (k, round(0.12 * k, 5)) for k in range(1, 7)
    ]
    assert [v for _, v, _ in curves_read["train/return"]] == [-100.0 * k for k in range(1, 7)]
    assert {"train/exploration", "train/interventions", "train/missed_ticks"} <= set(curves_read)
    assert [(s, v) for s, v, _ in curves_read["missed/host"]] == [(2, 3.0)]
    assert [(s, v) for s, v, _ in curves_read["interventions/envelope"]] == [(2, 1.0)]


def test_their_times_are_the_runs(tmp_path: Path) -> None:
    config = write_run(tmp_path / "run")
    write_curves(tmp_path / "run", config, tmp_path / "tb")
    times = [t for _, _, t in curves(tmp_path / "tb" / "run")["train/return"]]
    assert times == [STARTED_S + 4.0 * k for k in range(1, 7)], "virtual seconds after the start"


def test_updates_are_those_of_the_acting_policy(tmp_path: Path) -> None:
    config = write_run(tmp_path / "run")
    write_policy(tmp_path / "run", config, updates=40)
    write_curves(tmp_path / "run", config, tmp_path / "tb")
    assert {v for _, v, _ in curves(tmp_path / "tb" / "run")["learner/updates"]} == {40.0}


def test_rewriting_replaces_only_its_own_files(tmp_path: Path) -> None:
    config = write_run(tmp_path / "run")
    other = tmp_path / "tb" / "run" / "notes.txt"
    write_curves(tmp_path / "run", config, tmp_path / "tb")
    other.write_text("mine")
    write_curves(tmp_path / "run", config, tmp_path / "tb")
    assert len(curves(tmp_path / "tb" / "run")["train/return"]) == 6
    assert other.read_text() == "mine"


def test_the_verb_explains_how_to_view_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "tb")]) == 0
    assert f"tensorboard --logdir {tmp_path / 'tb'}" in capsys.readouterr().out
    assert not (tmp_path / "run" / "report.html").exists()


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert main(["report", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "tb")]) == 3
    err = capsys.readouterr().err
    assert err == "onrig report: --tensorboard needs tensorboardX: pip install 'onrig[log]'\n"
    assert not (tmp_path / "tb").exists()
