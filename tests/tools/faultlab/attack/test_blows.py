from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path

from onrig.tools.faultlab.attack.blows import ROLES, Struck, blows


def test_equal_seeds_give_equal_blows_in_order_and_in_time_everybody_is_hit() -> None:
    plan = blows("0 kills 1", 200, stop=False)
    assert plan == blows("0 kills 1", 200, stop=False) != blows("0 kills 2", 200, stop=False)
    assert plan == sorted(plan)
    assert {blow.role for blow in plan} == set(ROLES)
    assert all(0 <= blow.at <= 1 and blow.stops_s is None for blow in plan)


def test_some_are_stopped_for_good_but_none_whom_nobody_watches() -> None:
    for_good = {blow.role for blow in blows("x", 500, stop=True) if blow.stops_s == math.inf}
    assert for_good == {"control", "replay", "learner"}
    short = [blow.stops_s or 0.0 for blow in blows("x", 500, stop=True, longest_s=0.5)]
    assert 0 < min(short) < max(short) == 0.5


def test_a_process_that_was_stopped_goes_on_and_one_that_is_not_there_is_not_hit() -> None:
    (blow,) = blows("y", 1, stop=True, longest_s=0.01)
    struck = Struck()
    assert not struck.strike(blow, lambda role: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            assert struck.strike(blow, lambda role: process.pid)
            while "T" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
                pass
            while "T" in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
                struck.again()
        finally:
            process.send_signal(signal.SIGKILL)
