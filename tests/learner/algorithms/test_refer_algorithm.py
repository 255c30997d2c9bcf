"""Common properties of DDPG, NAF and V-RACER under ReF-ER, and of ACER."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.algorithms import Gaussian
from onrig.runtime.policy.admission import AdmissionLimits, Admitted, admit
from onrig.runtime.policy.contract import GAUSSIAN, contract_for
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.policy.session import PolicySession
from tests.learner.algorithms.refer_algorithms import CAPACITY, TEST_RIG, WINDOW, RandomMemory, make_algorithm

CASES: dict[str, dict[str, Any]] = {
    "ddpg": {},
    "naf": {"algorithm": "naf", "hidden": [9, 7]},
    "naf, beta on all": {"algorithm": "naf", "hidden": [9], "beta_on": "all"},
    "vracer": {"algorithm": "vracer", "hidden": [9, 7]},
    "vracer, quadratic": {"algorithm": "vracer", "hidden": [9], "advantage": "quadratic", "retrace_every": 1},
    "vracer, gaussian": {"algorithm": "vracer", "hidden": [9], "advantage": "gaussian"},
}
ACER: dict[str, Any] = {"algorithm": "acer", "hidden": [9, 7], "segment": 7}
RECURRENT: dict[str, Any] = {"algorithm": "vracer", "recurrent": {"units": [8, 4], "window": WINDOW}}
WITH_RULES = pytest.mark.parametrize("section", [*CASES.values(), RECURRENT], ids=[*CASES, "vracer, recurrent"])
ALL_ALGORITHMS = pytest.mark.parametrize(
    "section", [*CASES.values(), RECURRENT, ACER], ids=[*CASES, "vracer, recurrent", "acer"]
)
WITHOUT_RECURRENCE = pytest.mark.parametrize("section", [*CASES.values(), ACER], ids=[*CASES, "acer"])


@ALL_ALGORITHMS
@pytest.mark.parametrize("rules", ["both", "none"])
def test_a_trial_is_bit_identical_among_others_and_alone(section: dict[str, Any], rules: str) -> None:
    joint_memory, single_memory = RandomMemory(3), RandomMemory(1, first_trial=2)
    joint = make_algorithm(joint_memory, dict(section), {"rules": rules})
    single = make_algorithm(single_memory, dict(section), {"rules": rules}, first_trial=2)
    td = joint.update(joint_memory.draws(12, 8)).td
    assert np.array_equal(single.update(single_memory.draws(12, 8)).td[:, 0], td[:, 2])
    observation = np.random.default_rng(5).uniform(-1, 1, (3, 2, 3))
    for joint_part, single_part in zip(
        joint.distribution(observation), single.distribution(observation[2:]), strict=True
    ):
        assert np.array_equal(joint_part[2], single_part[0])
    for name, column in single_memory.notes.state().items():
        assert np.array_equal(column[0], joint_memory.notes.state()[name][2]), name
    assert np.array_equal(single.divergence()[0], joint.divergence()[2])


@ALL_ALGORITHMS
def test_a_restored_learner_continues_bit_for_bit(section: dict[str, Any]) -> None:
    first_memory, second_memory = RandomMemory(2), RandomMemory(2)
    original, restored = (
        make_algorithm(first_memory, dict(section), {}),
        make_algorithm(second_memory, dict(section), {}, first_trial=9),
    )
    original.update(first_memory.draws(11, 8))
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **original.state())
    file.seek(0)
    with np.load(file, allow_pickle=False) as state:
        restored.restore(state)
    second_memory.notes.restore(first_memory.notes.state())
    assert np.array_equal(original.update(first_memory.draws(5, 8)).td, restored.update(second_memory.draws(5, 8)).td)
    for name, values in original.state().items():
        assert np.array_equal(values, restored.state()[name]), name


@WITH_RULES
def test_far_experiences_contribute_only_the_gradient_of_the_divergence(section: dict[str, Any]) -> None:
    def learn_once(rules: str | int, reward: float) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        memory = RandomMemory(1)
        memory.mean[:] = memory.drawn[:] = 3.0  # far from every policy initially
        memory.reward[:] *= reward
        algorithm = make_algorithm(memory, dict(section), {"rules": rules, "standardise": False})
        mean_before, _ = algorithm.distribution(memory.observation)
        algorithm.update(memory.draws(20, 8))
        assert algorithm.divergence()[0, 1] == 1.0
        return mean_before.copy(), algorithm.distribution(memory.observation)[0]

    mean_before, masked_mean = learn_once(1, 1.0)
    assert np.array_equal(mean_before, masked_mean)
    _, mixed_mean = learn_once("both", 1.0)
    assert np.array_equal(mixed_mean, learn_once("both", 100.0)[1])
    assert np.abs(mixed_mean - mean_before).max() > 1e-4


@WITHOUT_RECURRENCE
def test_actions_of_the_current_policy_have_a_ratio_of_one_and_no_divergence(section: dict[str, Any]) -> None:
    memory = RandomMemory(1)
    algorithm = make_algorithm(memory, {**section, "batch": CAPACITY}, {"standardise": False})
    noise = np.random.default_rng(4).standard_normal(memory.drawn.shape)
    memory.mean[:], memory.std[:] = algorithm.distribution(memory.observation)
    memory.drawn[:] = memory.mean + memory.std * noise
    algorithm.update(memory.draws(1, CAPACITY))
    np.testing.assert_allclose(memory.notes.stored_column(0, "rho"), 1.0, atol=1e-5)
    np.testing.assert_allclose(memory.notes.stored_column(0, "kl"), 0.0, atol=1e-6)
    np.testing.assert_allclose(algorithm.divergence(), 0.0, atol=1e-6)


@WITHOUT_RECURRENCE
def test_ratios_use_the_actions_as_drawn_before_any_clipping(section: dict[str, Any]) -> None:
    memory = RandomMemory(1)
    algorithm = make_algorithm(memory, {**section, "batch": CAPACITY}, {"standardise": False, "std": 0.7})
    memory.std[:], memory.drawn[:] = 0.6, 3.0 * memory.drawn
    assert (np.abs(memory.drawn) > 1.0).mean() > 0.3
    mean, std = (np.asarray(part[0], np.float64) for part in algorithm.distribution(memory.observation))
    algorithm.update(memory.draws(1, CAPACITY))
    mean_behaviour, drawn_action = (np.asarray(part[0], np.float64) for part in (memory.mean, memory.drawn))
    log_ratio = -0.5 * (((drawn_action - mean) / std) ** 2 - ((drawn_action - mean_behaviour) / 0.6) ** 2) - np.log(
        std / 0.6
    )
    expected = np.exp(np.clip(log_ratio.sum(axis=1), -7.0, 7.0))
    np.testing.assert_allclose(memory.notes.stored_column(0, "rho"), expected, rtol=1e-4)


@ALL_ALGORITHMS
def test_a_change_of_an_action_by_the_shield_is_part_of_the_environment(section: dict[str, Any]) -> None:
    """An experience whose action was replaced is as near as any other, and is learned from in the same way."""
    own_memory, other_memory = RandomMemory(1), RandomMemory(1)
    other_memory.overridden[0, ::2] = True
    first, second = (make_algorithm(memory, dict(section), {}) for memory in (own_memory, other_memory))
    first.update(own_memory.draws(12, 8))
    second.update(other_memory.draws(12, 8))
    assert np.array_equal(own_memory.notes.stored_column(0, "rho"), other_memory.notes.stored_column(0, "rho"))
    for name, values in first.state().items():
        assert np.array_equal(values, second.state()[name]), name


@WITHOUT_RECURRENCE
def test_states_are_standardised_once_and_rewards_by_their_size(section: dict[str, Any]) -> None:
    memory = RandomMemory(2)
    memory.observation[:] = 5.0 + 3.0 * memory.observation
    memory.reward[1] *= 7.0
    algorithm = make_algorithm(memory, dict(section), {})
    algorithm.update(memory.draws(1, 8))
    inputs = algorithm.forward(lambda tape, x, _: algorithm._inputs(x), 3, 3)(memory.observation)
    np.testing.assert_allclose(inputs.mean(axis=1), 0.0, atol=1e-5)
    np.testing.assert_allclose(inputs.std(axis=1), 1.0, atol=1e-5)
    sizes = np.sqrt(np.square(memory.reward.astype(np.float64)).mean(axis=1))
    scale = np.asarray(algorithm.state()["reward_scale"], np.float64)[:, 0, 0]
    np.testing.assert_allclose(scale, 1.0 / sizes, rtol=1e-6)
    reward_centre = algorithm.state()["centre"]
    memory.observation[:] = 0.0
    algorithm.update(memory.draws(1, 8))
    assert np.array_equal(algorithm.state()["centre"], reward_centre)


@WITHOUT_RECURRENCE
def test_its_model_has_torchs_distribution_and_is_admitted(section: dict[str, Any]) -> None:
    memory = RandomMemory(1)
    algorithm = make_algorithm(memory, dict(section), {})
    assert isinstance(algorithm, Gaussian)
    algorithm.update(memory.draws(20, 8))
    contract = contract_for(TEST_RIG, 50.0, policy_id=1, parent_run="", training_step=0, behaviour=GAUSSIAN)
    model = algorithm.policy_graph(0, contract)
    rng = np.random.default_rng(2)
    normalised_states = rng.uniform(-1.5, 1.5, (50, 3))
    session = PolicySession(model)
    assert session.noise is not None
    mean, std = (values[0] for values in algorithm.distribution(normalised_states[None]))
    for k, noise in enumerate(np.clip(rng.standard_normal((50, 2)), -3, 3).astype(np.float32)):
        action, *ports = np.reshape(session.act((*(1.0 + 3.0 * normalised_states[k]), *noise)), (4, -1))
        drawn_action = mean[k] + std[k] * noise
        np.testing.assert_allclose(np.array(ports), np.array((mean[k], std[k], drawn_action)), atol=2e-5)
        np.testing.assert_allclose((action - (0.0, 0.3)) / (3.0, 0.3), np.clip(drawn_action, -1, 1), atol=2e-5)
    probes = probe_states(contract, 64, seed=0)
    assert isinstance(admit(model, contract, probes, AdmissionLimits(latency_is_advisory=True)), Admitted)


@ALL_ALGORITHMS
@pytest.mark.parametrize("kl", ["mu_pi", "pi_mu"])
def test_actions_without_policy_noise_do_no_harm(section: dict[str, Any], kl: str) -> None:
    """As in quiet episodes, and once a budget is spent."""
    memory = RandomMemory(1)
    memory.std[0, ::2], memory.drawn[0, ::2] = 0.0, memory.mean[0, ::2]
    algorithm = make_algorithm(memory, dict(section), {"kl": kl})
    algorithm.update(memory.draws(5, 8))
    assert np.isfinite(algorithm.policy(memory.observation)).all()
    assert np.isfinite(algorithm.divergence()).all()


@ALL_ALGORITHMS
def test_unsupported_inputs_are_refused(section: dict[str, Any]) -> None:
    memory = RandomMemory(1)
    algorithm = make_algorithm(memory, dict(section), {})
    with pytest.raises(ValueError, match="observations and actions of shape"):
        algorithm.update(memory.draws(1, 7))
    with pytest.raises(ValueError, match=r"of shape .*, expected"):
        algorithm.restore(make_algorithm(RandomMemory(2), dict(section), {}).state())
