from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.learner.networks import (
    FLAT_MULTIPLE,
    NETWORK_SIZES,
    OUTPUT_INIT,
    Layout,
    critic_layout,
    initial_vector,
    mlp_layout,
    split_layers,
)


@pytest.mark.parametrize(
    ("size", "n_actions", "actor", "critic"),
    [
        ("small", 1, 2751, 3791),
        ("small", 4, 2904, 3941),
        ("ddpg_original", 1, 121801, 122101),
        ("ddpg_original", 4, 122704, 123001),
    ],
)
def test_parameter_counts_are_those_of_table_8(size: str, n_actions: int, actor: int, critic: int) -> None:
    hidden = NETWORK_SIZES[size]
    assert mlp_layout(2, n_actions, hidden.actor).n_parameters == actor
    assert critic_layout(2, n_actions, hidden.critic).n_parameters == critic


@pytest.mark.parametrize(("size", "parameters"), [("small", 4035), ("ddpg_original", 126015)])
def test_a_dqn_network_has_the_hidden_layers_of_the_critic_and_an_output_per_level(size: str, parameters: int) -> None:
    # 2-50-50-20-15: 150 + 2550 + 1020 + 315; 2-400-300-15: 1200 + 120300 + 4515.
    assert mlp_layout(2, 15, NETWORK_SIZES[size].critic).n_parameters == parameters


def layouts() -> st.SearchStrategy[Layout]:
    sizes = st.integers(1, 6)
    return st.one_of(
        st.builds(mlp_layout, sizes, sizes, st.lists(sizes, max_size=3)),
        st.builds(critic_layout, sizes, sizes, st.lists(sizes, min_size=2, max_size=4)),
    )


@settings(max_examples=40)
@given(layout=layouts(), trials=st.integers(1, 3), seed=st.integers(0, 99))
def test_plain_vectors_survive_the_flat_vector(layout: Layout, trials: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((trials, layout.n_parameters)).astype(np.float32)
    flat = torch.full((layout.flat_size(trials),), torch.nan)
    layout.write(flat, vectors, trials)
    assert np.array_equal(layout.read(flat, trials), vectors)
    assert len(flat) % FLAT_MULTIPLE == 0
    assert int(layout.trainable(trials).sum()) == trials * layout.n_parameters
    # Everything that is not a parameter is 0, except for one constant unit per hidden layer.
    fixed = flat[layout.trainable(trials) == 0]
    assert set(fixed.tolist()) <= {0.0, 1.0}
    assert int(fixed.sum()) == trials * (len(layout.layers) - 1)


def test_the_weight_mask_leaves_out_exactly_the_biases() -> None:
    layout = critic_layout(2, 4, (5, 3, 2))
    flat = torch.zeros(layout.flat_size(1))
    layout.write(flat, np.arange(1.0, layout.n_parameters + 1)[None], 1)
    biases = np.concatenate([bias for _, bias in split_layers(layout, np.arange(1.0, layout.n_parameters + 1))])
    masked = flat[(layout.trainable(1) - layout.weights(1)) == 1]
    assert sorted(masked.tolist()) == sorted(biases.tolist())
    assert len(biases) == 5 + 3 + 2 + 1


def test_vectors_of_another_shape_are_refused() -> None:
    layout = mlp_layout(2, 1, (50, 50))
    with pytest.raises(ValueError, match=r"expected \(2, 2751\)"):
        layout.write(torch.zeros(layout.flat_size(2)), np.zeros((2, 2750)), 2)


def test_a_critic_without_a_second_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="two hidden layers"):
        critic_layout(2, 1, (50,))


def test_initial_hidden_layers_are_glorot_uniform_and_outputs_small() -> None:
    layout = critic_layout(2, 1, NETWORK_SIZES["small"].critic)
    layers = split_layers(layout, initial_vector(layout, np.random.default_rng(0)))
    for weight, bias in layers[:-1]:
        bound = np.sqrt(6.0 / sum(weight.shape))
        assert 0.9 * bound < np.abs(weight).max() <= bound
        assert not bias.any()
    weight, bias = layers[-1]
    assert 0.5 * OUTPUT_INIT < np.abs(weight).max() <= OUTPUT_INIT
    assert 0 < np.abs(bias).max() <= OUTPUT_INIT
