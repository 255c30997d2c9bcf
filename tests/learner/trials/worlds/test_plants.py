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
STRICT_LIMITS: dict[str, object] = {
    "limits.envelope": {"velocity": {"low": -1.0, "high": 1.0}},
    "limits.rate_per_s": {},
    "limits.predicted": None,
}
NARROW_LIMITS: dict[str, object] = {"limits.envelope": {"velocity": {"low": -0.2, "high": 0.2}}}
ESTIMATED_OBSERVATIONS: dict[str, object] = {
    "rig.observations": [
        {"name": "angle", "unit": "rad", "low": -3.2, "high": 3.2},
        {"name": "velocity", "unit": "rad/s", "low": -30.0, "high": 30.0, "derivative_of": "angle"},
    ],
    "limits.predicted": None,
}
PERIOD_S = 0.02


def _world(
    seeds: list[int],
    settings: dict[str, object] | None = None,
    *,
    actors: int = 1,
    shield: bool = False,
    plant: Pendulum | None = None,
    ends_outside: bool = False,
) -> PlantWorld:
    overrides = {"task.episode_s": 0.4, **(settings or {})}
    options = PlantOptions(set=overrides, shield=shield, end_outside=ends_outside)
    roles = [Role.PLANT_TRAIN] * actors
    return PlantWorld(load_plant_run("pendulum", options), seeds, roles, options=options, plant=plant)


def _all_actors(world: PlantWorld, trials: int, actors: int = 1) -> NDArray[np.bool_]:
    return np.ones((trials, actors), np.bool_)


def _observe(world: PlantWorld, actions: NDArray[np.float64]) -> NDArray[np.float32]:
    """Observations (T, S, n) under actions (T, S, m)."""
    everyone = _all_actors(world, actions.shape[1])
    world.begin(everyone)
    return np.array([world.step(action[:, None], everyone).observation[:, 0] for action in actions])


def test_an_actors_noise_depends_only_on_its_role_and_episode() -> None:
    config = load_plant_run("pendulum", PlantOptions(set={"task.episode_s": 0.4, **NOISE}))
    roles = [Role.PLANT_TRAIN, Role.PLANT_EVAL]
    joint = PlantWorld(config, [4, 9], roles)
    policy_distance = [PlantWorld(config, [9], [role]) for role in roles]
    rng, all_actors, single_actor = np.random.default_rng(0), np.ones((2, 2), np.bool_), np.ones((1, 1), np.bool_)
    noise_drawn = [stream(9, role, 1).standard_normal((21, 3)) * [0.02, 0.02, 0.05] for role in roles]
    for episode in (1, 2):
        observation = joint.begin(all_actors)
        single = [world.begin(single_actor) for world in policy_distance]
        for t in range(20):
            actions = rng.uniform(-1.0, 1.0, (2, 2, 1))
            for e in (0, 1):
                assert (observation[1, e] == single[e][0, 0]).all()
            result = joint.step(actions, all_actors)
            assert result.noise is not None
            for e, world in enumerate(policy_distance):
                single_result = world.step(actions[1:, [e]], single_actor)
                single[e] = single_result.observation
                assert single_result.reward[0, 0] == result.reward[1, e]
                assert (result.noise[1, e] == noise_drawn[e][t]).all() == (episode == 1)
            observation = result.observation
            assert result.truncated.all() == (t == 19)
        assert not result.terminated.any()


@pytest.mark.parametrize("name", ["pendulum", "pendulum-hidden", "magman"])
def test_with_counts_the_world_equals_the_twin_behind_its_protocol(name: str) -> None:
    config = load_plant_run(name, PlantOptions())
    assert config.device.twin is not None
    env = TwinEnv(config.rig, config.task, config.device.twin, config.rate_hz)
    worlds = [
        PlantWorld(config, [0], [Role.PLANT_TRAIN], options=PlantOptions(counts=counts)) for counts in (False, True)
    ]
    single_actor = np.ones((1, 1), np.bool_)
    starts = [world.begin(single_actor)[0, 0] for world in worlds]
    assert (starts[1] == env.reset(seed=0)[0]).all()
    n_different = 0.0
    for action in np.random.default_rng(1).uniform(-1.0, 1.0, (50, len(config.rig.actuators))):
        free_result, result = (world.step(action[None, None], single_actor) for world in worlds)
        observation, reward, *_ = env.step(action.astype(np.float32))
        np.testing.assert_allclose(result.observation[0, 0], observation, rtol=0.0, atol=1e-6)
        np.testing.assert_allclose(result.reward[0, 0], reward, rtol=1e-9)
        n_different = max(n_different, np.abs(free_result.observation[0, 0] - observation).max())
    assert n_different > 1e-5


def test_a_noisy_sensor_value_is_also_rounded_to_counts() -> None:
    config = load_plant_run("pendulum", PlantOptions(set=NOISE))
    world = PlantWorld(config, [0, 1], [Role.PLANT_TRAIN], options=PlantOptions(counts=True))
    everyone = _all_actors(world, 2)
    world.begin(everyone)
    half_range = np.array([o.high for o in config.rig.observations])  # they are symmetric
    resolution = np.array([s.resolution for s in config.rig.sensors])
    for _ in range(20):
        observation = world.step(np.full((2, 1, 1), 0.3), everyone).observation[:, 0].astype(np.float64)
        counts = observation * half_range / resolution
        np.testing.assert_allclose(counts, np.rint(counts), atol=1e-2)


def test_each_trial_has_its_own_plant() -> None:
    actions = np.random.default_rng(1).uniform(-1.0, 1.0, (15, 3, 1))
    lengths = np.array([0.03, 0.042, 0.05])
    joint = _observe(_world([1, 2, 3], plant=Pendulum().varied({"length": lengths})), actions)
    for trial, length in enumerate(lengths):
        single = _world([1], plant=Pendulum(length=float(length)))
        assert (_observe(single, actions[:, [trial]])[:, 0] == joint[:, trial]).all()
    assert (joint[-1, 0] != joint[-1, 2]).all()


def test_each_actor_has_its_own_plant() -> None:
    world = _world([1, 2], plant=Pendulum().varied({"length": np.array([0.03, 0.03, 0.05, 0.05])}), actors=2)
    everyone = _all_actors(world, 2, 2)
    world.begin(everyone)
    observation = world.step(np.ones((2, 2, 1)), everyone).observation
    assert (observation[:, 0] == observation[:, 1]).all()
    assert (observation[0] != observation[1]).any()


def test_a_command_reaches_the_plant_after_its_delay() -> None:
    actions = np.random.default_rng(2).uniform(-1.0, 1.0, (12, 1, 1))
    shifted_actions = np.concatenate((np.zeros((2, 1, 1)), actions[:-2]))
    late_observations = _observe(_world([0], plant=Pendulum(delay_s=2 * PERIOD_S)), actions)
    assert late_observations == pytest.approx(_observe(_world([0]), shifted_actions), abs=1e-6)

    # A quarter of a period: the previous command is in force for that long.
    plant = Pendulum(delay_s=0.25 * PERIOD_S)
    observation = _observe(_world([0], plant=plant), actions)
    state: tuple[float, ...] = (0.0, 0.0)
    volts = [0.0, *(3.0 * actions[:, 0, 0]).tolist()]
    for previous, current in itertools.pairwise(volts):
        state = advance(plant, state, (previous,), 0.25 * PERIOD_S)
        state = advance(plant, state, (current,), 0.75 * PERIOD_S)
    assert observation[-1, 0, 1] * 30.0 == pytest.approx(state[1], abs=1e-4)


NO_LIMITS: dict[str, object] = {
    "device.twin.sensor_zero": {"angle": 0.4, "velocity": -0.2},
    "limits.predicted": None,
}


@pytest.mark.parametrize("delay_s", [0.0, 0.5 * PERIOD_S])
def test_imperfections_and_sensor_errors_equal_the_twins(delay_s: float) -> None:
    imperfections = {"backlash": 0.8, "dead_band": 0.1, "saturation": 2.0, "dry_friction": 0.5, "delay_s": delay_s}
    settings = {**NO_LIMITS, **{f"device.twin.plant.{name}": value for name, value in imperfections.items()}}
    options = PlantOptions(set=settings, counts=True)
    config = load_plant_run("pendulum", options)
    assert config.device.twin is not None
    env = TwinEnv(config.rig, config.task, config.device.twin, config.rate_hz)
    world, single_actor = PlantWorld(config, [0], [Role.PLANT_TRAIN], options=options), np.ones((1, 1), np.bool_)
    for _ in range(2):
        np.testing.assert_allclose(world.begin(single_actor)[0, 0], env.reset(seed=0)[0], rtol=0.0, atol=1e-6)
        for action in np.random.default_rng(1).uniform(-1.0, 1.0, (40, 1)):
            result, observation = world.step(action[None, None], single_actor), env.step(action.astype(np.float32))[0]
            # Around a switch within a period trials take more integration steps than the twin: a count at times.
            np.testing.assert_allclose(result.observation[0, 0], observation, rtol=0.0, atol=1e-3 if delay_s else 1e-6)


def test_trials_may_differ_in_backlash() -> None:
    actions = np.random.default_rng(3).uniform(-1.0, 1.0, (20, 2, 1))
    widths = np.array([0.0, 1.2])
    joint = _observe(_world([1, 2], plant=Pendulum().varied({"backlash": widths})), actions)
    without_backlash = _observe(_world([1]), actions[:, [0]])
    single = _observe(_world([1], plant=Pendulum(backlash=1.2)), actions[:, [1]])
    assert (joint[:, 0] == without_backlash[:, 0]).all()
    assert (joint[:, 1] == single[:, 0]).all()


def test_a_command_delayed_beyond_an_episode_never_arrives() -> None:
    actions = np.random.default_rng(4).uniform(-1.0, 1.0, (12, 1, 1))
    never_acting = _observe(_world([0], plant=Pendulum(delay_s=1e9 * PERIOD_S)), actions)
    assert (never_acting == _observe(_world([0]), np.zeros((12, 1, 1)))).all()


def test_trials_may_differ_in_delay() -> None:
    actions = np.random.default_rng(3).uniform(-1.0, 1.0, (12, 3, 1))
    delays = np.array([0.0, 0.005, 0.05])
    joint = _observe(_world([1, 2, 3], plant=Pendulum().varied({"delay_s": delays})), actions)
    for trial, delay_s in enumerate(delays):
        single = _observe(_world([1], plant=Pendulum(delay_s=float(delay_s))), actions[:, [trial]])
        assert single[:, 0] == pytest.approx(joint[:, trial], abs=1e-6)


def test_an_episode_ends_when_it_leaves_its_bounds() -> None:
    world = _world([0, 1], STRICT_LIMITS, ends_outside=True)
    everyone = _all_actors(world, 2)
    world.begin(everyone)
    has_ended = [False, False]
    for _ in range(20):
        result = world.step(np.array([1.0, 0.0]).reshape(2, 1, 1), everyone)
        has_ended = [a or b for a, b in zip(has_ended, result.terminated[:, 0].tolist(), strict=True)]
    assert has_ended == [True, False]
    assert result.truncated[1, 0]


def test_the_shield_acts_and_the_experience_holds_the_applied_action() -> None:
    world = _world([0, 1], STRICT_LIMITS, shield=True)
    everyone = _all_actors(world, 2)
    world.begin(everyone)
    steps = [world.step(np.array([1.0, 0.0]).reshape(2, 1, 1), everyone) for _ in range(20)]
    has_intervened = np.array([step.intervened[:, 0] for step in steps])
    has_tripped = np.array([step.tripped[:, 0] for step in steps])
    applied_actions = np.array([step.action[:, 0, 0] for step in steps])
    assert has_intervened[:, 0].any()
    assert 1 <= has_tripped[:, 0].sum() < has_intervened[:, 0].sum()
    assert not has_intervened[:, 1].any()
    assert (applied_actions[~has_intervened[:, 0], 0] == 1.0).all()
    assert (applied_actions[has_intervened[:, 0], 0] < 1.0).all()


def test_the_shield_measures_rates_from_the_command_and_not_from_the_noisy_value() -> None:
    world = _world([0], {"limits.rate_per_s": {"voltage": 15.0}, "device.twin.actuator_noise": 0.3}, shield=True)
    everyone = _all_actors(world, 1)
    world.begin(everyone)
    assert not any(world.step(np.zeros((1, 1, 1)), everyone).intervened.any() for _ in range(10))
    assert world.step(np.ones((1, 1, 1)), everyone).intervened.all()


def test_a_trip_counts_once_however_long_the_state_remains_outside() -> None:
    falling_start: dict[str, object] = {
        "task.start.angle": 1.57,
        "task.start.velocity": -0.7,
    }  # gravity beats the brake
    world = _world([0], {**STRICT_LIMITS, **falling_start}, shield=True)
    everyone = _all_actors(world, 1)
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
            "options": {"shield": True, "set": {"task.episode_s": 0.4, **STRICT_LIMITS, **NARROW_LIMITS}},
            "learner": {"algorithm": "td3", "td3": {"hidden": [8], "batch": 8}},
        },
        StepRun,
    )
    joint, single = world_trials(run, [5, 6]), world_trials(run, [6])
    scores, single_scores = joint.advance(), single.advance()
    assert scores.evaluation[1] == single_scores.evaluation[0]
    assert scores.shield_counts is not None
    assert single_scores.shield_counts is not None
    interventions, trips = scores.shield_counts.T
    assert (trips > 0).all()
    assert (interventions >= trips).all()
    assert (interventions < 60).all()
    assert scores.shield_counts[1].tolist() == single_scores.shield_counts[0].tolist()
    unshielded = world_trials(msgspec.structs.replace(run, options={"set": {"task.episode_s": 0.4}}), [6])
    unshielded.train(20)
    overrides = joint.memories.rows[1, :20, 2] != unshielded.memories.rows[0, :20, 2]
    assert overrides.any()
    assert not overrides.all()


def test_another_world_can_be_substituted() -> None:
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
    roles_made: list[list[Role]] = []

    def make_world(roles: Sequence[Role]) -> World:
        roles_made.append([*roles])
        return _world([0], actors=len(roles))

    assert np.isfinite(world_trials(run, [0], make_world).advance().evaluation).all()
    assert roles_made == [[Role.PLANT_TRAIN], [Role.PLANT_EVAL] * 2]


@pytest.mark.parametrize(
    ("world", "options", "message"),
    [
        ("plant:pendulumm", {}, "no 'pendulumm'"),
        ("plant:pendulum", {"shielded": True}, "options of a plant: .*shielded"),
        ("plant:pendulum", {"set": {"rate_hzz": 3}}, "rate_hzz"),
        ("plant:pendulum", {"set": {"rig.previous_command": True}}, "previous command"),
        ("plant:pendulum", {"set": ESTIMATED_OBSERVATIONS, "counts": True}, "observation 'velocity' is estimated"),
    ],
)
def test_an_invalid_world_is_refused(world: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(NoSuchTask, match=message):
        spaces_of_world(StepRun(world, 10, options=options))


HIDDEN_INPUTS: dict[str, object] = {
    "task.inputs": [
        {"observation": "angle", "form": angle_form, "lag": lag} for lag in (0, 2) for angle_form in ("cos", "sin")
    ]
}


@pytest.mark.parametrize("noise", [{}, NOISE])
def test_a_policy_sees_inputs_composed_of_what_the_rig_observes(noise: dict[str, object]) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 2, 1))
    world, plain_world = _world([4, 9], {**noise, **HIDDEN_INPUTS}), _world([4, 9], noise)
    assert world.spaces.n == 4
    everyone = _all_actors(world, 2)
    first_observation = plain_world.begin(everyone)[:, 0]
    plain_observations, observation = (
        _observe(world, actions),
        np.concatenate((first_observation[None], _observe(_world([4, 9], noise), actions))),
    )
    angle = np.pi * observation[..., 0].astype(np.float64)
    for lag, column in ((0, 0), (2, 2)):
        lagged = angle[np.maximum(np.arange(1, 21) - lag, 0)]
        np.testing.assert_allclose(plain_observations[..., column], np.cos(lagged), atol=1e-6)
        np.testing.assert_allclose(plain_observations[..., column + 1], np.sin(lagged), atol=1e-6)
    rewards = [w.step(actions[0][:, None], everyone).reward for w in (_begin(world), _begin(plain_world))]
    assert (rewards[0] == rewards[1]).all(), "the reward is that of what the rig observes"
    begin_observation = world.begin(everyone)[:, 0]
    assert (begin_observation[:, :2] == begin_observation[:, 2:]).all(), "nothing remains of the previous episode"


def _begin(world: PlantWorld) -> PlantWorld:
    world.begin(_all_actors(world, 2))
    return world


SMOOTH_LIMITS: dict[str, object] = {
    "near": {"kind": "tolerance", "observation": "angle", "bounds": [-0.1, 0.1], "margin": 0.5},
    "turn": {"kind": "expression", "value": "cos(angle) - 0.1 * velocity**2 - abs(voltage - previous_voltage)"},
    "smooth": {"kind": "action_change", "actuator": "voltage", "weight": 0.5},
}


def test_terms_and_terminations_equal_those_of_the_twins_environment() -> None:
    terminations: dict[str, object] = {
        "task.reward.terms": {**SMOOTH_LIMITS, "end": {"kind": "terminal", "reward": -4.0}},
        "task.terminations": {"fast": {"kind": "expression", "value": "abs(velocity) > 1", "reward": -100.0}},
    }
    config = load_plant_run("pendulum", PlantOptions(set=terminations))
    assert config.device.twin is not None
    env = TwinEnv(config.rig, config.task, config.device.twin, config.rate_hz)
    options = PlantOptions(counts=True)
    world, single_actor = PlantWorld(config, [0], [Role.PLANT_TRAIN], options=options), np.ones((1, 1), np.bool_)
    for episode in range(3):
        world.begin(single_actor)
        env.reset(seed=episode)
        for action in np.random.default_rng(episode).uniform(0.0, 1.0, (200, 1)):
            result = world.step(action[None, None], single_actor)
            _, reward, terminated, *_ = env.step(action.astype(np.float32))
            np.testing.assert_allclose(result.reward[0, 0], reward, rtol=1e-6)
            assert result.terminated[0, 0] == terminated
            if terminated:
                break
        assert terminated
        assert reward < -100.0


def test_complete_episodes_and_single_steps_earn_the_same() -> None:
    config = load_plant_run("pendulum", PlantOptions(set={"task.episode_s": 0.4, "task.reward.terms": SMOOTH_LIMITS}))
    worlds = [PlantWorld(config, [1, 2], [Role.PLANT_TRAIN], fixed_length=fixed) for fixed in (False, True)]
    for episode in np.random.default_rng(0).uniform(-1.0, 1.0, (2, 20, 2, 1, 1)):
        for world in worlds:
            world.begin(_all_actors(world, 2))
        rewards = [[world.step(action, _all_actors(world, 2)).reward for action in episode] for world in worlds]
        assert np.array(rewards[0]).tolist() == np.array(rewards[1]).tolist()


def test_evaluations_count_the_steps_cut_off_by_a_termination() -> None:
    settings: dict[str, object] = {"task.episode_s": 0.4, "task.terminate": {"velocity": [-1.0, 1.0]}, "limits": {}}
    rewards = []
    for counts_cut_off in (False, True):
        options = PlantOptions(set=settings, cut_off=counts_cut_off)
        config = load_plant_run("pendulum", options)
        world = PlantWorld(config, [0], [Role.PLANT_TRAIN, Role.PLANT_EVAL], options=options)
        world.begin(_all_actors(world, 1, 2))
        steps = [world.step(np.ones((1, 2, 1)), _all_actors(world, 1, 2)) for _ in range(9)]
        last_step = next(k for k, result in enumerate(steps) if result.terminated.any())
        assert steps[last_step].terminated.all()
        rewards.append(steps[last_step].reward[0])
    (train, evaluation), (_, counted_rewards) = rewards
    assert config.task.normalization is not None
    assert train == evaluation
    assert counted_rewards - evaluation == pytest.approx((19 - last_step) * config.task.normalization.random_reward)
    assert rewards[1][0] == train


@pytest.mark.parametrize(
    ("plants", "message"),
    [
        ({"gravity_per_s2": [20.0, 30.0], "damping_per_s": [0.3]}, "expected the same number of values"),
        ({"colour": [1.0]}, "the plant has no parameter 'colour'"),
        ({"mass": [-1.0]}, "mass: expected"),
    ],
)
def test_plants_that_cannot_be_drawn_are_refused(plants: dict[str, list[float]], message: str) -> None:
    with pytest.raises(NoSuchTask, match=message):
        spaces_of_world(StepRun("plant:pendulum", 1, options={"plants": plants}))
