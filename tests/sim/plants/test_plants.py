from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig import configs
from onrig.hw.rig import Rig
from onrig.runtime import registry
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import load_document
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.config.registered import build_registered
from onrig.runtime.run_loading import load_run
from onrig.runtime.task import Task, batched_reward, episode_steps
from onrig.sim.plants import Magman, Pendulum, Plant
from onrig.sim.plants.integrate import BATCHED, SCALAR, Array, advance, apply_backlash, maths_for, step
from onrig.sim.plants.registry import plant_type_for, uncovered_deviations
from onrig.sim.twin.options import TwinOptions
from onrig.tools.load import load, load_for_rig

FOLDER = Path(configs.__file__).parent
PLANTS: list[Plant] = [Pendulum(), Pendulum(inertia="hardware"), Magman()]
NAMES = ["paper", "hardware", "magman"]


def energy(p: Pendulum, state: tuple[float, ...]) -> float:
    angle, velocity = state
    return 0.5 * p.inertia_kg_m2 * velocity**2 - p.mass * p.gravity * p.length * math.cos(angle)


@pytest.mark.parametrize("inertia", ["paper", "hardware"])
def test_without_friction_and_motor_the_pendulum_keeps_its_energy(inertia: str) -> None:
    frictionless = {"kind": "pendulum", "inertia": inertia, "damping": 0.0, "torque_constant": 0.0}
    p = msgspec.convert(frictionless, Pendulum)
    state: tuple[float, ...] = (2.0, 1.0)
    before = energy(p, state)
    for _ in range(200):
        state = advance(p, state, (3.0,), 0.02, substeps=20)
    assert energy(p, state) == pytest.approx(before, rel=1e-8)


def test_friction_takes_energy_from_the_pendulum() -> None:
    p = Pendulum()
    after = advance(p, (2.0, 1.0), (0.0,), 0.02)
    assert energy(p, after) < energy(p, (2.0, 1.0))


def test_the_motor_lifts_the_pendulum_as_far_as_its_torque_allows() -> None:
    # At rest K/R u = M g l sin(angle): the paper's torque ratio of 0.747 at 3 V.
    p = Pendulum()
    angle = math.asin(0.7469)
    velocity, acceleration = p.derivative(SCALAR, (angle, 0.0), (3.0,))
    assert velocity == 0.0
    assert acceleration == pytest.approx(0.0, abs=0.01)


def test_a_coil_pulls_the_ball_towards_itself() -> None:
    p = Magman()
    for j in range(4):
        action = tuple(0.6 if i == j else 0.0 for i in range(4))
        centre = 0.025 * (j + 1)
        assert p.derivative(SCALAR, (centre - 0.005, 0.0), action)[1] > 0
        assert p.derivative(SCALAR, (centre, 0.0), action)[1] == pytest.approx(0.0, abs=1e-12)
        assert p.derivative(SCALAR, (centre + 0.005, 0.0), action)[1] < 0


def test_the_force_of_a_coil_is_as_printed() -> None:
    p = Magman()
    d = 0.0 - 0.025
    expected = -5.520e-10 * d / (d**2 + 1.75e-4) ** 3 * 0.5 / 3.2e-2
    assert p.derivative(SCALAR, (0.0, 0.0), (0.5, 0.0, 0.0, 0.0))[1] == pytest.approx(expected, rel=1e-12)


CASES: list[tuple[Plant, tuple[float, float], tuple[float, ...]]] = [
    (Pendulum(), (2.0, 8.0), (1.5,)),
    (Pendulum(inertia="hardware"), (2.0, 15.0), (-3.0,)),
    (Magman(), (0.028, 0.2), (0.6, 0.1, 0.0, 0.3)),
]


@pytest.mark.parametrize(("plant", "state", "action"), CASES, ids=NAMES)
def test_halving_the_step_divides_the_error_by_sixteen(
    plant: Plant, state: tuple[float, float], action: tuple[float, ...]
) -> None:
    exact = advance(plant, state, action, 0.1, substeps=6400)
    errors = [
        max(abs(a - b) for a, b in zip(advance(plant, state, action, 0.1, substeps=n), exact, strict=True))
        for n in (50, 100)
    ]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(4.0, abs=0.25)


def test_next_to_a_magnet_one_step_per_period_gets_the_sign_wrong_and_two_do_not() -> None:
    # The reason for two half-steps.
    velocities = {}
    for substeps in (1, 2, 64):
        state: tuple[float, ...] = (0.05, 0.0)
        for _ in range(50):
            state = step(Magman(), state, (0.6, 0.0, 0.0, 0.0), 0.02, substeps)
        velocities[substeps] = state[1]
    assert velocities[1] > 0 > velocities[64]
    assert velocities[2] == pytest.approx(velocities[64], abs=0.01)


@pytest.mark.parametrize("plant", PLANTS, ids=NAMES)
@settings(max_examples=50)
@given(data=st.data())
def test_scalar_and_batched_steps_agree(data: st.DataObject, plant: Plant) -> None:
    pendulum = isinstance(plant, Pendulum)
    x = st.floats(-10.0, 10.0) if pendulum else st.floats(-0.05, 0.12)
    v = st.floats(-40.0, 40.0) if pendulum else st.floats(-0.6, 0.6)
    u = st.floats(-3.0, 3.0) if pendulum else st.floats(0.0, 0.6)
    states = data.draw(st.lists(st.tuples(x, v), min_size=1, max_size=4))
    actions = [tuple(data.draw(u) for _ in range(plant.n_actions)) for _ in states]
    columns: tuple[Array, ...] = tuple(np.array(c) for c in zip(*states, strict=True))
    inputs: tuple[Array, ...] = tuple(np.array(c) for c in zip(*actions, strict=True))
    batched = step(plant, columns, inputs, 0.02)
    for i, (state, action) in enumerate(zip(states, actions, strict=True)):
        scalar = step(plant, state, action, 0.02)
        if pendulum:
            # Either side of the seam is the same angle.
            difference = abs(scalar[0] - batched[0][i])
            assert min(difference, 2 * math.pi - difference) < 1e-12
        else:
            assert scalar[0] == pytest.approx(batched[0][i], abs=1e-12)
        assert scalar[1] == pytest.approx(batched[1][i], rel=1e-12, abs=1e-12)


@given(st.floats(-1e6, 1e6) | st.sampled_from([math.pi, -math.pi, -1e-17 - math.pi, 3 * math.pi]))
def test_the_angle_is_wrapped_into_its_half_open_turn(angle: float) -> None:
    p = Pendulum()
    wrapped, velocity = p.constrain(SCALAR, (angle, 1.0))
    assert -math.pi <= wrapped < math.pi
    assert velocity == 1.0
    assert math.cos(wrapped) == pytest.approx(math.cos(angle), abs=1e-9)
    (batched, _) = p.constrain(BATCHED, (np.array([angle]), np.array([1.0])))
    assert batched[0] == wrapped


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((-0.036, -0.3), (-0.035, 0.01)),
        ((0.106, 0.3), (0.105, -0.01)),
        ((0.105, 0.3), (0.105, 0.3)),
        ((-0.035, -0.3), (-0.035, -0.3)),
        ((0.0, 0.2), (0.0, 0.2)),
    ],
)
def test_a_ball_beyond_a_wall_is_moved_to_the_wall_and_reflected(
    before: tuple[float, float], after: tuple[float, float]
) -> None:
    p = Magman()
    assert p.constrain(SCALAR, before) == after
    batched = p.constrain(BATCHED, (np.array([before[0]]), np.array([before[1]])))
    assert (batched[0][0], batched[1][0]) == after


def test_walls_act_only_at_samples() -> None:
    inside = advance(Magman(), (0.104, 0.5), (0.0,) * 4, 0.02)
    assert inside[0] > 0.105
    assert step(Magman(), (0.104, 0.5), (0.0,) * 4, 0.02) == (0.105, -0.01)


RANDOM_RUNS = [
    ("pendulum", "swingup", Pendulum(), -163.51, 0.005),
    ("pendulum-hardware", "swingup-hardware", Pendulum(inertia="hardware"), -161.30, 0.005),
    ("magman", "positioning", Magman(), -5.154, 0.0005),
]


@pytest.mark.parametrize(("rig_name", "task_name", "plant", "reference", "digit"), RANDOM_RUNS, ids=NAMES)
def test_a_random_policy_earns_the_reference_reward(
    rig_name: str, task_name: str, plant: Plant, reference: float, digit: float
) -> None:
    """Reference values (docs/methods.md): i.i.d. uniform actions, one Runge-Kutta step per period."""
    rig = convert(load_document(FOLDER / "rigs" / f"{rig_name}.yaml"), (), Rig)
    task = convert(load_document(FOLDER / "tasks" / f"{task_name}.yaml"), (), Task)
    assert task.normalization is not None
    assert task.normalization.random_reward == reference
    rng = np.random.default_rng(1)
    episodes, steps = 4000, episode_steps(task, 50.0)
    reward, total = batched_reward(task, rig), np.zeros(episodes)
    state: tuple[Array, ...] = tuple(np.full(episodes, task.start[name]) for name in plant.state_names)
    for _ in range(steps):
        action: tuple[Array, ...] = tuple(rng.uniform(a.low, a.high, episodes) for a in rig.actuators)
        state = step(plant, state, action, 0.02, substeps=1)
        total += reward(np.stack(state, axis=-1), np.stack(action, axis=-1))
    means = total / steps
    standard_error = float(means.std(ddof=1)) / math.sqrt(episodes)
    assert standard_error < 0.06
    assert abs(float(means.mean()) - reference) < 3.5 * standard_error + digit


def test_a_plant_is_selected_by_its_kind_and_every_parameter_can_be_overridden() -> None:
    assert build_registered(registry.PLANTS, {"kind": "pendulum"}) == Pendulum()
    p = build_registered(registry.PLANTS, {"kind": "pendulum", "inertia": 5e-4, "mass": 0.1})
    assert isinstance(p, Pendulum)
    assert (p.inertia_kg_m2, p.mass, p.length) == (5e-4, 0.1, 4.2e-2)
    assert Pendulum().inertia_kg_m2 == 9.41e-4
    assert Pendulum(inertia="hardware").inertia_kg_m2 == 1.91e-4
    assert build_registered(registry.PLANTS, {"kind": "magman", "first_magnet": 0.0}) == Magman(first_magnet=0.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "cart"},
        {"kind": "pendulum", "inertia": 0.0},
        {"kind": "pendulum", "inertia": "heavy"},
        {"kind": "pendulum", "colour": 1},
        {"kind": "magman", "mass": True},
    ],
)
def test_a_nonsensical_plant_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"- at `\$"):
        build_registered(registry.PLANTS, bad)


def test_the_maths_follow_the_type_of_the_value() -> None:
    assert maths_for(1.0) is SCALAR
    assert maths_for(np.zeros(2)) is BATCHED


# -- many plants at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", PLANTS, ids=NAMES)
def test_parameters_may_be_arrays_over_trials(plant: Plant) -> None:
    rng, n = np.random.default_rng(3), 6
    values = {p.name: np.asarray(p.value) * rng.uniform(0.8, 1.2, n) for p in plant.parameters()}
    many = plant.varied(values)
    state: tuple[Array, ...] = (rng.uniform(0.0, 0.1, n), rng.uniform(-0.5, 0.5, n))
    action: tuple[Array, ...] = tuple(rng.uniform(0.0, 0.6, n) for _ in range(plant.n_actions))
    after = step(many, state, action, 0.02)
    for i in range(n):
        alone = plant.varied({name: float(value[i]) for name, value in values.items()})
        expected = step(alone, tuple(float(x[i]) for x in state), tuple(float(u[i]) for u in action), 0.02)
        assert [float(x[i]) for x in after] == pytest.approx(list(expected), rel=1e-12)


def test_parameters_have_units_and_bounds() -> None:
    declared = {p.name: p for p in Pendulum(inertia="hardware", delay_s=0.001).parameters()}
    assert (declared["inertia"].unit, declared["inertia"].value, declared["inertia"].low) == ("kg m^2", 1.91e-4, 1e-18)
    assert (declared["delay_s"].unit, declared["delay_s"].value) == ("s", 0.001)
    assert "dead_band" not in declared
    with pytest.raises(ValueError, match="mass: expected"):
        Pendulum().varied({"mass": np.array([0.05, -1.0])})
    with pytest.raises(KeyError):
        Pendulum().varied({"colour": 1.0})


@pytest.mark.parametrize("plant", PLANTS, ids=NAMES)
def test_a_plant_is_rebuilt_from_its_lumped_parameters(plant: Plant) -> None:
    other = plant.with_lumped({name: 1.1 * value for name, value in plant.lumped.items()})
    assert other.lumped == pytest.approx({name: 1.1 * value for name, value in plant.lumped.items()}, rel=1e-12)


@pytest.mark.parametrize("run", ["pendulum", "pendulum-hardware", "magman"])
def test_the_plant_of_a_box_moves_as_the_twin_does(run: str) -> None:
    config = load_run(run)
    box = config.limits.predicted
    assert box is not None
    section = config.device.twin
    assert section is not None
    twin, plant = build_registered(registry.PLANTS, section["plant"]), plant_type_for(box).of_box(box, config.rig)
    state = (0.04, 0.3)
    action = (0.5,) * twin.n_actions
    assert step(plant, state, action, 0.02) == pytest.approx(step(twin, state, action, 0.02), rel=1e-9)
    assert list(uncovered_deviations(plant, box, config.rig)) == []


def test_coils_may_be_anywhere() -> None:
    even, listed = Magman(), Magman(magnets=Magman().centres)
    assert listed.n_actions == 4
    assert step(listed, (0.03, 0.1), (0.6, 0.0, 0.3, 0.1), 0.02) == pytest.approx(
        step(even, (0.03, 0.1), (0.6, 0.0, 0.3, 0.1), 0.02), rel=1e-12
    )
    assert Magman(magnets=(0.01,)).n_actions == 1


# -- imperfections -----------------------------------------------------------------------------------------------------


def test_dry_friction_holds_a_body_at_rest_and_slows_a_moving_one() -> None:
    held = Pendulum(dry_friction=5.0)
    assert advance(held, (0.05, 0.0), (0.0,), 0.5) == (0.05, 0.0)
    assert abs(advance(held, (0.0, 2.0), (0.0,), 0.02)[1]) < abs(advance(Pendulum(), (0.0, 2.0), (0.0,), 0.02)[1])
    moving, expected = Magman(dry_friction=0.5, friction=0.0, c1=0.0), 0.2 - 0.5 * 0.1
    assert advance(moving, (0.0, 0.2), (0.0,) * 4, 0.1)[1] == pytest.approx(expected)


def test_a_dead_band_reduces_every_action_by_its_size() -> None:
    p = Pendulum(dead_band=0.5)
    for voltage, acts in ((0.4, 0.0), (-0.4, 0.0), (2.0, 1.5), (-2.0, -1.5)):
        assert advance(p, (0.3, 0.1), (voltage,), 0.02) == advance(Pendulum(), (0.3, 0.1), (acts,), 0.02)


def test_saturation_limits_what_the_dead_band_leaves_of_an_action() -> None:
    p = Pendulum(dead_band=0.5, saturation=1.0)
    voltages = np.array([0.4, -0.4, 1.2, 3.0, -3.0])
    acts = np.clip(np.sign(voltages) * np.maximum(np.abs(voltages) - 0.5, 0.0), -1.0, 1.0)
    for voltage, acting in zip(voltages.tolist(), acts.tolist(), strict=True):
        assert advance(p, (0.3, 0.1), (voltage,), 0.02) == advance(Pendulum(), (0.3, 0.1), (acting,), 0.02)
    batched = advance(p, (np.full(5, 0.3), np.full(5, 0.1)), (voltages,), 0.02)
    assert np.array_equal(batched, advance(Pendulum(), (np.full(5, 0.3), np.full(5, 0.1)), (acts,), 0.02))


@given(st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=30), st.floats(0.0, 2.0))
def test_backlash_is_the_play_operator(commands: list[float], width: float) -> None:
    expected = 0.0
    found: tuple[float, ...] = (0.0,)
    together: tuple[Array, ...] = (np.zeros(2),)
    for u in commands:
        expected = min(max(expected, u - 0.5 * width), u + 0.5 * width)
        found = apply_backlash(SCALAR, width, found, (u,))
        together = apply_backlash(BATCHED, np.array([width, 0.0]), together, (np.full(2, u),))
        assert found == (expected,)
        assert together[0].tolist() == [expected, u]


def test_disabled_imperfections_leave_no_trace_in_a_configuration() -> None:
    assert set(msgspec.to_builtins(Magman())) == {
        "kind", "mass", "friction", "c1", "c2", "first_magnet", "magnet_spacing", "wall_low", "wall_high", "wall_speed",
    }  # fmt: skip
    assert list(msgspec.to_builtins(Pendulum())) == [
        "kind", "inertia", "mass", "gravity", "length", "damping", "torque_constant", "resistance",
    ]  # fmt: skip


# -- plants covered by the shield --------------------------------------------------------------------------------------


def test_imperfections_not_covered_by_the_shield_are_reported() -> None:
    box, wide = (load_run("pendulum", more).limits.predicted for more in ([], ["limits.predicted.dead_band=0.2"]))
    rig = load_run("pendulum").rig
    assert box is not None
    assert wide is not None
    assert list(uncovered_deviations(Pendulum(dry_friction=3.0), box, rig)) == []
    (message,) = uncovered_deviations(Pendulum(dead_band=0.2), box, rig)
    assert "a dead band of 0.2, but the shield covers 0" in message
    assert list(uncovered_deviations(Pendulum(dead_band=0.2), wide, rig)) == []
    (message,) = uncovered_deviations(Pendulum(dead_band=0.3), wide, rig)
    assert "the shield covers 0.2" in message
    (message,) = uncovered_deviations(Pendulum(delay_s=0.005), box, rig)
    assert "5000 us late, but the shield covers 1000 us" in message
    (message,) = uncovered_deviations(Pendulum(delay_s=0.001), box, rig)
    assert "1000 us after the device's output, but the shield covers 0 us (plant_delay_us)" in message
    behind = load_run("pendulum", ["limits.predicted.plant_delay_us=1000"]).limits.predicted
    assert behind is not None
    assert list(uncovered_deviations(Pendulum(delay_s=0.001), behind, rig)) == []
    (message,) = uncovered_deviations(Pendulum(backlash=0.1), box, rig)
    assert "a backlash of 0.1, but the shield covers none" in message
    (message,) = uncovered_deviations(Pendulum(saturation=2.0), box, rig)
    assert "saturates at 2, but the shield assumes actions up to 3" in message
    assert list(uncovered_deviations(Pendulum(saturation=3.0), box, rig)) == []
    assert len(list(uncovered_deviations(Magman(), box, rig))) == 3


@pytest.mark.parametrize("name", ["pendulum", "pendulum-hardware", "magman"])
def test_shipped_twins_are_covered_by_the_shield(name: str) -> None:
    config = load(name)
    assert config.limits.predicted is not None
    plant = msgspec.convert(config.device.twin, TwinOptions).plant
    assert list(uncovered_deviations(plant, config.limits.predicted, config.rig)) == []


def test_a_narrower_or_displaced_coil_is_not_covered_by_the_shield() -> None:
    run, wide = load_run("magman"), load_run("magman", ["limits.predicted.c2_spread=0.1"])
    assert run.limits.predicted is not None
    assert wide.limits.predicted is not None
    (message,) = uncovered_deviations(Magman(c2=1.6e-4), run.limits.predicted, run.rig)
    assert message == "the twin's plant has c2 0.00016, but the shield covers 0.000175 to 0.000175"
    assert list(uncovered_deviations(Magman(c2=1.6e-4), wide.limits.predicted, run.rig)) == []
    (message,) = uncovered_deviations(Magman(c2=1.5e-4), wide.limits.predicted, run.rig)
    assert "covers 0.0001575 to 0.0001925" in message
    (message,) = uncovered_deviations(Magman(magnets=(0.025, 0.05, 0.08, 0.1)), run.limits.predicted, run.rig)
    assert message == "the twin's current_3 is at 0.08 m, but the shield assumes 0.075 m"


@pytest.mark.parametrize(
    ("name", "changed", "path"),
    [
        ("pendulum", "device.twin.plant.inertia=hardware", "gravity_per_s2"),
        ("pendulum", "device.twin.plant.damping=1.2e-4", "damping_per_s"),
        ("magman", "device.twin.plant.mass=0.02", "friction_per_s"),
    ],
)
def test_another_plant_is_refused_where_it_could_break_the_promise(name: str, changed: str, path: str) -> None:
    with pytest.raises(ConfigError, match=f"{path}.*limits.predicted"):
        load_for_rig(name, [changed])


def test_a_plant_within_the_spread_passes_and_so_does_a_shield_without_a_promise() -> None:
    load_for_rig("pendulum", ["device.twin.plant.mass=0.06"])
    load_for_rig("pendulum", ["device.twin.plant.inertia=hardware", "limits.predicted=null"])
