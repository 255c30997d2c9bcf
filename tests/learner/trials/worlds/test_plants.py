from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.trials.engine import world_trials
from onrig.learner.trials.step_run import StepRun
from onrig.learner.trials.worlds import NoSuchTask, World
from onrig.learner.trials.worlds.factory import spaces_of_world
from onrig.learner.trials.worlds.plants import PlantOptions, PlantWorld, load_plant_run
from onrig.runtime.random_streams import Role, stream
from onrig.sim.envs import TwinEnv
from onrig.sim.plants.integrate import advance
from onrig.sim.plants.pendulum import Pendulum

NOISE: dict[str, object] = {"device.twin.sensor_noise": 0.02, "device.twin.actuator_noise": 0.05}
STRICT: dict[str, object] = {
    "limits.envelope": {"velocity": {"low": -1.0, "high": 1.0}},
    "limits.rate_per_s": {},
    "limits.predicted": None,
}
NARROW: dict[str, object] = {"limits.envelope": {"velocity": {"low": -0.2, "high": 0.2}}}
ESTIMATED: dict[str, object] = {
    "rig.observations": [
        {"name": "angle", "unit": "rad", "low": -3.2, "high": 3.2},
        {"name": "velocity", "unit": "rad/s", "low": -30.0, "high": 30.0, "derivative_of": "angle"},
    ],
    "limits.predicted": None,
}
PERIOD_S = 0.02


def _world(
    seeds: list[int],
    sets: dict[str, object] | None = None,
    *,
    actors: int = 1,
    shield: bool = False,
    plant: Pendulum | None = None,
    end_outside: bool = False,
) -> PlantWorld:
    changed = {"task.episode_s": 0.4, **(sets or {})}
    options = PlantOptions(set=changed, shield=shield, end_outside=end_outside)
    roles = [Role.PLANT_TRAIN] * actors
    return PlantWorld(load_plant_run("pendulum", options), seeds, roles, options=options, plant=plant)


def _all(world: PlantWorld, trials: int, actors: int = 1) -> NDArray[np.bool_]:
    return np.ones((trials, actors), np.bool_)


def _observed(world: PlantWorld, actions: NDArray[np.float64]) -> NDArray[np.float32]:
    """Observations (T, S, n) under actions (T, S, m)."""
    everyone = _all(world, actions.shape[1])
    world.begin(everyone)
    return np.array([world.step(action[:, None], everyone).observation[:, 0] for action in actions])


def test_an_actor_s_noise_is_that_of_its_role_and_episode_whoever_is_beside_it() -> None:
    config = load_plant_run("pendulum", PlantOptions(set={"task.episode_s": 0.4, **NOISE}))
    roles = [Role.PLANT_TRAIN, Role.PLANT_EVAL]
    together = PlantWorld(config, [4, 9], roles)
    policy_distance = [PlantWorld(config, [9], [role]) for role in roles]
    rng, both, one = np.random.default_rng(0), np.ones((2, 2), np.bool_), np.ones((1, 1), np.bool_)
    drawn = [stream(9, role, 1).standard_normal((21, 3)) * [0.02, 0.02, 0.05] for role in roles]
    for episode in (1, 2):
        observation = together.begin(both)
        alone = [world.begin(one) for world in policy_distance]
        for t in range(20):
            actions = rng.uniform(-1.0, 1.0, (2, 2, 1))
            for e in (0, 1):
                assert (observation[1, e] == alone[e][0, 0]).all()
            stepped = together.step(actions, both)
            assert stepped.noise is not None
            for e, world in enumerate(policy_distance):
                own = world.step(actions[1:, [e]], one)
                alone[e] = own.observation
                assert own.reward[0, 0] == stepped.reward[1, e]
                assert (stepped.noise[1, e] == drawn[e][t]).all() == (episode == 1)
            observation = stepped.observation
            assert stepped.truncated.all() == (t == 19)
        assert not stepped.terminated.any()


@pytest.mark.parametrize("name", ["pendulum", "pendulum-hidden", "magman"])
def test_with_counts_it_is_the_twin_behind_its_protocol(name: str) -> None:
    config = load_plant_run(name, PlantOptions())
    assert config.device.twin is not None
    env = TwinEnv(config.rig, config.task, config.device.twin, config.rate_hz)
    worlds = [
        PlantWorld(config, [0], [Role.PLANT_TRAIN], options=PlantOptions(counts=counts)) for counts in (False, True)
    ]
    one = np.ones((1, 1), np.bool_)
    starts = [world.begin(one)[0, 0] for world in worlds]
    assert (starts[1] == env.reset(seed=0)[0]).all()
    unlike = 0.0
    for action in np.random.default_rng(1).uniform(-1.0, 1.0, (50, len(config.rig.actuators))):
        free, stepped = (world.step(action[None, None], one) for world in worlds)
        seen, reward, *_ = env.step(action.astype(np.float32))
        np.testing.assert_allclose(stepped.observation[0, 0], seen, rtol=0.0, atol=1e-6)
        np.testing.assert_allclose(stepped.reward[0, 0], reward, rtol=1e-9)
        unlike = max(unlike, np.abs(free.observation[0, 0] - seen).max())
    assert unlike > 1e-5


def test_what_noise_makes_of_a_sensor_is_a_count_as_well() -> None:
    config = load_plant_run("pendulum", PlantOptions(set=NOISE))
    world = PlantWorld(config, [0, 1], [Role.PLANT_TRAIN], options=PlantOptions(counts=True))
    everyone = _all(world, 2)
    world.begin(everyone)
    half_range = np.array([o.high for o in config.rig.observations])  # they are symmetric
    resolution = np.array([s.resolution for s in config.rig.sensors])
    for _ in range(20):
        seen = world.step(np.full((2, 1, 1), 0.3), everyone).observation[:, 0].astype(np.float64)
        counts = seen * half_range / resolution
        np.testing.assert_allclose(counts, np.rint(counts), atol=1e-2)


def test_each_trial_has_a_plant_of_its_own() -> None:
    actions = np.random.default_rng(1).uniform(-1.0, 1.0, (15, 3, 1))
    lengths = np.array([0.03, 0.042, 0.05])
    together = _observed(_world([1, 2, 3], plant=Pendulum().varied({"length": lengths})), actions)
    for trial, length in enumerate(lengths):
        alone = _world([1], plant=Pendulum(length=float(length)))
        assert (_observed(alone, actions[:, [trial]])[:, 0] == together[:, trial]).all()
    assert (together[-1, 0] != together[-1, 2]).all()


def test_each_actor_has_a_plant_of_its_own() -> None:
    world = _world([1, 2], plant=Pendulum().varied({"length": np.array([0.03, 0.03, 0.05, 0.05])}), actors=2)
    everyone = _all(world, 2, 2)
    world.begin(everyone)
    seen = world.step(np.ones((2, 2, 1)), everyone).observation
    assert (seen[:, 0] == seen[:, 1]).all()
    assert (seen[0] != seen[1]).any()


def test_a_command_reaches_the_plant_after_its_delay() -> None:
    actions = np.random.default_rng(2).uniform(-1.0, 1.0, (12, 1, 1))
    shifted = np.concatenate((np.zeros((2, 1, 1)), actions[:-2]))
    late = _observed(_world([0], plant=Pendulum(delay_s=2 * PERIOD_S)), actions)
    assert late == pytest.approx(_observed(_world([0]), shifted), abs=1e-6)

    # A quarter of a period: the command before holds for that long.
    plant = Pendulum(delay_s=0.25 * PERIOD_S)
    seen = _observed(_world([0], plant=plant), actions)
    state: tuple[float, ...] = (0.0, 0.0)
    volts = [0.0, *(3.0 * actions[:, 0, 0]).tolist()]
    for before, after in itertools.pairwise(volts):
        state = advance(plant, state, (before,), 0.25 * PERIOD_S)
        state = advance(plant, state, (after,), 0.75 * PERIOD_S)
    assert seen[-1, 0, 1] * 30.0 == pytest.approx(state[1], abs=1e-4)


OFF: dict[str, object] = {
    "device.twin.sensor_zero": {"angle": 0.4, "velocity": -0.2},
    "limits.predicted": None,
}


@pytest.mark.parametrize("delay_s", [0.0, 0.5 * PERIOD_S])
def test_imperfections_and_errors_of_sensors_are_the_twin_s(delay_s: float) -> None:
    imperfect = {"backlash": 0.8, "dead_band": 0.1, "saturation": 2.0, "dry_friction": 0.5, "delay_s": delay_s}
    sets = {**OFF, **{f"device.twin.plant.{name}": value for name, value in imperfect.items()}}
    options = PlantOptions(set=sets, counts=True)
    config = load_plant_run("pendulum", options)
    assert config.device.twin is not None
    env = TwinEnv(config.rig, config.task, config.device.twin, config.rate_hz)
    world, one = PlantWorld(config, [0], [Role.PLANT_TRAIN], options=options), np.ones((1, 1), np.bool_)
    for _ in range(2):
        np.testing.assert_allclose(world.begin(one)[0, 0], env.reset(seed=0)[0], rtol=0.0, atol=1e-6)
        for action in np.random.default_rng(1).uniform(-1.0, 1.0, (40, 1)):
            stepped, seen = world.step(action[None, None], one), env.step(action.astype(np.float32))[0]
            # Around a switch within a period trials take more steps of integration than the twin: a count at times.
            np.testing.assert_allclose(stepped.observation[0, 0], seen, rtol=0.0, atol=1e-3 if delay_s else 1e-6)


def test_trials_may_differ_in_their_backlash() -> None:
    actions = np.random.default_rng(3).uniform(-1.0, 1.0, (20, 2, 1))
    widths = np.array([0.0, 1.2])
    together = _observed(_world([1, 2], plant=Pendulum().varied({"backlash": widths})), actions)
    none = _observed(_world([1]), actions[:, [0]])
    alone = _observed(_world([1], plant=Pendulum(backlash=1.2)), actions[:, [1]])
    assert (together[:, 0] == none[:, 0]).all()
    assert (together[:, 1] == alone[:, 0]).all()


def test_a_command_that_takes_longer_than_an_episode_never_arrives() -> None:
    actions = np.random.default_rng(4).uniform(-1.0, 1.0, (12, 1, 1))
    never = _observed(_world([0], plant=Pendulum(delay_s=1e9 * PERIOD_S)), actions)
    assert (never == _observed(_world([0]), np.zeros((12, 1, 1)))).all()


def test_trials_may_differ_in_their_delay() -> None:
    actions = np.random.default_rng(3).uniform(-1.0, 1.0, (12, 3, 1))
    delays = np.array([0.0, 0.005, 0.05])
    together = _observed(_world([1, 2, 3], plant=Pendulum().varied({"delay_s": delays})), actions)
    for trial, delay_s in enumerate(delays):
        alone = _observed(_world([1], plant=Pendulum(delay_s=float(delay_s))), actions[:, [trial]])
        assert alone[:, 0] == pytest.approx(together[:, trial], abs=1e-6)


def test_an_episode_ends_where_it_leaves_its_bounds() -> None:
    world = _world([0, 1], STRICT, end_outside=True)
    everyone = _all(world, 2)
    world.begin(everyone)
    ended = [False, False]
    for _ in range(20):
        stepped = world.step(np.array([1.0, 0.0]).reshape(2, 1, 1), everyone)
        ended = [a or b for a, b in zip(ended, stepped.terminated[:, 0].tolist(), strict=True)]
    assert ended == [True, False]
    assert stepped.truncated[1, 0]


def test_the_shield_acts_and_the_experience_has_what_it_let_through() -> None:
    world = _world([0, 1], STRICT, shield=True)
    everyone = _all(world, 2)
    world.begin(everyone)
    steps = [world.step(np.array([1.0, 0.0]).reshape(2, 1, 1), everyone) for _ in range(20)]
    intervened = np.array([step.intervened[:, 0] for step in steps])
    tripped = np.array([step.tripped[:, 0] for step in steps])
    applied = np.array([step.action[:, 0, 0] for step in steps])
    assert intervened[:, 0].any()
    assert 1 <= tripped[:, 0].sum() < intervened[:, 0].sum()
    assert not intervened[:, 1].any()
    assert (applied[~intervened[:, 0], 0] == 1.0).all()
    assert (applied[intervened[:, 0], 0] < 1.0).all()


def test_the_shield_measures_rates_from_the_command_and_not_from_what_noise_made_of_it() -> None:
    world = _world([0], {"limits.rate_per_s": {"voltage": 15.0}, "device.twin.actuator_noise": 0.3}, shield=True)
    everyone = _all(world, 1)
    world.begin(everyone)
    assert not any(world.step(np.zeros((1, 1, 1)), everyone).intervened.any() for _ in range(10))
    assert world.step(np.ones((1, 1, 1)), everyone).intervened.all()


def test_a_trip_counts_once_however_long_the_state_stays_outside() -> None:
    falling: dict[str, object] = {"task.start.angle": 1.57, "task.start.velocity": -0.7}  # gravity beats the brake
    world = _world([0], {**STRICT, **falling}, shield=True)
    everyone = _all(world, 1)
    world.begin(everyone)
    steps = [world.step(-np.ones((1, 1, 1)), everyone) for _ in range(5)]
    assert max(step.observation[0, 0, 1] for step in steps) < -1.0 / 30.0, "outside after every step"
    assert [bool(step.tripped[0, 0]) for step in steps] == [False, True, False, False, False]


def test_trials_count_trips_and_learn_from_the_applied_action() -> None:
    run = msgspec.convert(
        {
            "world": "plant:pendulum",
            "steps": 60,
            "random_steps": 30,
            "evaluation": {"every": 60, "episodes": 1},
            "options": {"shield": True, "set": {"task.episode_s": 0.4, **STRICT, **NARROW}},
            "learner": {"algorithm": "td3", "td3": {"hidden": [8], "batch": 8}},
        },
        StepRun,
    )
    together, alone = world_trials(run, [5, 6]), world_trials(run, [6])
    scores, same = together.advance(), alone.advance()
    assert scores.evaluation[1] == same.evaluation[0]
    assert scores.shield_counts is not None
    assert same.shield_counts is not None
    interventions, trips = scores.shield_counts.T
    assert (trips > 0).all()
    assert (interventions >= trips).all()
    assert (interventions < 60).all()
    assert scores.shield_counts[1].tolist() == same.shield_counts[0].tolist()
    unguarded = world_trials(msgspec.structs.replace(run, options={"set": {"task.episode_s": 0.4}}), [6])
    unguarded.train(20)
    changed = together.memories.rows[1, :20, 2] != unguarded.memories.rows[0, :20, 2]
    assert changed.any()
    assert not changed.all()


def test_another_world_may_take_its_place() -> None:
    run = msgspec.convert(
        {
            "world": "plant:pendulum",
            "steps": 20,
            "random_steps": 10,
            "evaluation": {"every": 20, "episodes": 2},
            "learner": {"algorithm": "td3", "td3": {"hidden": [8], "batch": 8}},
        },
        StepRun,
    )
    made: list[list[Role]] = []

    def make(roles: Sequence[Role]) -> World:
        made.append([*roles])
        return _world([0], actors=len(roles))

    assert np.isfinite(world_trials(run, [0], make).advance().evaluation).all()
    assert made == [[Role.PLANT_TRAIN], [Role.PLANT_EVAL] * 2]


@pytest.mark.parametrize(
    ("world", "options", "said"),
    [
        ("plant:pendulumm", {}, "no 'pendulumm'"),
        ("plant:pendulum", {"shielded": True}, "options of a plant: .*shielded"),
        ("plant:pendulum", {"set": {"rate_hzz": 3}}, "rate_hzz"),
        ("plant:pendulum", {"set": {"rig.previous_command": True}}, "previous command"),
        ("plant:pendulum", {"set": ESTIMATED, "counts": True}, "observation 'velocity' is estimated"),
    ],
)
def test_what_no_world_can_be_made_of_is_refused(world: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(NoSuchTask, match=said):
        spaces_of_world(StepRun(world, 10, options=options))


HIDDEN: dict[str, object] = {
    "task.inputs": [{"observation": "angle", "form": form, "lag": lag} for lag in (0, 2) for form in ("cos", "sin")]
}


@pytest.mark.parametrize("noise", [{}, NOISE])
def test_a_policy_sees_inputs_composed_of_what_the_rig_observes(noise: dict[str, object]) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 2, 1))
    world, plain = _world([4, 9], {**noise, **HIDDEN}), _world([4, 9], noise)
    assert world.spaces.n == 4
    everyone = _all(world, 2)
    first = plain.begin(everyone)[:, 0]
    shown, seen = _observed(world, actions), np.concatenate((first[None], _observed(_world([4, 9], noise), actions)))
    angle = np.pi * seen[..., 0].astype(np.float64)
    for lag, column in ((0, 0), (2, 2)):
        before = angle[np.maximum(np.arange(1, 21) - lag, 0)]
        np.testing.assert_allclose(shown[..., column], np.cos(before), atol=1e-6)
        np.testing.assert_allclose(shown[..., column + 1], np.sin(before), atol=1e-6)
    rewards = [w.step(actions[0][:, None], everyone).reward for w in (_begun(world), _begun(plain))]
    assert (rewards[0] == rewards[1]).all(), "the reward is that of what the rig observes"
    begun = world.begin(everyone)[:, 0]
    assert (begun[:, :2] == begun[:, 2:]).all(), "nothing is left of the episode before"


def _begun(world: PlantWorld) -> PlantWorld:
    world.begin(_all(world, 2))
    return world


SMOOTH: dict[str, object] = {
    "near": {"kind": "tolerance", "observation": "angle", "bounds": [-0.1, 0.1], "margin": 0.5},
    "turn": {"kind": "expression", "value": "cos(angle) - 0.1 * velocity**2 - abs(voltage - previous_voltage)"},
    "smooth": {"kind": "action_change", "actuator": "voltage", "weight": 0.5},
}


def test_terms_and_ends_are_those_of_the_twin_s_environment() -> None:
    ends: dict[str, object] = {
        "task.reward.terms": {**SMOOTH, "end": {"kind": "terminal", "reward": -4.0}},
        "task.terminations": {"fast": {"kind": "expression", "value": "abs(velocity) > 1", "reward": -100.0}},
    }
    config = load_plant_run("pendulum", PlantOptions(set=ends))
    assert config.device.twin is not None
    env = TwinEnv(config.rig, config.task, config.device.twin, config.rate_hz)
    options = PlantOptions(counts=True)
    world, one = PlantWorld(config, [0], [Role.PLANT_TRAIN], options=options), np.ones((1, 1), np.bool_)
    for episode in range(3):
        world.begin(one)
        env.reset(seed=episode)
        for action in np.random.default_rng(episode).uniform(0.0, 1.0, (200, 1)):
            stepped = world.step(action[None, None], one)
            _, reward, terminated, *_ = env.step(action.astype(np.float32))
            np.testing.assert_allclose(stepped.reward[0, 0], reward, rtol=1e-6)
            assert stepped.terminated[0, 0] == terminated
            if terminated:
                break
        assert terminated
        assert reward < -100.0


def test_complete_episodes_and_single_steps_pay_the_same() -> None:
    config = load_plant_run("pendulum", PlantOptions(set={"task.episode_s": 0.4, "task.reward.terms": SMOOTH}))
    worlds = [PlantWorld(config, [1, 2], [Role.PLANT_TRAIN], fixed_length=fixed) for fixed in (False, True)]
    for episode in np.random.default_rng(0).uniform(-1.0, 1.0, (2, 20, 2, 1, 1)):
        for world in worlds:
            world.begin(_all(world, 2))
        paid = [[world.step(action, _all(world, 2)).reward for action in episode] for world in worlds]
        assert np.array(paid[0]).tolist() == np.array(paid[1]).tolist()


def test_evaluations_count_the_steps_that_a_termination_cuts_off() -> None:
    sets: dict[str, object] = {"task.episode_s": 0.4, "task.terminate": {"velocity": [-1.0, 1.0]}, "limits": {}}
    rewards = []
    for cut_off in (False, True):
        options = PlantOptions(set=sets, cut_off=cut_off)
        config = load_plant_run("pendulum", options)
        world = PlantWorld(config, [0], [Role.PLANT_TRAIN, Role.PLANT_EVAL], options=options)
        world.begin(_all(world, 1, 2))
        steps = [world.step(np.ones((1, 2, 1)), _all(world, 1, 2)) for _ in range(9)]
        last = next(k for k, stepped in enumerate(steps) if stepped.terminated.any())
        assert steps[last].terminated.all()
        rewards.append(steps[last].reward[0])
    (train, evaluation), (_, counted) = rewards
    assert config.task.normalization is not None
    assert train == evaluation
    assert counted - evaluation == pytest.approx((19 - last) * config.task.normalization.random_reward)
    assert rewards[1][0] == train


@pytest.mark.parametrize(
    ("plants", "message"),
    [
        ({"gravity_per_s2": [20.0, 30.0], "damping_per_s": [0.3]}, "expected as many values of each parameter"),
        ({"colour": [1.0]}, "the plant has no parameter 'colour'"),
        ({"mass": [-1.0]}, "mass: expected"),
    ],
)
def test_plants_that_cannot_be_drawn_are_refused(plants: dict[str, list[float]], message: str) -> None:
    with pytest.raises(NoSuchTask, match=message):
        spaces_of_world(StepRun("plant:pendulum", 1, options={"plants": plants}))
