"""A device written in Python whose loop, driver or both are killed or stopped, 100 times at random moments.

Each time the motor is released within the time that `onrig check` and the page promise: without the loop, the lease and
a period after the last command; without the driver, its watchdog's time.  A busy machine may also delay the controller,
which is a process here and a chip on a rig, and the driver: the controller's longest pause is allowed for, and one
period for the driver's.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from tests.lab.rig.driven import VICTIMS, driven_run, motor, release_time_s

TIMES: Final = 100
PERIOD_S, LEASE_PERIODS, WATCHDOG_S = 0.02, 4, 0.1
LEASE_S: Final = (LEASE_PERIODS + 1) * PERIOD_S
PROMISED_S: Final = {"loop": LEASE_S, "driver": WATCHDOG_S, "both": WATCHDOG_S}
SETTINGS: Final = ("realtime.priority=50", "device.driver.answer_s=0.5")
SIGNALS: Final = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


@pytest.mark.study
def test_the_motor_is_released_within_the_promised_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(0)
    cases = list(product(VICTIMS, SIGNALS))
    times: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in cases}
    for number in range(TIMES):
        victim, how = cases[number % len(cases)]
        folder = tmp_path / str(number)
        folder.mkdir()
        with motor(folder) as controller, driven_run(folder, controller.port, *SETTINGS) as run:
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(controller.pid, os.SCHED_FIFO, os.sched_param(60))
            run.until_ticks(5)
            time.sleep(draw.random() * 0.5)
            took_s, pause_s = release_time_s(run, controller, VICTIMS[victim], SIGNALS[how])
        times[victim, how].append((took_s, pause_s))
        with capsys.disabled():
            print(f"{number} {victim} {how}: {took_s * 1e3:.1f} ms, pause {pause_s * 1e3:.1f} ms", flush=True)
        assert took_s <= PROMISED_S[victim] + PERIOD_S + pause_s
    with capsys.disabled():
        print("\n| disturbed | times | released after at most (ms) | promised (ms) | controller's longest pause (ms) |")
        print("|---|---|---|---|---|")
        for (victim, how), found in times.items():
            took, pause = max(s for s, _ in found) * 1e3, max(s for _, s in found) * 1e3
            print(f"| {victim} {how} | {len(found)} | {took:.1f} | {PROMISED_S[victim] * 1e3:.0f} | {pause:.1f} |")
