"""A trainer in real time that is killed, stopped, interrupted or fails, 50 times each at random moments.

In device time the device is safe within the lease and a period after the trainer's last action.  On a busy machine the
loop itself may be late: wall-clock times are printed, not asserted.
"""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from onrig.runtime.log.reading import read_log
from onrig.runtime.record import Flag
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.shm.board import Word
from tests.lab.rig.processes import PATIENCE_S
from tests.processes.test_trainer import Rig, trained

TIMES: Final = 50
LEASE: Final = 5
SETTINGS: Final = (f"rig.lease_periods={LEASE}", "limits.predicted=null", "task.episode_s=1000", "device.pace=realtime")


def periods_to_safety(folder: Path) -> int:
    """Periods from the trainer's last action in the first episode to its last frame, which the safe output answers."""
    config = load_resolved(folder / "config.yaml")
    records = np.concatenate([part for part in read_log(folder, config.rig) if isinstance(part, np.ndarray)])
    first = records[records["episode"] == 1]
    acted = first["tick"][(first["flags"] & (Flag.HELD | Flag.NO_ACTION)) == 0]
    return int(first["tick"][-1] - acted[-1])


def _is_safe(rig: Rig) -> bool:
    return rig.word(Word.SAFE_SINCE_NS) > 0


@pytest.mark.study
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "SIGINT", "raises"])
def test_the_device_is_safe_within_a_lease_and_a_period(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, periods, wall_ms = random.Random(0), [], []
    for number in range(TIMES):
        folder = tmp_path / str(number)
        with trained(folder, how, SETTINGS) as rig:
            time.sleep(draw.random() * 0.1)
            told_ns = time.monotonic_ns()
            if how.startswith("SIG"):
                rig.process.send_signal(signal.Signals[how])
            rig.until(partial(_is_safe, rig), "a frame that shows the safe output")
            if how != "raises":  # it raises after its twentieth step, not on demand
                wall_ms.append((rig.word(Word.SAFE_SINCE_NS) - told_ns) / 1e6)
            if how == "SIGSTOP":
                rig.process.kill()
            rig.process.wait(PATIENCE_S)
            rig.over()
        periods.append(periods_to_safety(folder))
        assert periods[-1] <= LEASE + 1
    with capsys.disabled():
        print(f"\n{how}: at most {max(periods)} periods of device time in {TIMES}", end="")
        if wall_ms:
            print(f"; {np.median(wall_ms):.1f} ms by the clock (median), {max(wall_ms):.1f} at most")
