"""Each kind of term against a plain formula, and terms and ends of a task for single transitions and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import hypothesis.extra.numpy as hnp
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.control.observe import wrap_angle
from onrig.runtime.memory.settings import Synthetic
from onrig.runtime.reward_terms import ActionChange, Alive, AtWall, ExpressionTerm, Terminal, Tolerance
from onrig.runtime.rewards import Distance, Effort, RewardTerm, Transitions, build_term_reward, uses_previous_action
from onrig.runtime.run_checks import findings
from onrig.runtime.task import Reward, Task, batched_reward, batched_termination, compile_reward, compile_termination
from onrig.runtime.task_checks import task_problems
from onrig.runtime.terminations import ExpressionTermination, Outside
from tests.runtime.samples import PENDULUM

RIG, TASK = PENDULUM.rig, PENDULUM.task
Formula = Callable[[float, float, float, float], float]
"""Reward of angle, velocity, voltage and the previous voltage."""


def huber(e: float, delta: float) -> float:
    return 0.5 * e * e if abs(e) <= delta else delta * (abs(e) - 0.5 * delta)


def distance_outside(x: float, low: float, high: float, margin: float) -> float:
    """Distance from the bounds in margins; 0 within them."""
    return max(low - x, x - high, 0.0) / margin


TERM_FORMULAS: dict[str, tuple[RewardTerm, Formula]] = {
    "distance": (Distance("angle", 2.0, 0.5), lambda x, v, u, b: -2.0 * abs(wrap_angle(x - 0.5))),
    "squared": (Distance("velocity", 0.1, 1.0, shape="squared"), lambda x, v, u, b: -0.1 * (v - 1.0) ** 2),
    "huber": (Distance("angle", 3.0, shape="huber", delta=0.7), lambda x, v, u, b: -3.0 * huber(x, 0.7)),
    "folded": (
        Distance("angle", 2.0, 3.0, folded=True, shape="squared"),
        lambda x, v, u, b: -2.0 * (abs(x) - 3.0) ** 2,
    ),
    "effort": (Effort("voltage", 0.3), lambda x, v, u, b: -0.3 * abs(u)),
    "squared effort": (Effort("voltage", 0.3, shape="squared"), lambda x, v, u, b: -0.3 * u * u),
    "change": (ActionChange("voltage", 0.2), lambda x, v, u, b: -0.2 * abs(u - b)),
    "squared change": (ActionChange("voltage", 0.2, shape="squared"), lambda x, v, u, b: -0.2 * (u - b) ** 2),
    "alive": (Alive(1.5), lambda x, v, u, b: 1.5),
    "terminal": (Terminal(-7.0), lambda x, v, u, b: -7.0 if abs(v) > 8.0 else 0.0),
    "wall": (
        AtWall("angle", -2.0, 2.0, penalty=4.0, margin=0.5),
        lambda x, v, u, b: -4.0 if x <= -1.5 or x >= 1.5 else 0.0,
    ),
    "step": (Tolerance("angle", (-1.0, 2.0), weight=3.0), lambda x, v, u, b: 3.0 if -1.0 <= x <= 2.0 else 0.0),
    "gaussian": (
        Tolerance("angle", (-1.0, 2.0), margin=0.5),
        lambda x, v, u, b: math.exp(
            -0.5 * (distance_outside(x, -1.0, 2.0, 0.5) * math.sqrt(-2.0 * math.log(0.1))) ** 2
        ),
    ),
    "linear": (
        Tolerance("angle", (0.0, 0.0), margin=2.0, shape="linear", value_at_margin=0.2),
        lambda x, v, u, b: max(0.0, 1.0 - 0.8 * abs(x) / 2.0),
    ),
    "quadratic": (
        Tolerance("angle", (-1.0, 1.0), margin=2.0, shape="quadratic", value_at_margin=0.0, folded=True),
        lambda x, v, u, b: max(0.0, 1.0 - distance_outside(abs(x), -1.0, 1.0, 2.0) ** 2),
    ),
    "cosine": (
        Tolerance("velocity", (-1.0, 1.0), margin=5.0, shape="cosine"),
        lambda x, v, u, b: cosine_distance(distance_outside(v, -1.0, 1.0, 5.0)),
    ),
    "expression": (
        ExpressionTerm("cos(angle) - 0.01 * velocity**2 - 0.001 * voltage**2 - 0.1 * abs(voltage - previous_voltage)"),
        lambda x, v, u, b: math.cos(x) - 0.01 * v * v - 0.001 * u * u - 0.1 * abs(u - b),
    ),
}


def cosine_distance(d: float) -> float:
    scaled = d * math.acos(2 * 0.1 - 1.0) / math.pi
    return 0.5 * (1.0 + math.cos(math.pi * scaled)) if scaled < 1.0 else 0.0


def task_with_terms(terms: dict[str, RewardTerm]) -> Task:
    return msgspec.structs.replace(
        TASK, reward=Reward(terms=terms), terminations={"fast": Outside("velocity", -8.0, 8.0)}
    )


numbers = hnp.arrays(np.float64, (5, 4), elements=st.floats(-10.0, 10.0) | st.sampled_from([-2.0, -1.5, 0.0, 1.0, 2.0]))


@pytest.mark.parametrize("name", TERM_FORMULAS)
@settings(max_examples=30)
@given(rows=numbers)
def test_a_term_is_its_formula(name: str, rows: np.ndarray) -> None:
    term, formula = TERM_FORMULAS[name]
    task = task_with_terms({"mine": term})
    assert task_problems(task, RIG) == []
    batched = batched_reward(task, RIG)(rows[:, :2], rows[:, 2:3], rows[:, 3:])
    np.testing.assert_allclose(batched, [formula(*row) for row in rows.tolist()], rtol=1e-12, atol=1e-12)


ALL_TERMS = msgspec.structs.replace(
    TASK,
    reward=msgspec.structs.replace(
        TASK.reward, alive=3.0, terminal=-20.0, terms={name: term for name, (term, _) in TERM_FORMULAS.items()}
    ),
    terminate={"angle": (-9.0, 9.0)},
    terminations={
        "fast": Outside("velocity", -8.0, 8.0, reward=-100.0),
        "turned": ExpressionTermination("cos(angle) < -0.9 or velocity / angle > 50", reward=10.0),
        "plain": ExpressionTermination("velocity > 7 and not angle < 1"),
    },
)


@settings(max_examples=60)
@given(rows=numbers)
def test_one_transition_and_a_batch_have_the_same_bits(rows: np.ndarray) -> None:
    x, a, previous_actions = rows[:, :2], rows[:, 2:3], rows[:, 3:]
    batched, is_over = batched_reward(ALL_TERMS, RIG)(x, a, previous_actions), batched_termination(ALL_TERMS, RIG)(x)
    reward, is_terminal = compile_reward(ALL_TERMS, RIG), compile_termination(ALL_TERMS, RIG)
    assert is_over.tolist() == [is_terminal(row) for row in x.tolist()]
    for k, (state, action, previous_action) in enumerate(
        zip(x.tolist(), a.tolist(), previous_actions.tolist(), strict=True)
    ):
        assert (
            reward(state, action, None, previous_action)
            == reward(state, action, bool(is_over[k]), previous_action)
            == batched[k]
        )
    grid = batched_reward(ALL_TERMS, RIG)(
        np.stack([x, x]), np.stack([a, a]), np.stack([previous_actions, previous_actions])
    )
    assert grid.tolist() == [batched.tolist()] * 2


def test_before_the_first_action_the_safe_output_counts() -> None:
    task = task_with_terms({"change": ActionChange("voltage", 1.0)})
    safe = RIG.actuators[0].safe
    assert batched_reward(task, RIG)(np.zeros((1, 2)), np.full((1, 1), 2.0)).tolist() == [-abs(2.0 - safe)]
    assert compile_reward(task, RIG)((0.0, 0.0), (2.0,)) == -abs(2.0 - safe)


def test_each_occurring_end_pays_its_own_reward_and_the_common_one() -> None:
    task = msgspec.structs.replace(
        TASK,
        reward=Reward(terminal=-1.0, terms={"end": Terminal(-2.0), "further end": Terminal(-4.0)}),
        terminations={
            "fast": Outside("velocity", -8.0, 8.0, reward=-100.0),
            "turned": ExpressionTermination("angle > 3", reward=10.0),
            "slow": ExpressionTermination("abs(velocity) < 1"),
        },
    )
    x = [(0.0, 2.0), (0.0, 9.0), (3.1, 9.0), (3.1, 0.0), (0.0, 0.0)]
    expected = [0.0, -107.0, -97.0, 3.0, -7.0]
    assert batched_reward(task, RIG)(np.array(x), np.zeros((5, 1))).tolist() == expected
    assert [compile_reward(task, RIG)(row, (0.0,)) for row in x] == expected


@pytest.mark.parametrize(
    ("observation", "expected"),
    [((0.3, 0.0), False), ((0.0, 1.0), True), ((math.nan, 1.0), True), ((0.01, 1.0), True)],
)
def test_an_end_with_a_non_finite_comparison_occurs(observation: Sequence[float], expected: bool) -> None:
    task = msgspec.structs.replace(TASK, terminations={"steep": ExpressionTermination("velocity / angle > 50")})
    assert compile_termination(task, RIG)(observation) is expected
    assert batched_termination(task, RIG)(np.array([observation])).tolist() == [expected]


def test_a_reward_whose_comparison_has_no_answer_is_nan() -> None:
    add_terms = build_term_reward({"mine": ExpressionTerm("where(1 / angle > 1, 1, 0)")}, RIG)
    assert add_terms is not None
    transitions = Transitions(
        np.array([[0.0, 1.0], [0.5, 1.0]]), np.zeros((2, 1)), np.zeros((2, 1)), np.zeros(2, np.bool_)
    )
    assert np.isnan(add_terms(transitions, np.zeros(2))).tolist() == [True, False]


INVALID_TERMS: list[tuple[RewardTerm, str, str]] = [
    (Distance("angle", 1.0, shape="huber"), "shape", "huber needs delta"),
    (Distance("angle", 1.0, delta=1.0), "delta", "only huber uses it; the shape is"),
    (Tolerance("angel", (0.0, 1.0)), "observation", "angel"),
    (Tolerance("angle", (1.0, 0.0)), "bounds", "needs low <= high"),
    (Tolerance("angle", (0.0, 1.0), margin=1.0, value_at_margin=0.0), "value_at_margin", "above 0 for gaussian"),
    (ActionChange("volts", 1.0), "actuator", "volts"),
    (AtWall("angle", 1.0, 1.0, 1.0), "", "needs low < high"),
    (AtWall("angle", 0.0, 1.0, 1.0, margin=0.5), "margin", "less than half"),
    (ExpressionTerm("cos(angel)"), "value", "line 1, column 5 of the expression: unknown name 'angel', did you mean"),
    (ExpressionTerm("angle > 1"), "value", "expected a number, got a condition"),
]


@pytest.mark.parametrize(("term", "path_suffix", "message"), INVALID_TERMS)
def test_problems_are_reported_at_their_place(term: RewardTerm, path_suffix: str, message: str) -> None:
    problems = task_problems(task_with_terms({"mine": term}), RIG)
    assert [path for path, _ in problems] == [f"reward.terms.mine.{path_suffix}".rstrip(".")]
    assert message in problems[0][1]


def test_an_end_given_by_an_expression_needs_a_condition_on_observations() -> None:
    for text, message in (("angle", "expected a condition"), ("voltage > 1", "unknown name 'voltage'")):
        task = msgspec.structs.replace(TASK, terminations={"mine": ExpressionTermination(text)})
        (problem,) = task_problems(task, RIG)
        assert problem[0] == "terminations.mine.value"
        assert message in problem[1]


def test_a_terminal_term_needs_an_end() -> None:
    task = msgspec.structs.replace(TASK, reward=Reward(terms={"end": Terminal(-1.0)}))
    assert [path for path, _ in task_problems(task, RIG)] == ["reward.terms.end"]


def test_synthetic_experiences_have_no_previous_action() -> None:
    for term, expected in (
        (ActionChange("voltage", 1.0), True),
        (ExpressionTerm("voltage - previous_voltage"), True),
        (ExpressionTerm("voltage"), False),
        (ExpressionTerm("?"), False),
        (Effort("voltage", 1.0), False),
    ):
        assert uses_previous_action({"mine": term}, RIG) is expected
    selection = msgspec.structs.replace(PENDULUM.selection, synthetic=Synthetic(states=0.1))
    task = task_with_terms({"change": ActionChange("voltage", 1.0)})
    messages = [m for _, m in findings(msgspec.structs.replace(PENDULUM, task=task, selection=selection))]
    assert any("have no previous action" in message for message in messages)
