from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw import messages as m
from onrig.hw.messages import Op
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.random_streams import Role, device_seed
from onrig.runtime.run_checks import guard_findings
from onrig.runtime.run_loading import load_run
from onrig.runtime.starts import Start, are_starts_random, draw_start, extreme_starts, middle_start
from onrig.sim.plants import Pendulum
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions
from tests.runtime.samples import PENDULUM

INTERVAL: Start = {"angle": (-0.2, 0.2), "velocity": 0.0}
START_ROWS: tuple[Start, ...] = ({"angle": 0.0, "velocity": 0.0}, {"angle": (1.0, 2.0), "velocity": -1.0})


@given(seed=st.integers(0, 2**64 - 1))
def test_a_start_is_drawn_from_its_interval_by_the_seed_of_the_reset(seed: int) -> None:
    start = draw_start(INTERVAL, seed)
    assert start == draw_start(INTERVAL, seed)
    assert -0.2 <= start["angle"] <= 0.2
    assert start["velocity"] == 0.0
    listed_start = draw_start(START_ROWS, seed)
    assert listed_start == START_ROWS[0] or (1.0 <= listed_start["angle"] <= 2.0 and listed_start["velocity"] == -1.0)


def test_episodes_differ_and_those_of_evaluations_have_their_own_stream() -> None:
    seeds = [device_seed(3, role, e) for role in (Role.PLANT_TRAIN, Role.PLANT_EVAL) for e in range(1, 21)]
    assert len({draw_start(INTERVAL, seed)["angle"] for seed in seeds}) == 40
    assert {draw_start(START_ROWS, seed)["velocity"] for seed in seeds} == {0.0, -1.0}


def test_fixed_numbers_remain_fixed() -> None:
    start = PENDULUM.task.start
    assert not are_starts_random(start)
    assert draw_start(start, 5) == draw_start(start, 6) == middle_start(start) == start
    assert [*extreme_starts(start)] == [("start", start)]
    assert middle_start(INTERVAL) == {"angle": 0.0, "velocity": 0.0}
    assert [corner for _, corner in extreme_starts(INTERVAL)] == [
        {"angle": -0.2, "velocity": 0.0},
        {"angle": 0.2, "velocity": 0.0},
    ]


INVALID_STARTS = {
    "crossed": (["task.start={angle: [1, -1], velocity: 0}"], "needs low < high, got 1.0 and -1.0 at task.start.angle"),
    "three ends": (
        ["task.start={angle: [1, 2, 3], velocity: 0}"],
        "expected a number, such as 0.5, or 2 values in brackets, such as [0, 0.5], got [1, 2, 3] at start.angle",
    ),
    "a word": (["task.start={angle: low, velocity: 0}"], "such as [0, 0.5], got 'low' at start.angle"),
    "both": (["task.starts=[{angle: 0, velocity: 0}]"], "expected either start or starts: remove one of them"),
    "unknown": (["task.start={}", "task.starts=[{angel: 0, velocity: 0}]"], "'angel'"),
    "a gap": (
        ["task.start={}", "task.starts=[{angle: 0, velocity: 0}, {angle: 1}]"],
        "lacks 'velocity', which the first start contains at task.starts[1]",
    ),
    "outside": (
        ["task.start={angle: 0, velocity: [-1, 16]}", "limits.predicted=null"],
        "the start 16 lies outside the envelope, [-15, 15]: every episode would begin in the fallback, at "
        "task.start.velocity",
    ),
    "too fast": (
        ["task.start={}", "task.starts=[{angle: 0, velocity: 0}, {angle: 0, velocity: [0, 14.9]}]"],
        "even the safe output may leave the envelope: start slower, at task.starts[1].velocity",
    ),
    "ends at once": (
        ["task.start={angle: [0, 2], velocity: 0}", "task.terminate={angle: [-1, 1]}"],
        "the start state 2.0 lies outside [-1.0, 1.0] at task.terminate.angle",
    ),
}


@pytest.mark.parametrize("name", INVALID_STARTS)
def test_an_impossible_start_is_refused_with_its_place(name: str) -> None:
    overrides, message = INVALID_STARTS[name]
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", overrides)
    assert message in str(error.value)


def test_the_twin_starts_where_its_reset_seed_says() -> None:
    config = load_run("pendulum", ["task.start={angle: [-0.2, 0.2], velocity: 0}"])
    device = TwinDevice(config.rig, TwinOptions(plant=Pendulum()), config.task.all_starts, time_scale=0.0)
    device.handle(m.encode_request(m.Request(1, Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(config.period_us, 5))))
    for number, seed in enumerate((7, 8, 7), start=2):
        device.handle(m.encode_request(m.Request(number, Op.RESET, m.RESET_LAYOUT.pack(seed))))
        device.sample()
        assert device.plant_state == tuple(draw_start(INTERVAL, seed).values())


def test_the_corners_include_the_ends_of_every_interval_however_many_there_are() -> None:
    corners = [start for _, start in extreme_starts({f"x{i}": (-0.1, 5.0) for i in range(9)})]
    assert len(corners) <= 66
    for name in corners[0]:
        assert {start[name] for start in corners} == {-0.1, 5.0}


def test_a_reset_that_only_lets_the_rig_settle_is_refused_for_drawn_starts() -> None:
    overrides = ["task.start={angle: [-0.2, 0.2], velocity: 0}", "device={port: {path: /dev/ttyACM9}}"]
    (message,) = [problem for path, problem in guard_findings(load_run("pendulum", overrides)) if path[0] == "task"]
    assert "'settle' drives to the rig's rest position, not to a random start" in message
    draws = ["task.start={position: [0, 0.02], velocity: 0}", "device={port: {path: /dev/ttyACM9}}"]
    assert not [problem for path, problem in guard_findings(load_run("magman", draws)) if path[0] == "task"]
