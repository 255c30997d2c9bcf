from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from learner.settings import LearnerSettings, settings_problems

SOUND = LearnerSettings(updates_per_episode=100)


@pytest.mark.parametrize(
    ("changes", "lockstep", "places"),
    [
        ({}, True, []),
        ({}, False, []),
        ({"updates_per_episode": None}, False, [""]),
        ({"updates_per_transition": 1.0}, False, [""]),
        ({"updates_per_episode": None, "updates_per_transition": 0.5}, False, []),
        ({"updates_per_episode": None, "updates_per_transition": 0.5}, True, ["updates_per_transition"]),
        ({"updates_per_episode": None, "updates_per_transition": 0.0}, False, ["updates_per_transition"]),
        ({"updates_per_episode": None, "updates_per_transition": 101.0}, False, ["updates_per_transition"]),
        ({"updates_per_episode": 0}, True, ["updates_per_episode"]),
        ({"threads": 0, "backlog": 0}, True, ["threads", "backlog"]),
    ],
)
def test_what_does_not_fit_together_is_told_at_its_place(
    changes: dict[str, object], lockstep: bool, places: list[str]
) -> None:
    problems = settings_problems(msgspec.structs.replace(SOUND, **changes), lockstep=lockstep)
    assert [at for at, _ in problems] == places


def test_the_settings_can_be_read_without_torch() -> None:
    code = "import sys, learner.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
