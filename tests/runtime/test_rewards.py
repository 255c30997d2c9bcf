from __future__ import annotations

import hypothesis.extra.numpy as hnp
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.rewards import Distance, Effort, RewardTerm, TermFailed, Transitions, build_term_reward, probe_points
from onrig.runtime.scoring import early_end
from onrig.runtime.task import Reward, Task, batched_reward, compile_base_reward, compile_reward
from onrig.runtime.task_checks import task_problems
from tests.runtime.samples import PENDULUM
from tests.runtime.third_party import DefectiveTerm

RIG, TASK = PENDULUM.rig, PENDULUM.task


def task_with_terms(**terms: RewardTerm) -> Task:
    reward = msgspec.structs.replace(TASK.reward, terms=terms)
    return msgspec.structs.replace(TASK, reward=reward)


FORM_AND_TERMS = task_with_terms(sine=DefectiveTerm(), far=Distance("velocity", 0.1, 3.0), push=Effort("voltage", 0.01))


@settings(max_examples=50)
@given(data=st.data())
def test_a_reward_is_the_form_plus_its_terms_in_order_bit_for_bit_alone_and_in_a_batch(data: st.DataObject) -> None:
    x = data.draw(hnp.arrays(np.float64, (3, 2), elements=st.floats(-10.0, 10.0)))
    a = data.draw(hnp.arrays(np.float64, (3, 1), elements=st.floats(-3.0, 3.0)))
    batched, scalar_reward, base_reward = (
        batched_reward(FORM_AND_TERMS, RIG)(x, a),
        compile_reward(FORM_AND_TERMS, RIG),
        compile_base_reward(FORM_AND_TERMS, RIG),
    )
    for k in range(3):
        scalar = scalar_reward(x[k].tolist(), a[k].tolist())
        assert scalar == batched[k]
        expected = base_reward(x[k].tolist(), a[k].tolist()) + np.sin(x[k, 0])
        expected = expected - 0.1 * abs(x[k, 1] - 3.0)
        assert scalar == expected - 0.01 * abs(a[k, 0])


def test_the_form_needs_no_weights_and_equals_its_terms() -> None:
    terms: dict[str, RewardTerm] = {
        "angle": Distance("angle", 50.0, np.pi, folded=True),
        "velocity": Distance("velocity", 1.0),
        "voltage": Effort("voltage", 10.0),
    }
    terms_only = msgspec.structs.replace(TASK, reward=Reward(terms=terms))
    transitions = probe_points(RIG)
    from_terms, from_form = (batched_reward(task, RIG)(*transitions[:3]) for task in (terms_only, TASK))
    np.testing.assert_allclose(from_terms, from_form, rtol=1e-15)


def test_without_terms_the_reward_is_the_form_itself() -> None:
    assert build_term_reward(msgspec.UNSET, RIG) is None
    assert compile_reward(TASK, RIG)((1.0, 2.0), (0.5,)) == compile_base_reward(TASK, RIG)((1.0, 2.0), (0.5,))


@pytest.mark.parametrize(("defect", "message"), [("raises", "KeyError: 'table'"), ("whole", "ValueError")])
def test_a_failing_term_is_named_with_its_line(defect: str, message: str) -> None:
    with pytest.raises(TermFailed, match=rf"the reward term 'mine' raises {message}.*, line \d+\)"):
        batched_reward(task_with_terms(mine=DefectiveTerm(defect)), RIG)(*probe_points(RIG)[:3])


def test_problems_of_terms_are_reported_at_their_place() -> None:
    invalid_task = task_with_terms(far=Distance("speed", 1.0), push=Effort("current", 1.0))
    assert [problem_path for problem_path, _ in task_problems(invalid_task, RIG)] == [
        "reward.terms.far.observation",
        "reward.terms.push.actuator",
    ]


def test_an_early_end_is_weighted_with_the_terms() -> None:
    task = msgspec.structs.replace(task_with_terms(far=Distance("velocity", 2.0, 5.0)), normalization=None)
    unnormalised = msgspec.structs.replace(TASK, normalization=None)
    with_terms_return, base_return = (early_end(t, RIG, 10, 0.5).typical_return for t in (task, unnormalised))
    assert with_terms_return == pytest.approx(base_return - 10.0 * (1 - 0.5**10) / 0.5)


def test_the_values_that_terms_see_can_be_extended() -> None:
    assert Transitions._fields[:2] == ("observation", "action")
