from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path

from tests.lab.endurance.injection import Hits
from tests.lab.endurance.schedule import ROLES, hits


def test_equal_seeds_give_equal_hits_in_order_and_in_time_everybody_is_hit() -> None:
    plan = hits("0 kills 1", 200, stop=False)
    assert plan == hits("0 kills 1", 200, stop=False) != hits("0 kills 2", 200, stop=False)
    assert plan == sorted(plan)
    assert {hit.role for hit in plan} == set(ROLES)
    assert all(0 <= hit.at <= 1 and hit.stops_s is None for hit in plan)


def test_some_are_stopped_for_good_but_none_whom_nobody_watches() -> None:
    for_good = {hit.role for hit in hits("x", 500, stop=True) if hit.stops_s == math.inf}
    assert for_good == {"control", "replay", "learner"}
    short = [hit.stops_s or 0.0 for hit in hits("x", 500, stop=True, longest_s=0.5)]
    assert 0 < min(short) < max(short) == 0.5


def test_a_process_that_was_stopped_goes_on_and_one_that_is_not_there_is_not_hit() -> None:
    (hit,) = hits("y", 1, stop=True, longest_s=0.01)
    going = Hits()
    assert not going.land(hit, lambda role: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            assert going.land(hit, lambda role: process.pid)
            while "T" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
                pass
            while "T" in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
                going.again()
        finally:
            process.send_signal(signal.SIGKILL)
