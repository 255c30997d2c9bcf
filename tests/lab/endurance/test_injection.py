from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path

from tests.lab.endurance.injection import Hits
from tests.lab.endurance.schedule import ROLES, hits


def test_hits_depend_only_on_the_seed_and_cover_all_roles() -> None:
    plan = hits("0 kills 1", 200, stop=False)
    assert plan == hits("0 kills 1", 200, stop=False) != hits("0 kills 2", 200, stop=False)
    assert plan == sorted(plan)
    assert {hit.role for hit in plan} == set(ROLES)
    assert all(0 <= hit.at <= 1 and hit.stop_s is None for hit in plan)


def test_only_watched_processes_are_stopped_permanently() -> None:
    permanent = {hit.role for hit in hits("x", 500, stop=True) if hit.stop_s == math.inf}
    assert permanent == {"control", "replay", "learner"}
    short = [hit.stop_s or 0.0 for hit in hits("x", 500, stop=True, max_stop_s=0.5)]
    assert 0 < min(short) < max(short) == 0.5


def test_stopped_processes_continue_and_missing_ones_are_not_hit() -> None:
    (hit,) = hits("y", 1, stop=True, max_stop_s=0.01)
    injected = Hits()
    assert not injected.apply(hit, lambda role: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            assert injected.apply(hit, lambda role: process.pid)
            while "T" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
                pass
            while "T" in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
                injected.resume_stopped()
        finally:
            process.send_signal(signal.SIGKILL)
