"""Settings that a resumed run may change, and those that it may only make stricter."""

from __future__ import annotations

import pytest

from onrig.runtime.run_changes import compare_configs
from onrig.tools.load import load

BASE = load("pendulum")


def changed_paths(*overrides: str, reversed_order: bool = False) -> tuple[list[str], list[str]]:
    """Refused and permitted paths between the shipped pendulum and the same with ``overrides``."""
    changed_config = load("pendulum", overrides)
    changes = compare_configs(*((changed_config, BASE) if reversed_order else (BASE, changed_config)))
    return [".".join(map(str, d.path)) for d in changes.refused], [
        ".".join(map(str, d.path)) for d in changes.permitted
    ]


def test_the_same_configuration_has_no_difference() -> None:
    assert changed_paths() == ([], [])


@pytest.mark.parametrize(
    "setting",
    [
        "episodes=900",
        "evaluate_every=0",
        "checkpoint_s=1",
        "barrier_timeout_s=9",
        "local_learner=false",
        "realtime.priority=0",
        "supervision.fade_s=1",
        "log.decimation=2",
        "learner.backlog=5",
        "device.reconnect_s=5",
    ],
)
def test_length_observation_and_durability_may_change_both_ways(setting: str) -> None:
    for reversed_order in (False, True):
        assert changed_paths(setting, reversed_order=reversed_order) == ([], [setting.split("=")[0]])


def test_the_listening_address_may_change() -> None:
    refused, permitted = changed_paths("link={listen: 'tcp://127.0.0.1:5555', allow_plain_loopback: true}")
    assert refused == []
    assert set(permitted) == {"link.listen", "link.allow_plain_loopback"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=1", "seed is 0 in the run and 1 here"),
        ("rate_hz=40", "rate_hz is 50.0 in the run and 40.0 here"),
        ("rig.lease_periods=4", "rig.lease_periods is 5 in the run and 4 here"),
        ("learner.ddpg.reward_scale=0.5", "learner.ddpg.reward_scale is 0.001 in the run and 0.5 here"),
        ("task.episode_s=2", "task.episode_s is 4"),
        ("exploration.amplitude=[[1, 0.5]]", "exploration.amplitude is [[1.0,1.0],[500.0,0.1]] in the run"),
    ],
)
def test_the_learning_settings_may_not_change(setting: str, message: str) -> None:
    (refusal,) = compare_configs(BASE, load("pendulum", [setting])).refused
    assert message in str(refusal)


def test_a_twin_is_not_a_port_and_another_port_is_equivalent() -> None:
    ports = [load("pendulum", [f"device={{port: {{path: /dev/tty{n}}}, pace: realtime}}"]) for n in (1, 2)]
    assert compare_configs(*ports).refused == []
    assert {d.path for d in compare_configs(BASE, ports[0]).refused} >= {("device", "port"), ("device", "twin")}


def test_every_difference_is_named() -> None:
    assert {"rig", "task", "limits"} <= {d.path[0] for d in compare_configs(BASE, load("magman")).refused}


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
    setting = setting.replace("motor", BASE.rig.actuators[0].name)
    path = path.replace("motor", BASE.rig.actuators[0].name)
    no_prediction = "limits.predicted=null"  # which would have to be recomputed
    stricter, base = load("pendulum", [setting, no_prediction]), load("pendulum", [no_prediction])
    tightening, loosening = compare_configs(base, stricter), compare_configs(stricter, base)
    assert [".".join(map(str, d.path)) for d in tightening.permitted] == [path]
    assert tightening.refused == []
    assert [".".join(map(str, d.path)) for d in loosening.refused] == [path]
    assert "may only become stricter" in str(loosening.refused[0])


def test_a_prediction_may_be_added_but_neither_changed_nor_removed() -> None:
    refused, permitted = changed_paths("limits.predicted=null", reversed_order=True)
    assert (refused, permitted) == ([], ["limits.predicted"])
    refused, permitted = changed_paths("limits.predicted=null")
    assert (refused, permitted) == (["limits.predicted"], [])
