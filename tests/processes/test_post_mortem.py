"""Post-mortems of runs ended by a fault, whichever process is dead."""

from __future__ import annotations

import csv
import signal
from pathlib import Path

import msgspec
import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from onrig.runtime.supervise.post_mortem import find_post_mortems
from onrig.tools.load import load
from tests.lab.rig.processes import CONTROL, REPLAY
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import UNHURRIED, Run

SLOW = (*UNHURRIED, "device.pace=realtime", "local_learner=false", "task.episode_s=1000", "evaluate_every=0")


@pytest.mark.parametrize(
    "replay_hangs",
    [pytest.param(False, id="replay-alive", marks=pytest.mark.study), pytest.param(True, id="replay-hangs")],
)
def test_a_killed_loop_leaves_its_last_moments_even_if_its_records_are_not_read(
    tmp_path: Path, replay_hangs: bool
) -> None:
    policy = tmp_path / "policy.onnx"
    policy.write_bytes(steady_policy(load("pendulum")))
    with Run(tmp_path / "run", "pendulum", *SLOW, f"policy={policy}") as run:
        control, replay = run.child(CONTROL), run.child(REPLAY)
        run.until(lambda: run.word(Word.TICK) > 10, "the loop to go on")
        if replay_hangs:
            replay.kill(signal.SIGSTOP)
        run.until_ticks(20)
        ticks = run.word(Word.TICK)
        control.kill()
        control.wait()
        if replay_hangs:
            replay.kill()
        assert run.ended() == ExitCode.INTERNAL
        assert run.leftover_paths() == []
    # On a starved machine the lease may have expired before, which leaves its own post-mortem.
    [folder] = [found for found in find_post_mortems(run.folder) if found.name.endswith("-loop_killed")]
    with (folder / "records.csv").open(newline="") as file:
        recorded = [int(row["tick"]) for row in csv.DictReader(file)]
    # The loop may have made another tick before it was killed, whose record lacks the next frame.
    assert recorded == list(range(recorded[0], recorded[-1] + 1))
    assert recorded[-1] >= ticks - 2
    frames = [msgspec.json.decode(line) for line in (folder / "frames.jsonl").read_bytes().splitlines()]
    states = [f["frame"] for f in frames if f["type"] == "state"]
    commands = [f["answers"] for f in frames if f["type"] == "command"]
    assert set(commands) <= set(states)
    assert len(commands) >= len(recorded)
