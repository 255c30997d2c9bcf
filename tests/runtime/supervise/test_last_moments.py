from __future__ import annotations

import csv
import io

import msgspec
import numpy as np
import pytest

from onrig.hw.messages import CommandLayout, MessageType, StateLayout
from onrig.runtime.record import Flag, Kind, Miss, Rule
from onrig.runtime.shm.frame_log import LoggedFrame
from onrig.runtime.supervise.last_moments import flag_names, frames_jsonl, records_csv
from tests.runtime.samples import PENDULUM, records, state

RIG = PENDULUM.rig


def table(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode())))


def lines(data: bytes) -> list[dict[str, object]]:
    return [msgspec.json.decode(line, type=dict[str, object]) for line in data.splitlines()]


def test_records_are_a_table_with_the_rigs_names() -> None:
    rows = records(3, tick=40)
    rows["rule"][1], rows["miss"][2], rows["missed"][2] = Rule.ENVELOPE, Miss.HOST, 2
    rows["flags"][1] = Flag.LATE | Flag.INVALID
    read_back = table(records_csv(rows, RIG))
    assert [row["tick"] for row in read_back] == ["40", "41", "42"]
    assert [row["rule"] for row in read_back] == ["none", "envelope", "none"]
    assert (read_back[2]["miss"], read_back[2]["missed"], read_back[0]["kind"]) == (
        "host",
        "2",
        Kind.TRAIN.name.lower(),
    )
    assert read_back[1]["flags"] == "invalid|late"
    assert {"observation.angle", "sensors.velocity", "applied.voltage", "stage_ns.policy"} <= set(read_back[0])
    assert "crc" not in read_back[0]


def test_values_are_read_back_exactly() -> None:
    rows = records(5)
    rows["observation"] = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    rows["reward"] = np.random.default_rng(2).normal(size=5)
    read_back = table(records_csv(rows, RIG))
    assert np.array_equal(np.array([r["observation.angle"] for r in read_back], np.float32), rows["observation"][:, 0])
    assert [float(r["reward"]) for r in read_back] == rows["reward"].tolist()


def test_a_non_finite_observation_remains_non_finite() -> None:
    rows = records(1)
    rows["policy"] = np.nan
    assert table(records_csv(rows, RIG))[0]["policy.voltage"] == "nan"


@pytest.mark.parametrize(
    ("flags", "words"), [(0, ""), (1, "terminated"), (9, "terminated|first"), (1 | 1 << 14, "terminated|16384")]
)
def test_flags_are_written_as_words(flags: int, words: str) -> None:
    assert flag_names(flags) == words


def test_frames_are_lines_with_their_meaning_and_bytes() -> None:
    sent = CommandLayout(1).encode(7, (-250,))
    received = StateLayout(2, 1).encode(state(8, (5, -6)))
    first, second = lines(frames_jsonl([LoggedFrame(10, sent), LoggedFrame(20, received)], RIG))
    assert (first["from"], first["type"], first["answers"], first["values"]) == ("host", "command", 7, [-250])
    assert (second["from"], second["type"], second["frame"], second["sensors"]) == ("device", "state", 8, [5, -6])
    assert bytes.fromhex(str(second["body"])) == received
    assert [first["t_mono_ns"], second["t_mono_ns"]] == [10, 20]


@pytest.mark.parametrize("body", [bytes([MessageType.STATE, 1, 2]), b"\xee\x01", b""])
def test_an_unknown_frame_is_kept_as_bytes(body: bytes) -> None:
    [line] = lines(frames_jsonl([LoggedFrame(1, body)], RIG))
    assert line["body"] == body.hex()
    assert "frame" not in line
