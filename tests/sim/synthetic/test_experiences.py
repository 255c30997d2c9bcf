from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.settings import Synthetic
from onrig.runtime.memory.transitions import Transitions
from onrig.sim.synthetic.experiences import Draws, episode_draws, resynthesise
from tests.runtime.replay.chi_square import follows_distribution
from tests.runtime.samples import MAGMAN, PENDULUM
from tests.sim.synthetic.samples import RUNS, draws, measured, model_of, rows_equal

Floats = npt.NDArray[np.floating]


def policy(rows: npt.NDArray[np.int64], observations: npt.NDArray[np.float32]) -> Floats:
    """Some policy; only its first component acts."""
    wish: Floats = np.tanh(2.0 * observations[:, :1] - 0.3)
    return wish


def four_coils(rows: npt.NDArray[np.int64], observations: npt.NDArray[np.float32]) -> Floats:
    return np.repeat(policy(rows, observations), 4, axis=1)


def altered(synthetic: Synthetic, n: int = 4000, noise: float = 0.0) -> tuple[Transitions, Transitions]:
    before = measured(PENDULUM, n)
    signal = np.full((n, 1), noise)
    return before, resynthesise(synthetic, model_of(PENDULUM), before, draws(PENDULUM, n), signal, policy).transitions


def is_synthetic(t: Transitions) -> npt.NDArray[np.bool_]:
    flagged: npt.NDArray[np.bool_] = (t.flags & Flag.SYNTHETIC) != 0
    return flagged


@pytest.mark.parametrize(("states", "actions"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.5), (0.3, 0.6), (0.5, 0.5)])
def test_the_configured_fractions_of_states_and_actions_are_redrawn_and_the_rest_is_as_measured(
    states: float, actions: float
) -> None:
    before, after = altered(Synthetic(states=states, actions=actions))
    new_state = (before.observation != after.observation).any(axis=1)
    new_action = (before.action != after.action).any(axis=1) & ~new_state
    counts = np.array([new_state.sum(), new_action.sum(), (~new_state & ~new_action).sum()])
    law = np.array([states, actions, 1 - states - actions])
    assert (counts[law < 1e-9] == 0).all()
    assert (np.abs(counts - 4000 * law) < 4.5 * np.sqrt(4000 * law * (1 - law)) + 1).all()
    assert (is_synthetic(after) == (new_state | new_action)).all()
    assert (rows_equal(before, after) == ~is_synthetic(after)).all()


def test_new_states_and_new_actions_are_uniform_over_their_ranges() -> None:
    _, states = altered(Synthetic(states=1.0))
    _, actions = altered(Synthetic(actions=1.0))
    for values in (states.observation[:, 0], states.observation[:, 1], actions.action[:, 0]):
        counts, _ = np.histogram(values, bins=20, range=(-1, 1))
        assert counts.sum() == 4000
        assert follows_distribution(counts, np.ones(20))


@pytest.mark.parametrize("noise", [0.0, 0.4, -1.5])
def test_in_a_new_state_the_policy_acts_with_the_exploration_of_that_tick(noise: float) -> None:
    _, after = altered(Synthetic(states=1.0), 200, noise)
    wish = policy(np.arange(200), after.observation)
    np.testing.assert_allclose(after.action, np.clip(wish + noise, -1, 1), atol=1e-6)
    np.testing.assert_allclose(after.exploration, np.abs(after.action - wish)[:, 0], atol=1e-6)


def test_a_new_action_leaves_the_state_and_counts_as_explored_by_its_distance_from_the_policys() -> None:
    before, after = altered(Synthetic(actions=1.0), 200, 0.4)
    assert (before.observation == after.observation).all()
    wish = policy(np.arange(200), before.observation)
    np.testing.assert_allclose(after.exploration, np.abs(after.action - wish)[:, 0], atol=1e-6)


def test_exploration_is_the_sum_over_the_actuators() -> None:
    before = measured(MAGMAN, 50)
    noise = np.zeros((50, 4))
    after = resynthesise(
        Synthetic(actions=1.0), model_of(MAGMAN), before, draws(MAGMAN, 50), noise, four_coils
    ).transitions
    wish = four_coils(np.arange(50), before.observation)
    np.testing.assert_allclose(after.exploration, np.abs(after.action - wish).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("synthetic", [Synthetic(states=1.0), Synthetic(actions=1.0)])
def test_the_outcome_is_the_models_for_the_stored_state_and_action(synthetic: Synthetic) -> None:
    _, after = altered(synthetic, 300, 0.2)
    outcome = model_of(PENDULUM)(after.observation, after.action)
    assert (after.next_observation == outcome.next_observation).all()
    assert (after.reward == outcome.reward).all()


def test_a_synthetic_transition_is_neither_terminal_nor_an_intervention_and_keeps_its_policy() -> None:
    before = measured(PENDULUM, 20)
    before.flags[:] = int(Flag.TRUNCATED | Flag.INTERVENED | Flag.TERMINATED)
    offer = resynthesise(
        Synthetic(states=1.0), model_of(PENDULUM), before, draws(PENDULUM, 20), np.zeros((20, 1)), policy
    )
    assert offer.transitions.flags.tolist() == [Flag.SYNTHETIC] * 20
    assert offer.transitions.policy_id.tolist() == [7] * 20
    assert before.flags.tolist() == [7] * 20, "the measured transitions are unchanged"


def test_without_its_policy_a_transition_remains_as_measured() -> None:
    def forgotten(rows: npt.NDArray[np.int64], observations: npt.NDArray[np.float32]) -> Floats:
        return np.where((rows % 2 == 0)[:, None], np.nan, policy(rows, observations))

    before = measured(PENDULUM, 40)
    offer = resynthesise(
        Synthetic(states=0.5, actions=0.5),
        model_of(PENDULUM),
        before,
        draws(PENDULUM, 40),
        np.zeros((40, 1)),
        forgotten,
    )
    assert is_synthetic(offer.transitions).tolist() == [False, True] * 20
    assert rows_equal(before, offer.transitions).tolist() == [True, False] * 20


@pytest.mark.parametrize("refresh", [0.0, 0.25, 1.0])
def test_a_write_renews_its_slot_with_the_refresh_probability(refresh: float) -> None:
    offer = resynthesise(
        Synthetic(0.2, 0.2, refresh), model_of(PENDULUM), measured(PENDULUM, 4000), draws(PENDULUM, 4000),
        np.zeros((4000, 1)), policy,
    )  # fmt: skip
    spread = 4.5 * np.sqrt(4000 * refresh * (1 - refresh))
    assert abs(int(offer.may_overwrite.sum()) - 4000 * refresh) <= spread
    both = offer.may_overwrite & is_synthetic(offer.transitions)
    assert abs(int(both.sum()) - 4000 * refresh * 0.4) <= 200, "renewal and alteration are drawn independently"


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(RUNS)),
    st.integers(1, 60),
    st.lists(st.integers(0, 60), max_size=5),
    st.sampled_from([Synthetic(states=0.3), Synthetic(actions=0.4, refresh=0.5), Synthetic(0.3, 0.3, 0.1)]),
)
def test_the_batching_of_transitions_does_not_matter(name: str, n: int, cuts: list[int], synthetic: Synthetic) -> None:
    config, act = RUNS[name], policy if name == "pendulum" else four_coils
    before, numbers = measured(config, n), draws(config, n)
    noise = np.random.default_rng(5).uniform(-1, 1, (n, len(config.rig.actuators)))
    model = model_of(config)
    whole = resynthesise(synthetic, model, before, numbers, noise, act)
    edges = [0, *sorted(min(c, n) for c in cuts), n]
    for a, b in itertools.pairwise(edges):
        part = Transitions(*(column[a:b] for column in before))  # type: ignore[arg-type]
        piece = resynthesise(synthetic, model, part, Draws(*(d[a:b] for d in numbers)), noise[a:b], act)
        same = Transitions(*(column[a:b] for column in whole.transitions))  # type: ignore[arg-type]
        assert rows_equal(piece.transitions, same).all()
        assert (piece.may_overwrite == whole.may_overwrite[a:b]).all()


def test_an_episodes_random_numbers_are_its_own_and_reproducible() -> None:
    first, again = episode_draws(3, 8, 200, 2, 1), episode_draws(3, 8, 200, 2, 1)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert [d.shape for d in first] == [(200,), (200,), (200, 2), (200, 1)]
    others = [episode_draws(3, 9, 200, 2, 1), episode_draws(4, 8, 200, 2, 1)]
    assert all((a != b).all() for other in others for a, b in zip(first, other, strict=True))
