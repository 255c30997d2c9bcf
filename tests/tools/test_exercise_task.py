from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from onrig.runtime.inputs import PolicyInput
from onrig.runtime.reward_terms import ExpressionTerm
from onrig.runtime.run_config import RunConfig
from onrig.runtime.terminations import ExpressionTermination
from onrig.tools import exercise_task
from onrig.tools.exercise_task import task_findings
from tests.runtime.samples import PENDULUM
from tests.runtime.third_party import (
    DefectiveNoise,
    DefectiveReset,
    DefectiveTarget,
    DefectiveTerm,
    DefectiveTermination,
    DefectiveTransform,
)

WITHIN = {"angle": 0.1}


def config_with(**additions: Any) -> RunConfig:
    """The pendulum's run with a piece in its task, or another exploration."""
    task = PENDULUM.task
    if "exploration" in additions:
        return msgspec.structs.replace(PENDULUM, **additions)
    if "terms" in additions:
        additions = {"reward": msgspec.structs.replace(task.reward, **additions)}
    return msgspec.structs.replace(PENDULUM, task=msgspec.structs.replace(task, **additions))


def finding_messages(config: RunConfig) -> list[str]:
    return [message for _, message in task_findings(config)]


def test_valid_pieces_pass() -> None:
    assert finding_messages(config_with(terms={"mine": DefectiveTerm()})) == []
    assert finding_messages(config_with(terminations={"mine": DefectiveTermination()})) == []
    assert finding_messages(config_with(inputs=(PolicyInput("angle", DefectiveTransform()),))) == []
    assert finding_messages(config_with(reset=DefectiveReset(within=WITHIN))) == []
    assert finding_messages(config_with(targets={"mine": DefectiveTarget()})) == []
    assert finding_messages(config_with(exploration=DefectiveNoise())) == []
    assert finding_messages(PENDULUM) == []


DEFECTS = [
    ("raises", r"raises KeyError: 'table' \(.*third_party\.py, line \d+\)"),
    ("infinite", "returns inf for the observation "),
    ("random", "returns different results for the same input"),
    ("whole", r"returns values of shape \(9, 2\) for 9 observations"),
    ("alone", "single evaluation for the observation"),
    ("changes", "changes its argument arrays"),
]


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        DEFECTS[0],
        ("infinite", "draws non-finite values"),
        ("random", "draws different values from equal generators"),
        ("shape", r"draws values of shape \(200,\) for 201 times"),
        ("beyond", "draws values from 2 to 6, outside its span of -1 to 1"),
    ],
)
def test_a_broken_target_is_reported_with_its_problem(defect: str, message: str) -> None:
    (finding,) = task_findings(config_with(targets={"mine": DefectiveTarget(defect=defect)}))
    assert finding[0] == ("task", "targets", "mine")
    assert finding[1].startswith("the target 'mine' ")
    assert re.search(message, finding[1])


@pytest.mark.parametrize(("defect", "message"), DEFECTS)
def test_a_broken_term_is_reported_with_its_problem(defect: str, message: str) -> None:
    (finding,) = task_findings(config_with(terms={"mine": DefectiveTerm(defect)}))
    assert finding[0] == ("task", "reward", "terms", "mine")
    assert finding[1].startswith("the reward term 'mine' ")
    assert finding[1].endswith(" at task.reward.terms.mine")
    assert re.search(message, finding[1])


@pytest.mark.parametrize(("defect", "message"), DEFECTS)
def test_a_broken_form_is_reported_with_its_problem(defect: str, message: str) -> None:
    (finding,) = task_findings(config_with(inputs=(PolicyInput("angle", DefectiveTransform(defect)),)))
    assert finding[0] == ("task", "inputs", 0, "form")
    assert re.search(message, finding[1])


def test_a_termination_returns_true_or_false() -> None:
    (message,) = finding_messages(config_with(terminations={"mine": DefectiveTermination("infinite")}))
    assert "returns values of type float64, expected true or false" in message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_with(reset=DefectiveReset(within=WITHIN, defect="infinite")), "returns the action (inf,)"),
        (config_with(reset=DefectiveReset(within=WITHIN, defect="whole")), "returns the action (0.0, 0.0)"),
        (
            config_with(exploration=DefectiveNoise(defect="whole")),
            "draws a signal of shape (200, 2) for 200 steps and 1 actuators",
        ),
        (config_with(exploration=DefectiveNoise(defect="random")), "draws different signals from equal generators"),
    ],
    ids=["reset infinite", "reset wide", "noise wide", "noise random"],
)
def test_resets_and_processes_are_exercised(config: RunConfig, message: str) -> None:
    (problem_message,) = finding_messages(config)
    assert message in problem_message


@pytest.mark.parametrize(
    "config",
    [
        config_with(terminations={"mine": DefectiveTermination()}),
        config_with(inputs=(PolicyInput("angle", DefectiveTransform()),)),
    ],
    ids=["termination", "input"],
)
def test_code_that_runs_in_the_tick_stays_within_its_time_budget(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exercise_task, "measure_ns", lambda function: 2_500_000)
    (message,) = finding_messages(config)
    assert "takes 2500 us (99 of 100 calls), but its tick budget is 2000 us" in message


EXPRESSIONS = [
    ("terms", ExpressionTerm("log(velocity)"), "returns -inf for the observation [0.0, 0.0], the action [0.0]"),
    ("terms", ExpressionTerm("where(1 / angle > 1, 1, 0)"), "returns nan for the observation [0.0, 0.0]"),
    ("terminations", ExpressionTermination("1 / angle > 1"), "compares a non-finite value for the observation"),
]


@pytest.mark.parametrize(("section", "piece", "message"), EXPRESSIONS)
def test_an_expression_is_evaluated_on_the_corners_of_the_ranges(section: str, piece: Any, message: str) -> None:
    (finding,) = finding_messages(config_with(**{section: {"mine": piece}}))
    assert message in finding
    assert finding.endswith(f"{section}.mine")


def test_finite_expressions_pass() -> None:
    value = "cos(angle) - 0.01 * velocity**2 - 0.1 * abs(voltage - previous_voltage)"
    assert finding_messages(config_with(terms={"mine": ExpressionTerm(value)})) == []
    assert (
        finding_messages(
            config_with(terminations={"mine": ExpressionTermination("abs(velocity) > 20 or cos(angle) < -2")})
        )
        == []
    )
