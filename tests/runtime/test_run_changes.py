"""Settings that a resumed run may change, and those that it may only make stricter."""

from __future__ import annotations

import pytest

from onrig.runtime.run_changes import changes
from onrig.tools.load import load

RUN = load("pendulum")


def difference(*overrides: str, reverse: bool = False) -> tuple[list[str], list[str]]:
    """Paths refused and permitted between the shipped pendulum and the same with ``overrides``."""
    changed = load("pendulum", overrides)
    found = changes(*((changed, RUN) if reverse else (RUN, changed)))
    return [".".join(map(str, d.path)) for d in found.refused], [".".join(map(str, d.path)) for d in found.permitted]


def test_the_same_configuration_has_no_difference() -> None:
    assert difference() == ([], [])


@pytest.mark.parametrize(
    "setting",
    [
        "episodes=900",
        "evaluate_every=7",
        "checkpoint_s=9",
        "supervision.fade_s=0.5",
        "link.listen=tcp://127.0.0.1:5555",
        "log.decimation=2",
        "learner.threads=2",
        "realtime.priority=3",
    ],
)
def test_what_affects_nothing_learned_may_change_both_ways(setting: str) -> None:
    path = setting.split("=")[0]
    extra = ["link.allow_plain_loopback=true"] if path == "link.listen" else []
    for reverse in (False, True):
        refused, permitted = difference(setting, *extra, reverse=reverse)
        assert refused == []
        assert path in permitted


@pytest.mark.parametrize(
    "setting",
    ["seed=3", "rate_hz=40", "rig.lease_periods=4", "task.episode_s=5", "learner.updates_per_episode=7"],
)
def test_what_a_memory_or_a_policy_was_made_under_may_not(setting: str) -> None:
    refused, permitted = difference(setting)
    assert refused == [setting.split("=")[0]]
    assert permitted == []


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("limits.range={motor: [-2.5, 2.5]}", "limits.range.motor"),
        ("limits.rate_per_s={motor: 50.0}", "limits.rate_per_s.motor"),
        ("limits.jerk_per_s2={motor: 5000.0}", "limits.jerk_per_s2.motor"),
        ("limits.envelope.velocity.high=14.0", "limits.envelope.velocity"),
        ("limits.envelope.velocity.release=0.5", "limits.envelope.velocity"),
    ],
)
def test_limits_may_only_become_stricter(setting: str, path: str) -> None:
    setting = setting.replace("motor", RUN.rig.actuators[0].name)
    path = path.replace("motor", RUN.rig.actuators[0].name)
    alone = "limits.predicted=null"  # which would have to be recomputed
    stricter, base = load("pendulum", [setting, alone]), load("pendulum", [alone])
    forth, back = changes(base, stricter), changes(stricter, base)
    assert [".".join(map(str, d.path)) for d in forth.permitted] == [path]
    assert forth.refused == []
    assert [".".join(map(str, d.path)) for d in back.refused] == [path]
    assert "may only become stricter" in str(back.refused[0])


def test_a_prediction_may_be_added_but_neither_changed_nor_removed() -> None:
    refused, permitted = difference("limits.predicted=null", reverse=True)
    assert (refused, permitted) == ([], ["limits.predicted"])
    refused, permitted = difference("limits.predicted=null")
    assert (refused, permitted) == (["limits.predicted"], [])
