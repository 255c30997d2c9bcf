"""The table of a sampled barrier: what it covers, and that its judgements match the simulation."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.safety.fallback import Damp, SafeOutput
from onrig.runtime.safety.limits import Limits
from onrig.runtime.safety.shield import Shield
from onrig.sim.barrier.fleet import FLOOR, Fleet, SharedSetup, batched_fallback
from onrig.sim.barrier.plants import draw_plants
from onrig.sim.barrier.table import Grid, compute
from tests.runtime.samples import PENDULUM
from tests.sim.barrier.beam import beam, computed, with_table


@given(st.lists(st.floats(-40, 40), min_size=1, max_size=8))
def test_the_batched_fallback_equals_that_of_the_tick(velocities: list[float]) -> None:
    seen = np.array([[0.0] * len(velocities), velocities])
    for low, high in ((-3.0, 3.0), (-0.5, 1.0)):
        for fallback in (Damp(actuator="voltage", observation="velocity", full_at=2.0), SafeOutput()):
            shield = Shield(Limits(range={"voltage": (low, high)}, fallback=fallback), PENDULUM.rig, 0.02)
            many = batched_fallback(fallback, PENDULUM.rig, ["angle", "velocity"], {"voltage": (low, high)})(seen)
            one = [shield.decide((0.0, v), None, (0.0,)).action[0] for v in velocities]
            assert many[0].tolist() == pytest.approx(one)


def test_a_rig_at_rest_in_the_middle_is_safe_and_one_that_runs_towards_the_end_is_not(bench: Path) -> None:
    header, values = computed(bench)
    table = Grid(header.axes, values)

    def margin(position: float, velocity: float, tilt: float) -> float:
        return float(table.at(np.array([[position], [velocity], [tilt]]))[0])

    assert margin(0.0, 0.0, 0.0) > 0.9
    assert margin(0.3, 0.4, 0.2) < 0.0
    assert margin(0.0, 0.1, 0.2) < margin(0.0, 0.1, 0.0) < margin(0.0, 0.1, -0.05)
    assert margin(0.35, 0.0, 0.2) < header.slack, "the host may die after this command"
    assert table.at(np.array([[0.5], [0.0], [0.0]]))[0] == FLOOR, "beyond the table nothing is known"


def test_interpolation_is_exact_for_linear_functions(bench: Path) -> None:
    header, _ = computed(bench)
    points = Grid(header.axes, np.zeros(0, np.float32)).points(0, header.points * header.commands[0].nodes)
    values = (1.0 + 2.0 * points[0] - points[1] + 0.5 * points[2]).astype(np.float32)
    rng = np.random.default_rng(0)
    lows, highs = (np.array([getattr(a, end) for a in header.axes])[:, None] for end in ("low", "high"))
    at = rng.uniform(lows, highs, (3, 50))
    assert Grid(header.axes, values).at(at) == pytest.approx(1.0 + 2.0 * at[0] - at[1] + 0.5 * at[2], abs=1e-5)


@settings(max_examples=100)
@given(st.floats(-0.45, 0.45), st.floats(-0.7, 0.7), st.floats(-0.2, 0.2))
def test_the_tick_interpolates_like_the_computation(position: float, velocity: float, tilt: float) -> None:
    config, box = with_table(SHARED[0])
    barrier = box.barrier()
    prediction = box.prediction(config.limits.context(config.rig, 0.02))
    excess, margin = prediction.evaluate((position, velocity), (tilt,))
    inside = abs(position) <= 0.36 and abs(velocity) <= 0.6
    found = Grid(barrier.header.axes, barrier.values).at(np.array([[position], [velocity], [tilt]]))[0]
    best = float(barrier.values.max()) - barrier.header.slack
    if inside and found >= barrier.header.slack:
        assert excess == 0.0
        assert margin == pytest.approx((found - barrier.header.slack) / best, abs=1e-5)
    else:
        assert excess >= 0.0
        assert margin == 0.0


SHARED: list[Path] = []


@pytest.fixture(autouse=True)
def _share(bench: Path) -> None:
    SHARED[:] = [bench]
    with_table(bench)


def test_nan_is_judged_as_outside(bench: Path) -> None:
    config, box = with_table(bench)
    prediction = box.prediction(config.limits.context(config.rig, 0.02))
    for odd in itertools.product((np.nan, np.inf, -np.inf, 0.0), repeat=2):
        excess, margin = prediction.evaluate(odd, (0.0,))
        assert (excess > 0.0) == (odd != (0.0, 0.0))
        assert 0.0 <= margin <= 1.0


def test_more_uncertainty_leaves_fewer_safe_states(bench: Path) -> None:
    coarse = ["limits.predicted.nodes={position: 15, velocity: 15, tilt: 3}", "limits.predicted.horizon_s=2.0"]
    shares = []
    for interval in ("[7.0, 7.0]", "[4.0, 10.0]"):
        config, box = beam(bench, [*coarse, f"limits.predicted.uncertainty.B_velocity_tilt={interval}"])
        _, values = compute(config, box, 8, 0, lambda share: None, workers=1)
        shares.append((values > 0.0).mean())
    assert shares[1] < shares[0]


def test_a_delay_behind_the_device_lets_the_last_command_of_a_dead_host_act_longer(bench: Path) -> None:
    coarse = ["limits.predicted.nodes={position: 15, velocity: 15, tilt: 3}", "limits.predicted.horizon_s=2.0"]
    config, box = beam(bench, [*coarse, "limits.predicted.late_us=20000", "limits.predicted.plant_delay_us=20000"])
    draw = draw_plants(config, box, 6, np.random.default_rng(1), includes_corners=True)
    assert draw.plant_delay_s == pytest.approx(draw.late_s), "no time passes before the device's output"
    fleet, tilt = Fleet(SharedSetup.from_config(config, box), draw), np.full((1, 6), 0.2)
    start = fleet.states_of(np.zeros((2, 6)))
    held, least = fleet.hold_after_delay(start, tilt, 6)
    later, least_later = fleet.hold_during_delay(held, tilt)
    assert (later[1] - held[1] > 0.5 * 7.0 * 0.2 * draw.plant_delay_s).all()
    assert (least_later < least).all()
    at_once = fleet.__class__(SharedSetup.from_config(config, box), draw._replace(plant_delay_s=np.zeros(6)))
    assert at_once.hold_during_delay(held, tilt)[0][1] == pytest.approx(held[1])


def test_an_accepted_command_may_be_followed_by_the_safe_output_at_any_sample(bench: Path) -> None:
    config, box = beam(bench)
    header, values = computed(bench)
    lows, highs = (np.array([getattr(axis, end) for axis in header.axes])[:, None] for end in ("low", "high"))
    points = np.random.default_rng(1).uniform(lows, highs, (3, 20_000))
    points = points[:, Grid(header.axes, values).at(points) >= header.slack]
    draw = draw_plants(config, box, points.shape[1], np.random.default_rng(9), includes_corners=False)
    fleet = Fleet(SharedSetup.from_config(config, box), draw)
    for periods in (0, 1, 3):  # a stop, an e-stop, the end of an episode
        state = fleet.hold(fleet.states_of(points[:2]), points[2:], periods)[0]
        assert (fleet.coast_margin(state, 200) > 0.0).all()


def test_a_brake_with_the_wrong_sign_leaves_no_safe_state(bench: Path) -> None:
    coarse = "limits.predicted.nodes={position: 9, velocity: 9, tilt: 3}"
    config, box = beam(bench, [coarse, "device.twin.plant.B=[[0], [-7.0]]"])
    with pytest.raises(ValueError, match="no state is safe"):
        compute(config, box, 4, 0, lambda share: None, workers=1)


def test_workers_compute_the_same_table(bench: Path) -> None:
    coarse = ["limits.predicted.nodes={position: 9, velocity: 9, tilt: 3}", "limits.predicted.horizon_s=1.0"]
    config, box = beam(bench, coarse)
    progress: list[float] = []
    one = compute(config, box, 4, 3, progress.append, workers=1)
    two = compute(config, box, 4, 3, lambda share: None, workers=2)
    assert one[0] == two[0]
    assert np.array_equal(one[1], two[1])
    assert progress == sorted(progress)
    assert progress[-1] == pytest.approx(1.0)


def test_dropped_plants_do_not_change_the_others(bench: Path) -> None:
    config, box = beam(bench)
    draw = draw_plants(config, box, 6, np.random.default_rng(1), includes_corners=True)
    shared = SharedSetup.from_config(config, box)
    starts = np.array([[0.0, 0.3, 0.0, 0.35, 0.1, 0.0], [0.0, 0.5, 0.1, 0.6, 0.0, -0.2]])
    fleet = Fleet(shared, draw)
    together = fleet.coast_margin(fleet.states_of(starts), 100)
    for i in range(6):
        alone = Fleet(shared, draw.select(np.array([i])))
        assert alone.coast_margin(alone.states_of(starts[:, [i]]), 100)[0] == pytest.approx(together[i])


def test_losses_never_last_for_a_full_lease(bench: Path) -> None:
    config, box = beam(bench)
    draw = draw_plants(config, box, 200, np.random.default_rng(0), includes_corners=False)
    lease = config.rig.lease_periods
    windows = np.lib.stride_tricks.sliding_window_view(draw.is_lost, lease, axis=0)
    assert draw.is_lost.any()
    assert not windows.all(axis=-1).any()
    assert not draw.is_lost[0].any()


def test_the_promise_of_a_table_states_its_numbers(bench: Path) -> None:
    from onrig.runtime.safety.promise import Basis, promise_of

    config, _ = with_table(bench)
    promise = promise_of(config.limits)
    assert promise.basis is Basis.SAMPLED
    for number in ("8 plants", "1517 states", "4 s ahead", "0 of 3000", "0.1 %", "95 % confidence"):
        assert number in promise.sentence
    gone = msgspec.structs.replace(config.limits.predicted, table="/nowhere")  # type: ignore[type-var]
    without = promise_of(msgspec.structs.replace(config.limits, predicted=gone))
    assert without.basis is Basis.SAMPLED
