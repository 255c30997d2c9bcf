"""What check asks of foreign pieces holds for Onrig's own, and a piece that breaks it is told so."""

from __future__ import annotations

import msgspec
import pytest

from onrig.learner.algorithm_config import algorithm_names
from onrig.learner.algorithm_exercise import algorithm_problems, model_of
from onrig.learner.exercises import keeper_problems, sampler_problems
from onrig.learner.settings import LearnerSettings
from onrig.runtime import registry
from onrig.runtime.replay.memory.strategy import keeper_class, parse_strategy, samplings
from onrig.runtime.run_loading import load_run

SMALL = {"rainbow": {"network": "small"}}


def settings_of(algorithm: str, **section: object) -> LearnerSettings:
    return msgspec.convert({"algorithm": algorithm, algorithm: section, "updates_per_episode": 1}, LearnerSettings)


@pytest.mark.parametrize("name", registry.names(registry.RETENTIONS))
def test_our_retentions_do_what_is_asked_of_others(name: str) -> None:
    alpha = "" if keeper_class(name).parameter is None else "(1.0)"
    assert [*keeper_problems(parse_strategy(f"{name}{alpha}[Uniform]"))] == []


@pytest.mark.parametrize("sampling", samplings())
def test_our_samplings_do_what_is_asked_of_others(sampling: str) -> None:
    settings, config = settings_of("td3", batch=8), load_run("pendulum")
    assert [*sampler_problems(parse_strategy(f"FIFO[{sampling}]"), config, settings)] == []


@pytest.mark.parametrize("name", algorithm_names())
def test_our_algorithms_do_what_is_asked_of_others(name: str) -> None:
    config, settings = load_run("pendulum"), settings_of(name, batch=8)
    if settings.stochastic:
        config = msgspec.structs.replace(config, exploration=load_run("pendulum", ["recipe=pendulum-sac"]).exploration)
    assert [*algorithm_problems(config, settings)] == []
    if settings.selected.on_rig:
        assert model_of(config, settings)
