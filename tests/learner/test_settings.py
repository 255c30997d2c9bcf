from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from onrig.learner.algorithm_config import algorithm_names
from onrig.learner.algorithm_settings import DdpgConfig, DqnConfig
from onrig.learner.refer_settings import RecurrentSettings, ReferSettings, VracerConfig
from onrig.learner.sac_settings import SacConfig
from onrig.learner.settings import LearnerSettings, process_problem, rig_problems, settings_problems
from onrig.runtime.explore.settings import EpsilonGreedy, Gaussian, NoExploration, OwnNoise
from onrig.runtime.memory.keepers.keeper import Signal

SOUND = LearnerSettings(updates_per_episode=100)


@pytest.mark.parametrize(
    ("changes", "lockstep", "places"),
    [
        ({}, True, []),
        ({}, False, []),
        ({"updates_per_episode": None}, False, [""]),
        ({"updates_per_transition": 1.0}, False, [""]),
        ({"updates_per_episode": None, "updates_per_transition": 0.5}, False, []),
        ({"updates_per_episode": None, "updates_per_transition": 0.5}, True, ["updates_per_transition"]),
        ({"algorithm": "dqn"}, True, []),
        ({"dqn": DqnConfig(epsilon=())}, True, ["dqn.epsilon"]),
        ({"dqn": DqnConfig(epsilon=((1, 0.7), (1, 0.1)))}, True, ["dqn.epsilon[1]"]),
        ({"vracer": VracerConfig(recurrent=RecurrentSettings())}, True, []),
        ({"vracer": VracerConfig(recurrent=RecurrentSettings(), hidden=(64,))}, True, ["vracer.hidden"]),
        ({"sac": SacConfig(log_std=(2.0, -5.0))}, True, ["sac.log_std"]),
    ],
)
def test_what_does_not_fit_together_is_told_at_its_place(
    changes: dict[str, object], lockstep: bool, places: list[str]
) -> None:
    problems = settings_problems(msgspec.structs.replace(SOUND, **changes), lockstep=lockstep)
    assert [at for at, _ in problems] == places


def test_a_rig_refuses_what_is_for_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig_problems(SOUND, 4) == []
    dqn = msgspec.structs.replace(SOUND, algorithm="dqn")
    assert rig_problems(dqn, 1) == []
    ignored = msgspec.structs.replace(dqn, dqn=DqnConfig(epsilon=((1.0, 0.5),)))
    assert [at for at, _ in rig_problems(ignored, 1)] == ["dqn.epsilon"]
    ((at, message),) = rig_problems(dqn, 4)
    assert at == "algorithm"
    assert message.startswith("dqn supports one actuator, but this rig has 4: use acer, crossq, ddpg, droq, naf,")
    monkeypatch.setattr(DqnConfig, "on_rig", False)
    ((at, message),) = rig_problems(dqn, 1)
    assert (at, message) == ("algorithm", "a rig cannot run the policies of dqn: use it with `onrig experiment`")


def test_a_rig_explores_as_its_policies_do() -> None:
    sac = msgspec.structs.replace(SOUND, algorithm="sac", sac=SacConfig())
    assert process_problem(SOUND, Gaussian()) is None
    assert process_problem(sac, OwnNoise()) is None
    dqn = msgspec.structs.replace(SOUND, algorithm="dqn")
    assert process_problem(dqn, EpsilonGreedy()) is process_problem(dqn, NoExploration()) is None
    for settings, exploration, told in (
        (sac, Gaussian(), "the policies of sac sample their actions: expected 'own', got 'gaussian'"),
        (sac, NoExploration(), "expected 'own', got 'none'"),
        (SOUND, OwnNoise(), "the policies of ddpg have no noise of their own: expected 'ou'"),
        (SOUND, EpsilonGreedy(), "the policies of ddpg have no discrete actions: expected 'ou'"),
        (dqn, Gaussian(), "the actions of dqn are discrete: expected 'epsilon_greedy' or 'none', got 'gaussian'"),
        (dqn, EpsilonGreedy(levels=9), "dqn acts on 15 levels: expected 15, got 9"),
    ):
        assert told in (process_problem(settings, exploration) or ("", ""))[1]


def test_refer_is_on_where_its_options_are_given_to_an_algorithm_with_a_density() -> None:
    on = msgspec.convert({"refer": {}, "updates_per_episode": 1}, LearnerSettings)
    assert SOUND.effective_refer is None
    assert on.effective_refer == ReferSettings()
    assert (SOUND.stochastic, on.stochastic) == (False, True)
    assert settings_problems(on, lockstep=True) == []
    ((at, message),) = settings_problems(msgspec.structs.replace(on, algorithm="dqn"), lockstep=True)
    assert (at, message) == ("refer", "ReF-ER does not support dqn: remove this section, or use ddpg, naf, vracer")
    assert "expected 'own'" in (process_problem(on, Gaussian()) or ("", ""))[1]


def test_an_algorithm_that_bounds_its_steps_itself_lets_refer_measure_alone() -> None:
    acer = msgspec.convert({"algorithm": "acer", "refer": {"rules": "none"}, "updates_per_episode": 1}, LearnerSettings)
    assert settings_problems(acer, lockstep=True) == []
    assert acer.provided_signals >= {Signal.FAR, Signal.KL}
    ruled = msgspec.structs.replace(acer, refer=ReferSettings(rules=1))
    assert settings_problems(ruled, lockstep=True) == [("refer.rules", "acer limits its own steps: expected 'none'")]


def test_the_batch_is_that_of_the_algorithm() -> None:
    both = LearnerSettings(ddpg=DdpgConfig(batch=7), dqn=DqnConfig(batch=9))
    assert (both.batch, msgspec.structs.replace(both, algorithm="dqn").batch) == (7, 9)


def test_sections_of_newer_algorithms_are_written_where_they_are_selected_or_given() -> None:
    def written(section: dict[str, object]) -> set[str]:
        return set(msgspec.to_builtins(msgspec.convert(section, LearnerSettings))) & set(algorithm_names())

    assert written({}) == {"ddpg", "dqn"}
    assert written({"algorithm": "sac"}) == {"ddpg", "dqn", "sac"}
    assert written({"td3": {}}) == {"ddpg", "dqn", "td3"}


@pytest.mark.parametrize("name", algorithm_names())
def test_every_section_names_the_size_of_its_networks(name: str) -> None:
    assert msgspec.convert({"algorithm": name}, LearnerSettings).selected.size in (
        "small",
        "256-256",
        "128-128",
        "64-64",
        "32-32",
    )


@pytest.mark.parametrize(
    "section",
    [
        {"algorithm": "ddgp"},
        {"algorithm": "batch"},
        {"per_alpha": -0.1},
        {"prop_per": {"law": "oh"}},
        {"prop_per": {"beta": 1.1}},
        {"ners": {"hidden": []}},
        {"ners": {"ablation": "global"}},
        {"ero": {"alpha": 0.5}},
        {"dqn": {"tau": 0.01}},
        {"dqn": {"epsilon": [[1, 1.1]]}},
        {"dqn": {"epsilon": [[1, -0.1]]}},
        {"vracer": {"recurrent": {"units": [30]}}},
        {"vracer": {"recurrent": {"window": 1}}},
        {"ddpg": {"recurrent": {}}},
        {"updates_per_episode": 0},
        {"updates_per_transition": 0.0},
        {"vracer": {"std": 1000.0}},
        {"refer": {"std": 0.0}},
        {"updates_per_transition": 101.0},
        {"backlog": 0},
    ],
)
def test_impossible_settings_are_refused(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, LearnerSettings)


def test_the_settings_can_be_read_without_torch() -> None:
    code = "import sys, onrig.learner.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
