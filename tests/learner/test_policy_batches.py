from __future__ import annotations

import math

import numpy as np
import pytest

from onrig.learner.policy_batches import NextBatch, PolicyBatches, find_next_batch
from onrig.runtime.memory.layout import Flag, Layout
from onrig.runtime.memory.storage import Storage

LAYOUT = Layout(2, 1, behaviour=True)


def memory(capacity: int = 20, *, cyclic: bool = True) -> Storage:
    return Storage(capacity, LAYOUT, cyclic=cyclic)


def gather(storage: Storage, policy: int, episode: int, steps: range, flags: dict[int, Flag] | None = None) -> None:
    """Write steps of an episode, each from (episode, step) to the next; the step is also the drawn action."""
    for step in steps:
        storage.insert(
            storage.inserted % storage.capacity,
            (episode, step),
            (0.5,),
            -1.0 * step,
            (episode, step + 1),
            (flags or {}).get(step, Flag(0)),
            policy,
            episode=episode,
            step=step,
            behaviour=(0.0, 2.0, float(step)),
        )


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ([], NextBatch(0, False)),
        ([1, 1], NextBatch(0, False)),
        ([1, 1, 1], NextBatch(0, True)),
        ([1, 1, 2], NextBatch(2, False)),
        ([1, 1, 2, 2, 2, 2, 3], NextBatch(2, True)),
        ([2, 1, 1, 2, 2], NextBatch(3, False)),  # a rolled-back policy, and its predecessor
    ],
)
def test_a_batch_comes_from_one_policy_with_enough_experiences(policies: list[int], expected: NextBatch) -> None:
    assert find_next_batch(np.array(policies, np.uint32), 3) == expected


def test_experiences_gathered_during_learning_wait_until_another_policy_takes_over() -> None:
    storage = memory()
    batches = PolicyBatches(storage, 4)
    gather(storage, 1, 1, range(3))
    assert list(batches.take_complete()) == []
    gather(storage, 1, 1, range(3, 6))
    ((batch, first_id),) = batches.take_complete()
    assert first_id == 0
    assert batch.observation[0, 0, :, 1].tolist() == [0, 1, 2, 3]
    assert batches.n_dropped == 0
    gather(storage, 1, 2, range(2))  # still the same policy: with the two left over, there are four
    ((batch, _),) = batches.take_complete()
    assert batch.observation[0, 0].tolist() == [[1, 4], [1, 5], [2, 0], [2, 1]]
    gather(storage, 1, 2, range(2, 4))
    gather(storage, 2, 2, range(4, 8))
    ((batch, first_id),) = batches.take_complete()
    assert (batch.observation[0, 0, :, 1].tolist(), first_id) == ([4, 5, 6, 7], 10)
    assert (batches.n_learned, batches.n_dropped) == (3, 2)


def test_a_chain_ends_at_the_end_of_the_episode_and_at_a_missing_experience() -> None:
    storage = memory()
    gather(storage, 7, 1, range(2), {1: Flag.TRUNCATED})
    gather(storage, 7, 2, range(2))
    gather(storage, 7, 2, range(3, 5), {4: Flag.TERMINATED})
    gather(storage, 7, 3, range(2))
    gather(storage, 7, 3, range(2))  # ended early by a fault, and restarted under the same number
    ((batch, _),) = PolicyBatches(storage, 10).take_complete()
    assert np.flatnonzero(batch.truncated).tolist() == [1, 3, 7]
    assert np.flatnonzero(batch.terminated).tolist() == [5]
    assert batch.next_observation[0, 0, 3].tolist() == [2, 2]
    assert batch.reward[0, 0].tolist() == [0, -1, 0, -1, -3, -4, 0, -1, 0, -1]


def test_actions_have_their_recorded_density_and_those_of_others_are_marked() -> None:
    storage = memory()
    gather(storage, 1, 1, range(4), {2: Flag.DEVIATES | Flag.INTERVENED})
    storage.behaviour[3, 1] = 0.0  # no noise at all
    storage.meta[3] |= Flag.DEVIATES
    batches = PolicyBatches(storage, 4)
    ((batch, _),) = batches.take_complete()
    assert batch.drawn[0, 0, :, 0].tolist() == [0, 1, 2, 3]
    assert batch.log_pi is not None
    log_density_at_mean = -math.log(2.0 * math.sqrt(2.0 * math.pi))
    np.testing.assert_allclose(batch.log_pi[0, 0, :2], [log_density_at_mean, log_density_at_mean - 0.125])
    assert batch.overridden[0, 0].tolist() == [False, False, True, True]
    assert batches.n_deviating == 2


def test_experiences_missing_from_the_memory_are_left_out() -> None:
    storage = memory(6)
    batches = PolicyBatches(storage, 4)
    gather(storage, 1, 1, range(3))
    assert list(batches.take_complete()) == []
    gather(storage, 1, 1, range(3, 8))
    ((batch, _),) = batches.take_complete()
    assert batch.observation[0, 0, :, 1].tolist() == [2, 3, 4, 5]
    assert batches.n_dropped == 2
    for unsuitable in (memory(3), memory(cyclic=False)):
        with pytest.raises(ValueError, match="cannot hold 4 in insertion order"):
            PolicyBatches(unsuitable, 4)


def test_it_resumes_where_it_was_and_takes_nothing_twice_from_an_older_memory() -> None:
    storage = memory()
    original = PolicyBatches(storage, 4)
    gather(storage, 1, 1, range(6))
    assert len(list(original.take_complete())) == 1
    resumed, returned_batches, restarted = (PolicyBatches(storage, 4) for _ in range(3))
    for either in (resumed, returned_batches):
        either.restore(original.state())
    restarted.skip_stored()
    returned_batches.rewind(3)
    gather(storage, 1, 1, range(6, 8))
    assert [batch.observation[0, 0, :, 1].tolist() for batch, _ in resumed.take_complete()] == [[4, 5, 6, 7]]
    assert [batch.observation[0, 0, :, 1].tolist() for batch, _ in returned_batches.take_complete()] == [[4, 5, 6, 7]]
    assert list(restarted.take_complete()) == []
    assert resumed.state() == {"position": pytest.approx([8, 2, 0, 0, 1, 7])}


def test_episodes_of_another_run_are_not_mistaken_for_those_of_a_batch() -> None:
    storage = memory()
    original = PolicyBatches(storage, 4)
    gather(storage, 1, 500, range(6))
    assert len(list(original.take_complete())) == 1
    other = memory()
    batches = PolicyBatches(other, 4)
    batches.restore(original.state())
    batches.skip_stored()
    gather(other, 1, 1, range(5))
    assert len(list(batches.take_complete())) == 1
    gather(other, 1, 2, range(4))
    batches.skip_stored()
    gather(other, 1, 2, range(4, 8))
    assert [batch.observation[0, 0, :, 1].tolist() for batch, _ in batches.take_complete()] == [[4, 5, 6, 7]]


def test_states_of_earlier_versions_are_read() -> None:
    storage = memory()
    batches = PolicyBatches(storage, 4)
    batches.restore({"position": np.array([3, 1, 0, 0])})
    gather(storage, 1, 1, range(8))
    assert [batch.observation[0, 0, :, 1].tolist() for batch, _ in batches.take_complete()] == [[3, 4, 5, 6]]


def test_experiences_without_a_policy_are_refused() -> None:
    with pytest.raises(ValueError, match="do not record their behaviour policies"):
        PolicyBatches(Storage(20, Layout(2, 1)), 4)
