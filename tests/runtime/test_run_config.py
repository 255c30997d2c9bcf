from __future__ import annotations

import pytest

from onrig.runtime.run_config import differences
from onrig.runtime.run_loading import load_run

RUN = load_run("pendulum")


@pytest.mark.parametrize(
    "change",
    [
        "episodes=900",
        "evaluate_every=0",
        "checkpoint_s=1",
        "barrier_timeout_s=9",
        "local_learner=false",
        "realtime.priority=0",
        "supervision.fade_s=1",
        "link={listen: 'tcp://127.0.0.1:5555', allow_plain_loopback: true}",
        "learner.threads=2",
        "learner.backlog=5",
        "device.reconnect_s=5",
    ],
)
def test_how_long_how_watched_and_how_durable_may_change(change: str) -> None:
    assert differences(RUN, load_run("pendulum", [change])) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("seed=1", "seed is 0 in the run and 1 here"),
        ("learner.ddpg.reward_scale=0.5", "learner.ddpg.reward_scale is 0.001 in the run and 0.5 here"),
        ("limits.predicted=null", "in the run and absent here"),
        ("task.episode_s=2", "task.episode_s is 4"),
        ("exploration.amplitude=[[1, 0.5]]", "exploration.amplitude is [[1.0,1.0],[500.0,0.1]] in the run"),
    ],
)
def test_what_is_learned_and_how_may_not(change: str, said: str) -> None:
    (found,) = differences(RUN, load_run("pendulum", [change]))
    assert said in str(found)


def test_a_twin_is_no_port_and_another_port_is_as_good() -> None:
    ports = [load_run("pendulum", [f"device={{port: {{path: /dev/tty{n}}}, pace: realtime}}"]) for n in (1, 2)]
    assert differences(*ports) == []
    assert {d.path for d in differences(RUN, ports[0])} >= {("device", "port"), ("device", "twin")}


def test_every_difference_is_named() -> None:
    found = differences(RUN, load_run("magman"))
    assert {"rig", "task", "limits"} <= {d.path[0] for d in found}
