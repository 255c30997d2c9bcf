from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from onrig.hw.rig import Camera, Observation
from onrig.learner.algorithm_config import Convolution, Image, algorithm_names
from onrig.learner.algorithm_settings import DdpgConfig, DqnConfig, Td3Config
from onrig.learner.refer_settings import RecurrentSettings, ReferSettings, VracerConfig
from onrig.learner.sac_settings import SacConfig
from onrig.learner.sampler_settings import NersSettings
from onrig.learner.settings import (
    LearnerSettings,
    image_problems,
    process_problem,
    rig_problems,
    settings_problems,
)
from onrig.runtime.explore.settings import EpsilonGreedy, Gaussian, NoExploration, OwnNoise
from onrig.runtime.images import image_signals
from onrig.runtime.memory.keepers.keeper import Signal

VALID_SETTINGS = LearnerSettings(updates_per_episode=100)


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({}, []),
        ({"updates_per_episode": None}, [""]),
        ({"updates_per_transition": 1.0}, [""]),
        ({"updates_per_episode": None, "updates_per_transition": 0.5}, []),
        ({"algorithm": "dqn"}, []),
        ({"dqn": DqnConfig(epsilon=())}, ["dqn.epsilon"]),
        ({"dqn": DqnConfig(epsilon=((1, 0.7), (1, 0.1)))}, ["dqn.epsilon[1]"]),
        ({"vracer": VracerConfig(recurrent=RecurrentSettings())}, []),
        ({"vracer": VracerConfig(recurrent=RecurrentSettings(), hidden=(64,))}, ["vracer.hidden"]),
        ({"sac": SacConfig(log_std=(2.0, -5.0))}, ["sac.log_std"]),
    ],
)
def test_contradictory_settings_are_reported_at_their_place(changes: dict[str, object], paths: list[str]) -> None:
    problems = settings_problems(msgspec.structs.replace(VALID_SETTINGS, **changes))
    assert [path for path, _ in problems] == paths


def test_a_rig_refuses_settings_that_only_trials_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig_problems(VALID_SETTINGS, 4) == []
    dqn = msgspec.structs.replace(VALID_SETTINGS, algorithm="dqn")
    assert rig_problems(dqn, 1) == []
    trial_settings = msgspec.structs.replace(dqn, dqn=DqnConfig(epsilon=((1.0, 0.5),)))
    assert [path for path, _ in rig_problems(trial_settings, 1)] == ["dqn.epsilon"]
    ((path, message),) = rig_problems(dqn, 4)
    assert path == "algorithm"
    assert message.startswith("dqn supports one actuator, but this rig has 4: use acer, crossq, ddpg, droq, naf,")
    monkeypatch.setattr(DqnConfig, "on_rig", False)
    ((path, message),) = rig_problems(dqn, 1)
    assert (path, message) == ("algorithm", "a rig cannot run the policies of dqn: use it with `onrig experiment`")


def test_images_and_pixel_inputs_of_a_rig_require_each_other() -> None:
    pixels, angle = image_signals(Camera("eye", 10, 7)), Observation("angle", "rad", -1.0, 1.0)
    images = Td3Config(images=Image((10, 7), 2))
    td3 = msgspec.structs.replace(VALID_SETTINGS, algorithm="td3", td3=images)

    def problems(
        settings: LearnerSettings,
        *signals: Observation,
        strategy: str = "FIFO[Uniform]",
        cameras: tuple[Camera, ...] = (),
    ) -> list[str]:
        return [": ".join(problem) for problem in image_problems(settings, cameras, signals, strategy)]

    assert problems(td3, *pixels, *pixels) == []
    assert problems(VALID_SETTINGS, angle) == []
    assert problems(VALID_SETTINGS, Observation("marker", "px", 0.0, 640.0)) == [], "a sensor that measures in pixels"
    assert problems(td3, *pixels, *pixels, cameras=(Camera("eye", 10, 7),)) == []
    (problem,) = problems(td3, *pixels, *pixels, cameras=(Camera("eye", 10, 7), Camera("ear", 7, 10)))
    assert problem == (
        "learner.td3.images.size: expected images of 10 by 7 pixels, but camera 'ear' has 7 by 10 pixels: change one "
        "of the two"
    )
    for signals, expected in (
        (pixels, "24 pixel inputs and 0 others"),
        ((*pixels, *pixels, angle), "48 pixel inputs and 1 others"),
        ((angle,), "0 pixel inputs and 1 others"),
    ):
        (problem,) = problems(td3, *signals)
        assert problem.startswith("learner.td3.images: 2 frames of 10 by 7 pixels need 48 inputs, but the task")
        assert expected in problem
    (problem,) = problems(VALID_SETTINGS, angle, *pixels)
    assert problem == (
        "task.inputs: 24 inputs are camera pixels, from which ddpg without images cannot learn: select an algorithm "
        "that supports images (rainbow, redq, sac, td3), or remove the camera from the inputs"
    )
    (problem,) = problems(msgspec.structs.replace(td3, td3=Td3Config()), *pixels)
    assert problem.endswith(
        "td3 without images cannot learn: set learner.td3.images, or remove the camera from the inputs"
    )
    (problem,) = problems(td3, *pixels, *pixels, strategy="FIFO[NERS]")
    assert problem == (
        "selection.strategy: NERS reads the states, which on a rig are packed images: choose another strategy, or set "
        "learner.ners.ablation to few"
    )
    assert (
        problems(
            msgspec.structs.replace(td3, ners=NersSettings(ablation="few")), *pixels, *pixels, strategy="FIFO[NERS]"
        )
        == []
    )
    assert problems(td3, *pixels, *pixels, strategy="no strategy") == []
    sizes = msgspec.structs.replace(td3, td3=Td3Config(images=Image((10, 7), 2, (Convolution(3, 8, 1),))))
    assert [path for path, _ in settings_problems(sizes)] == ["td3.images.convolutions.0"]


def test_a_rig_explores_as_its_policies_do() -> None:
    sac = msgspec.structs.replace(VALID_SETTINGS, algorithm="sac", sac=SacConfig())
    assert process_problem(VALID_SETTINGS, Gaussian()) is None
    assert process_problem(sac, OwnNoise()) is None
    dqn = msgspec.structs.replace(VALID_SETTINGS, algorithm="dqn")
    assert process_problem(dqn, EpsilonGreedy()) is process_problem(dqn, NoExploration()) is None
    for settings, exploration, expected in (
        (sac, Gaussian(), "the policies of sac sample their actions: expected 'own', got 'gaussian'"),
        (sac, NoExploration(), "expected 'own', got 'none'"),
        (VALID_SETTINGS, OwnNoise(), "the policies of ddpg have no noise of their own: expected 'ou'"),
        (VALID_SETTINGS, EpsilonGreedy(), "the policies of ddpg have no discrete actions: expected 'ou'"),
        (dqn, Gaussian(), "the actions of dqn are discrete: expected 'epsilon_greedy' or 'none', got 'gaussian'"),
        (dqn, EpsilonGreedy(levels=9), "dqn has 15 action levels: expected 15, got 9"),
    ):
        assert expected in (process_problem(settings, exploration) or ("", ""))[1]


def test_refer_is_enabled_by_its_options_for_algorithms_with_a_density() -> None:
    with_refer = msgspec.convert({"refer": {}, "updates_per_episode": 1}, LearnerSettings)
    assert VALID_SETTINGS.effective_refer is None
    assert with_refer.effective_refer == ReferSettings()
    assert (VALID_SETTINGS.stochastic, with_refer.stochastic) == (False, True)
    assert settings_problems(with_refer) == []
    ((path, message),) = settings_problems(msgspec.structs.replace(with_refer, algorithm="dqn"))
    assert (path, message) == ("refer", "ReF-ER does not support dqn: remove this section, or use ddpg, naf, vracer")
    assert "expected 'own'" in (process_problem(with_refer, Gaussian()) or ("", ""))[1]


def test_an_algorithm_that_bounds_its_own_steps_uses_refer_only_to_measure() -> None:
    acer = msgspec.convert({"algorithm": "acer", "refer": {"rules": "none"}, "updates_per_episode": 1}, LearnerSettings)
    assert settings_problems(acer) == []
    assert acer.provided_signals >= {Signal.FAR, Signal.KL}
    refer_settings = msgspec.structs.replace(acer, refer=ReferSettings(rules=1))
    assert settings_problems(refer_settings) == [("refer.rules", "acer limits its own steps: expected 'none'")]


def test_the_batch_size_is_that_of_the_algorithm() -> None:
    two_algorithms = LearnerSettings(ddpg=DdpgConfig(batch=7), dqn=DqnConfig(batch=9))
    assert (two_algorithms.batch, msgspec.structs.replace(two_algorithms, algorithm="dqn").batch) == (7, 9)


def test_sections_of_newer_algorithms_are_written_only_if_selected_or_given() -> None:
    def sections_written(section: dict[str, object]) -> set[str]:
        return set(msgspec.to_builtins(msgspec.convert(section, LearnerSettings))) & set(algorithm_names())

    assert sections_written({}) == {"ddpg", "dqn"}
    assert sections_written({"algorithm": "sac"}) == {"ddpg", "dqn", "sac"}
    assert sections_written({"td3": {}}) == {"ddpg", "dqn", "td3"}


@pytest.mark.parametrize("name", algorithm_names())
def test_every_section_names_the_size_of_its_networks(name: str) -> None:
    assert msgspec.convert({"algorithm": name}, LearnerSettings).algorithm_config.size in (
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


def test_the_settings_can_be_loaded_without_torch() -> None:
    code = "import sys, onrig.learner.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
