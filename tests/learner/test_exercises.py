"""Onrig's own pieces pass the checks for third-party ones, and a piece that violates them is reported."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.algorithm_config import algorithm_names
from onrig.learner.algorithm_exercise import algorithm_problems, untrained_policy
from onrig.learner.algorithms import Algorithm, Minibatches, Signals
from onrig.learner.exercises import keeper_problems, sampler_problems
from onrig.learner.samplers import Draw
from onrig.learner.samplers.uniform import Uniform
from onrig.learner.settings import LearnerSettings
from onrig.runtime import registry
from onrig.runtime.memory.keepers.by_chance import Reservoir
from onrig.runtime.memory.keepers.cyclic import Fifo
from onrig.runtime.memory.keepers.keeper import Arrays, Keeper
from onrig.runtime.memory.strategy import Strategy, keeper_class, parse_strategy, sampling_names
from onrig.runtime.run_loading import load_run


def settings_for(algorithm: str, **section: object) -> LearnerSettings:
    return msgspec.convert({"algorithm": algorithm, algorithm: section, "updates_per_episode": 1}, LearnerSettings)


@pytest.mark.parametrize("name", registry.names(registry.RETENTIONS))
def test_our_retentions_pass_the_exercises(name: str) -> None:
    alpha = "" if keeper_class(name).parameter is None else "(1.0)"
    assert [*keeper_problems(parse_strategy(f"{name}{alpha}[Uniform]"))] == []


@pytest.mark.parametrize("sampling", sampling_names())
def test_our_samplings_pass_the_exercises(sampling: str) -> None:
    settings, config = settings_for("td3", batch=8), load_run("pendulum")
    assert [*sampler_problems(parse_strategy(f"FIFO[{sampling}]"), config, settings)] == []


@pytest.mark.parametrize("name", algorithm_names())
def test_our_algorithms_pass_the_exercises(name: str) -> None:
    config, settings = load_run("pendulum"), settings_for(name, batch=8)
    if settings.stochastic:
        config = msgspec.structs.replace(config, exploration=load_run("pendulum", ["recipe=pendulum-sac"]).exploration)
    assert [*algorithm_problems(config, settings)] == []
    if settings.algorithm_config.on_rig:
        assert untrained_policy(config, settings)


class StuckKeeper(Fifo):
    name = "Stuck"

    def place(self) -> int:
        return self.capacity


class ForgetfulKeeper(Reservoir):
    name = "Forgetful"

    def restore(self, state: Arrays) -> None:
        return


class GrowingKeeper(Reservoir):
    name = "Generous"

    def state(self) -> Arrays:
        self._n_given = getattr(self, "_n_given", np.zeros(1))
        return super().state() | {"given": self._n_given}

    def place(self) -> int:
        if hasattr(self, "_n_given"):
            self._n_given += 1
        return super().place()


@pytest.mark.parametrize(
    ("keeper", "message"),
    [
        (StuckKeeper, "puts offer 1 in slot 24, expected 0 to 0 or REJECTED"),
        (ForgetfulKeeper, "decides differently after its state is restored"),
        (GrowingKeeper, "keeps using the arrays that state() returned: return copies"),
    ],
)
def test_faults_of_a_keeper_are_reported(keeper: type[Keeper], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Strategy, "keeper", property(lambda strategy: keeper))
    assert message in [*keeper_problems(parse_strategy("FIFO[Uniform]"))]


class OutOfRangeSampler(Uniform):
    def draw(self, batch: int, updates: int = 1) -> Draw:
        return super().draw(batch, updates)._replace(slots=np.full((updates, batch), 999))


class InfiniteWeightSampler(Uniform):
    def draw(self, batch: int, updates: int = 1) -> Draw:
        return Draw(super().draw(batch, updates).slots, np.full((updates, batch), np.inf, np.float32))


class AmnesiacSampler(Uniform):
    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._n_stored = int(state["stored"])


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (OutOfRangeSampler, r"draws slots 999 to 999, but only 0 to 19 are written"),
        (InfiniteWeightSampler, r"draws weights of shape \(1, 8\), or n[a-z-]*"),
        (AmnesiacSampler, r"draws differently after its state is restored"),
    ],
)
def test_faults_of_a_sampler_are_reported(
    sampler: type[Uniform], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onrig.learner.samplers.sampler_class", lambda name: sampler)
    problems = sampler_problems(parse_strategy("FIFO[Uniform]"), load_run("pendulum"), settings_for("td3", batch=8))
    assert re.search(message, next(problems))


def _random_policy(algorithm: Algorithm, observation: NDArray[np.floating]) -> NDArray[np.floating]:
    calls = algorithm.__dict__["calls"] = algorithm.__dict__.get("calls", 0) + 1
    return np.full((*observation.shape[:-1], 1), 0.1 * calls)


def _mix_trials(algorithm: Algorithm, batches: Minibatches) -> Signals:
    td = batches.reward - batches.reward.mean(axis=1, keepdims=True)
    return Signals(td, target=td)


@pytest.mark.parametrize(
    ("member", "replacement", "message"),
    [
        ("policy", lambda self, observation: observation, r"returns actions of shape \(2, 5, 2\)"),
        ("policy", _random_policy, "returns two different actions for the same state"),
        ("update", lambda self, batches: Signals(np.zeros(3)), r"returns signals 'td' of shape \(3,\)"),
        ("update", _mix_trials, "results of a trial alone and among other trials differ"),
        ("restore", lambda self, state: None, "learns differently after its state is restored"),
    ],
)
def test_faults_of_an_algorithm_are_reported(
    member: str, replacement: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"onrig.learner.algorithms.ddpg.Ddpg.{member}", replacement)
    problems = [*algorithm_problems(load_run("pendulum"), settings_for("ddpg", batch=8))]
    assert any(re.match(message, problem) for problem in problems), problems
