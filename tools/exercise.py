"""Checks of third-party plugins: each is called once, and exceptions are reported with file and line.

Plants and boxes are exercised by the twin and prediction checks instead (``onrig.tools.load``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from msgspec import UNSET

from onrig.learner.settings import learner_settings
from onrig.runtime import registry
from onrig.runtime.config.problem import Finding, NodePath, collect_findings, format_path
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig
from onrig.tools.exercise_task import task_findings
from onrig.tools.plugins import chosen_plugins

_STRATEGY_PATH: Final = ("selection", "strategy")


def third_party_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems with the third-party plugins of an otherwise valid configuration."""
    yield from task_findings(config)
    for group, name in dict.fromkeys(chosen_plugins(config)):
        exercise = _EXERCISES.get(group)
        if exercise is None or registry.plugin_origin(group, name) is None:
            continue
        setting_path, problems = exercise
        subject = f"'{name}' of {registry.group_key(group)}"
        find_problems = partial(_locate, setting_path, problems, config)
        for path, message in collect_findings(find_problems, subject, setting_path):
            text = message if message.startswith(subject) else f"{subject} {message}"
            yield path, f"{text} at {format_path(path)}"


def _locate(path: NodePath, problems: Callable[[RunConfig], Iterator[str]], config: RunConfig) -> Iterator[Finding]:
    return ((path, message) for message in problems(config))


def _keeper_problems(config: RunConfig) -> Iterator[str]:
    from onrig.learner.exercises import keeper_problems

    yield from keeper_problems(parse_strategy(config.selection.strategy))


def _sampler_problems(config: RunConfig) -> Iterator[str]:
    from onrig.learner.exercises import sampler_problems

    yield from sampler_problems(parse_strategy(config.selection.strategy), config, learner_settings(config.learner))


def _algorithm_problems(config: RunConfig) -> Iterator[str]:
    from onrig.learner.algorithm_exercise import algorithm_problems, untrained_policy
    from onrig.runtime.policy.admission import Refused
    from onrig.sim.evaluation import admission_verdict

    settings = learner_settings(config.learner)
    yield from algorithm_problems(config, settings)
    if settings.algorithm_config.on_rig:
        verdict = admission_verdict(untrained_policy(config, settings), config)
        if isinstance(verdict, Refused) and verdict.stage != "latency":
            yield f"exports a policy that is refused by the {verdict.stage} check: {verdict.reason}"


def _drawing_problems(config: RunConfig) -> Iterator[str]:
    from onrig.tools.drawings import drawing_of

    drawing_of(config)
    yield from ()


def _driver_problems(config: RunConfig) -> Iterator[str]:
    from onrig.hw.device.driven import Driver

    settings = config.device.driver
    assert settings is not UNSET
    code = registry.import_home(settings, settings.home)
    if not (isinstance(code, type) and issubclass(code, Driver)):
        yield f"has the home '{settings.home}', which is not a subclass of Driver"
        return
    required_methods = ["sample", "apply", "safe"]
    required_methods += [] if settings.watchdog_s is None else ["arm_watchdog", "feed_watchdog"]
    for name in required_methods:
        if getattr(code, name) is getattr(Driver, name):
            reason = f", but the watchdog of {settings.watchdog_s:g} s needs it" if "watchdog" in name else ""
            yield f"does not define {name}(){reason}"


def _camera_problems(config: RunConfig) -> Iterator[str]:
    from onrig.hw.cameras.driver import CameraDriver

    cameras = {} if config.device.cameras is UNSET else config.device.cameras
    for settings in cameras.values():
        if not registry.is_third_party(settings):
            continue
        code = registry.import_home(settings, settings.home)
        if not (isinstance(code, type) and issubclass(code, CameraDriver)):
            yield f"has the home '{settings.home}', which is not a subclass of CameraDriver"
        elif code.read is CameraDriver.read:
            yield "does not define read()"


_EXERCISES: Final[dict[str, tuple[NodePath, Callable[[RunConfig], Iterator[str]]]]] = {
    registry.RETENTIONS: (_STRATEGY_PATH, _keeper_problems),
    registry.SAMPLERS: (_STRATEGY_PATH, _sampler_problems),
    registry.ALGORITHMS: (("learner", "algorithm"), _algorithm_problems),
    registry.DRAWINGS: (("view", "drawing"), _drawing_problems),
    registry.DEVICES: (("device", "driver"), _driver_problems),
    registry.CAMERAS: (("device", "cameras"), _camera_problems),
}
"""Path of the setting that chooses a plugin, and the plugin's check, by plugin group."""
