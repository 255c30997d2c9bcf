"""From steps to stretches to windows."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.hw.messages import Status
from onrig.runtime.record import Kind, Step
from onrig.sim.identification.recording import HISTORY, Stretch, stretches, windows_of
from tests.sim.twin.bench import PERIOD_US, RESOLUTION, RIG


def step(frame: int, angle: int = 0, status: int = Status.ARMED, **more: object) -> Step:
    zeros = (0.0,)
    new_step = Step(
        *(frame, 1, Kind.EVAL, frame, frame * PERIOD_US, status, 0, frame, (angle, 0), (frame,), (frame + 1,)),
        *((0.0, 0.0), zeros, zeros, zeros, zeros, (0,), zeros),
    )
    for name, value in more.items():
        setattr(new_step, name, value)
    return new_step


def lengths(steps: list[Step]) -> list[int]:
    return [len(s.readings) for s in stretches(steps, RIG, PERIOD_US)]


def test_a_stretch_holds_si_values_and_one_period_less_than_samples() -> None:
    (new_step,) = stretches([step(k, angle=10 * k, tau_us=500) for k in range(1, 5)], RIG, PERIOD_US)
    np.testing.assert_allclose(new_step.readings[:, 0], np.arange(10, 50, 10) * RESOLUTION)
    np.testing.assert_allclose(new_step.u_start[:, 0], np.array([1, 2, 3]) * 1e-4)
    np.testing.assert_allclose(new_step.u_end[:, 0], np.array([2, 3, 4]) * 1e-4)
    np.testing.assert_allclose(new_step.tau_s, 5e-4)


def test_an_angle_continues_beyond_a_turn() -> None:
    turn = round(2 * np.pi / RESOLUTION)
    (new_step,) = stretches([step(1, angle=turn // 2 - 3), step(2, angle=-turn // 2 + 3)], RIG, PERIOD_US)
    assert new_step.readings[1, 0] - new_step.readings[0, 0] == pytest.approx(6 * RESOLUTION)


@pytest.mark.parametrize(
    "broken",
    [
        {"frame": 7},
        {"t_device_us": 7},
        {"status": Status.ARMED | Status.FIRST},
        {"status": Status.ARMED | Status.FAULT},
        {"status": 0},
    ],
)
def test_it_is_split_where_the_motion_or_the_record_was_interrupted(broken: dict[str, int]) -> None:
    steps = [step(k) for k in range(1, 9)]
    steps[3] = msgspec.structs.replace(steps[3], **broken)
    assert max(lengths(steps)) < 8
    assert sum(lengths(steps)) <= 8


def test_windows_share_no_sample_and_include_the_commands_before_them() -> None:
    n = HISTORY + 12
    count = np.arange(n - 1, dtype=np.float64)[:, None]
    new_step = Stretch(0.02, np.arange(n, dtype=np.float64)[:, None], count, count + 1, np.zeros(n - 1))
    windows = windows_of([new_step], 5)
    assert (windows.size, windows.periods) == (2, 5)
    np.testing.assert_array_equal(windows.readings[:, :, 0].ravel(), np.arange(HISTORY, HISTORY + 12))
    np.testing.assert_array_equal(windows.u_start[0, :, 0], np.arange(HISTORY + 5))
    np.testing.assert_array_equal(windows.u_start[1, HISTORY], windows.readings[1, 0])


def test_a_recording_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="frames in a row"):
        windows_of([], 5)
