from __future__ import annotations

import itertools

from onrig.runtime.random_streams import Role, device_seed, stream


def test_a_stream_is_the_same_whenever_it_is_created() -> None:
    first = stream(3, Role.EXPLORATION, 8).standard_normal(5)
    stream(3, Role.SAMPLER, 8).standard_normal(100)
    assert stream(3, Role.EXPLORATION, 8).standard_normal(5).tolist() == first.tolist()


def test_each_seed_role_and_episode_has_its_own_stream() -> None:
    keys = list(itertools.product((0, 1, 2**40), Role, (0, 1, 2, 500)))
    first_numbers = {stream(*key).integers(1 << 62).item() for key in keys}
    assert len(first_numbers) == len(keys)


def test_device_seeds_differ_between_training_and_evaluation_and_between_episodes() -> None:
    keys = list(itertools.product((0, 1), (Role.PLANT_TRAIN, Role.PLANT_EVAL), range(50)))
    seeds = [device_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    assert max(seeds) > 1 << 60, "uses all of its 64 bits"


def test_the_streams_of_recorded_runs_are_reproduced() -> None:
    """The numbers of the roles, and the streams that numpy derives from them, are part of reproducibility."""
    assert {role.name: role.value for role in Role}.items() >= {
        "EXPLORATION": 1,
        "PLANT_TRAIN": 2,
        "PLANT_EVAL": 3,
        "KEEPER": 4,
        "SAMPLER": 5,
        "NETWORKS": 6,
        "PROBES": 7,
    }.items()
    assert device_seed(0, Role.PLANT_TRAIN, 1) == PINNED_DEVICE_SEED
    assert stream(5, Role.KEEPER).integers(1 << 62) == PINNED_SAMPLE


PINNED_DEVICE_SEED = 10236345654442229010
PINNED_SAMPLE = 3562946928196766480
