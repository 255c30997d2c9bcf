"""Loading of configurations for the verbs, with all checks of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from onrig.learner.settings import (
    image_problems,
    learner_settings,
    process_problem,
    rig_problems,
    settings_problems,
    settings_type,
    strategy_problems,
    unread_sections,
)
from onrig.runtime.config.document import is_file
from onrig.runtime.config.problem import ConfigError, Finding, NodePath, Problem, collect_findings, parse_path
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.memory.settings import MAX_CAPACITY, machine_bytes
from onrig.runtime.memory.strategy import parse_strategy, required_bytes
from onrig.runtime.registry import is_third_party
from onrig.runtime.run_checks import findings, guard_findings, warnings
from onrig.runtime.run_config import Port, RunConfig, capacity_of, layout_of
from onrig.runtime.run_loading import LoadingRules, load_run
from onrig.runtime.safety.limits import prediction_findings
from onrig.runtime.safety.plant_box import box_name
from onrig.runtime.scoring import early_end
from onrig.runtime.task import episode_steps
from onrig.runtime.view.drawing import ViewOptions
from onrig.sim.barrier.plants import nominal_plant, plant_problems, sampled_box, table_problems
from onrig.sim.twin.options import (
    TwinOptions,
)
from onrig.tools.exercise import third_party_findings
from onrig.tools.ports import wrong_port_problem
from onrig.tools.twin_findings import coverage_findings, twin_findings, twin_warnings


def sections() -> dict[NodePath, type]:
    """Return the types of the sections that other packages define. Raises ValueError for an invalid algorithm or
    sampler file.
    """
    return {("device", "twin"): TwinOptions, ("learner",): settings_type(), ("view",): ViewOptions}


def load(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a configuration with the checks for plants and trials. Raises ConfigError with every problem."""
    return load_run(name, overrides, sections, LoadingRules(refusal_checks=plant_findings))


def load_without_table(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a configuration whose sampled barrier has not been computed yet. Raises ConfigError with every problem."""
    return load_run(
        name, overrides, sections, LoadingRules(refusal_checks=lambda config: _plant_checks(config, with_table=False))
    )


def load_for_rig(
    name: str,
    overrides: Sequence[str] = (),
    *,
    port: str | None = None,
    on_warning: Callable[[Problem], None] = lambda problem: None,
    is_new_run: bool = True,
) -> RunConfig:
    """Load a rig's configuration with the checks of `load` and all other checks of `onrig run`.

    ``port`` replaces the configuration's device. The shield must still cover the configured twin, since it describes
    the same rig. ``on_warning`` receives warnings about a valid configuration. For a resumed run (``is_new_run`` is
    False), the first policy and other initial data are not checked, since the run's folder contains them. Raises
    ConfigError with every problem.
    """
    if port is not None:
        load_run(name, overrides, sections, LoadingRules(refusal_checks=coverage_findings))
    rules = LoadingRules(
        rig_findings if is_new_run else resumption_findings,
        _warnings,
        on_warning,
        lambda config: config if port is None else replace_device(config, port),
    )
    return load_run(name, overrides, sections, rules)


def load_for_learner(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a configuration for a remote learner; its section ``learner`` applies regardless of ``local_learner``."""
    return load_run(name, overrides, sections, LoadingRules(refusal_checks=learner_findings))


def replace_device(config: RunConfig, path: str) -> RunConfig:
    """Replace the configuration's twin or other device with a device on a port. The pace does not change."""
    port, box = config.device.port, sampled_box(config)
    if box is not None and config.device.twin is not None:  # the barrier table was computed for the twin's plant
        plant = msgspec.to_builtins(nominal_plant(config, box))
        predicted_box = msgspec.structs.replace(box, plant=plant)
        config = msgspec.structs.replace(config, limits=msgspec.structs.replace(config.limits, predicted=predicted_box))
    port = Port(path=path) if port is None else msgspec.structs.replace(port, path=path)
    removed_settings = {"twin": None, "transport": msgspec.UNSET, "driver": msgspec.UNSET, "attended": msgspec.UNSET}
    device = msgspec.structs.replace(config.device, port=port, **removed_settings)
    return msgspec.structs.replace(config, device=device)


def print_warning(problem: Problem) -> None:
    """Print a warning about a configuration to stderr."""
    sys.stderr.write(f"{problem}\n")


def print_problems(error: ConfigError) -> int:
    """Print the problems with a configuration, one per line, and return the exit code."""
    sys.stderr.write(f"{error}\n")
    return ExitCode.CONFIGURATION


def learner_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the reasons why a remote learner cannot use this configuration."""
    from onrig.tools.beginning import start_findings  # imports checkpoints and export formats

    problems = [*_learning_findings(config), *_rig_setting_findings(config, uses_learner=True)]
    yield from problems
    yield from start_findings(config)
    if not problems and not any(findings(config)):
        yield from _image_policy_findings(config)


def plant_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems with the learner and twin sections, alone or in combination, that prevent runs and trials."""
    return _plant_checks(config, with_table=True)


def _plant_checks(config: RunConfig, *, with_table: bool) -> Iterator[Finding]:
    if _uses_learner_section(config):
        yield from _learning_findings(config)
    twin_problems = [*twin_findings(config)]
    yield from twin_problems
    if (box := sampled_box(config)) is not None and not twin_problems and not any(findings(config)):
        problems = [*plant_problems(config, box)]
        if with_table and not problems:
            problems = [*table_problems(config, box)]
        for field, message in problems:
            yield ("limits", "predicted", field), f"{message}, at limits.predicted.{field}"


def _warnings(config: RunConfig) -> Iterator[Finding]:
    yield from warnings(config)
    learner = learner_settings(config.learner)
    yield from twin_warnings(config)
    if _uses_learner_section(config) and config.task.may_terminate:
        yield from _early_end_warnings(config, learner.algorithm_config.gamma)
    batch_steps, steps = (
        learner.algorithm_config.batch_steps,
        config.episodes * episode_steps(config.task, config.rate_hz),
    )
    if _uses_learner_section(config) and steps < batch_steps:
        path = ("learner", learner.algorithm, "steps")
        message = f"the run has {steps} steps, fewer than a batch of {batch_steps}: the policy never changes"
        yield path, f"{message}; increase the episodes or reduce the batch, at {'.'.join(path)}"

    write_probability = config.selection.write_probability
    if _uses_learner_section(config) and not batch_steps and steps * write_probability < learner.first_update_at:
        setting = "selection.write_probability" if write_probability < 1 else "episodes"
        first = f"a batch of {learner.batch}"
        if learner.first_update_at > learner.batch:
            first = f"learner.learning_starts ({learner.first_update_at})"
        message = f"the run stores about {steps * write_probability:.3g} experiences, fewer than {first}"
        yield parse_path(setting), f"{message}: the policy never changes; raise {setting}, at {setting}"


def _early_end_warnings(config: RunConfig, gamma: float) -> Iterator[Finding]:
    steps = episode_steps(config.task, config.rate_hz)
    end = early_end(config.task, config.rig, steps, gamma)
    if not end.is_profitable:
        return
    comparison = "random actions earn" if config.task.normalization is not None else "the start state earns"
    message = (
        f"an early end is worth {end.ending_reward:.4g}, but {comparison} {end.typical_return:.4g} without it "
        f"(discounted by {gamma:g}), so the learner is rewarded for ending; set reward.terminal below "
        f"{end.typical_return:.4g}, or raise reward.alive, at task.terminate"
    )
    yield ("task", "terminate"), message


def _uses_learner_section(config: RunConfig) -> bool:
    """Return whether the learner section applies: the learner is local, or the section differs from the default."""
    settings = learner_settings(config.learner)
    return config.local_learner or settings != type(settings)()


def _learning_findings(config: RunConfig) -> Iterator[Finding]:
    learner = learner_settings(config.learner)
    for path, message in settings_problems(learner):
        yield ("learner", *parse_path(path)), f"{message} at {'.'.join(('learner', path)) if path else 'learner'}"
    batch, capacity = learner.batch, _capacity(config)
    run_length = config.episodes * episode_steps(config.task, config.rate_hz)
    if 0 < capacity < batch:
        message = (
            f"a memory of {capacity} experiences is smaller than a batch of {batch} at "
            f"learner.{learner.algorithm}.batch"
        )
        yield ("learner", learner.algorithm, "batch"), message
    elif 0 < capacity < min(learner.first_update_at, run_length):  # a run that is too short causes only a warning
        message = f"a memory of {capacity} experiences never holds {learner.first_update_at}, so no update would follow"
        yield (
            ("learner", "learning_starts"),
            f"{message}: lower this setting, or raise selection.capacity, at learner.learning_starts",
        )
    for path, message in strategy_problems(learner, config.selection.strategy):
        yield parse_path(path), f"{message} at {path}"


def _rig_setting_findings(config: RunConfig, *, uses_learner: bool) -> Iterator[Finding]:
    """Yield the problems with learner settings that a rig refuses. Unless ``uses_learner``, the policy file may come
    from a different algorithm.
    """
    learner = learner_settings(config.learner)
    for path, message in rig_problems(learner, len(config.rig.actuators)):
        yield ("learner", *parse_path(path)), f"{message} at learner.{path}"
    if uses_learner:
        for path, message in (
            *learner.algorithm_config.run_problems(learner.algorithm, config, _capacity(config)),
            *image_problems(learner, config.cameras, config.signals, config.selection.strategy),
        ):
            yield parse_path(path), f"{message} at {path}"
    problem = process_problem(learner, config.exploration)
    if problem is not None and (uses_learner or learner.algorithm != type(learner)().algorithm):
        path, message = problem
        yield ("exploration", path), f"{message} at exploration.{path}"


def rig_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems that prevent a run from starting, in addition to those checked for every configuration."""
    problems = list(resumption_findings(config))
    yield from problems
    if not problems and _uses_learner_section(config) and not any(findings(config)):
        for path, message in unread_sections(learner_settings(config.learner), config.selection.strategy):
            yield parse_path(path), f"{message} at {path}"
        from onrig.tools.beginning import beginning_findings

        yield from beginning_findings(config)
        if config.local_learner:
            yield from _image_policy_findings(config)
    if config.policy is not None and not is_file(Path(config.policy)):
        yield ("policy",), f"no file '{config.policy}' at policy"
    elif config.policy is not None and not problems and not any(findings(config)):  # probing it needs a valid rig
        yield from _policy_findings(config)


def resumption_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems that prevent a run from starting as well as from being resumed."""
    problems = [*plant_findings(config), *guard_findings(config), *_memory_findings(config)]
    if _uses_learner_section(config):
        problems += _rig_setting_findings(config, uses_learner=config.local_learner)
    yield from problems
    port = config.device.port
    if port is not None and (reason := wrong_port_problem(port.path)) is not None:
        yield ("device", "port", "path"), f"{port.path}: {reason} at device.port.path"
    yield from coverage_findings(config)
    plants = config.limits.predicted
    # Built-in predictions take tenths of a second to build and are covered by tests, so they are not checked here.
    if plants is not None and is_third_party(plants) and not problems and not any(findings(config)):
        limits, rig, period_s = config.limits, config.rig, config.period_us * 1e-6
        path: NodePath = ("limits", "predicted")
        yield from collect_findings(lambda: prediction_findings(limits, rig, period_s), box_name(plants), path)
    if not problems and not any(findings(config)):
        yield from third_party_findings(config)


def _memory_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield a finding if the memory is too large for this machine; the run would otherwise fail only after its
    processes have started.
    """
    capacity = _capacity(config)
    if not capacity or capacity > MAX_CAPACITY:
        return
    try:
        strategy = parse_strategy(config.selection.strategy)
    except ValueError:  # reported by another check
        return
    is_thinned = config.selection.write_probability < 1
    required = required_bytes(strategy, capacity, layout_of(config), is_thinned=is_thinned)
    available = machine_bytes()
    if required > available:
        name = "strategy" if config.selection.capacity is None else "capacity"
        setting = "capacity_bytes" if config.selection.capacity_bytes is not None else name
        sizes = f"need {required / 1e9:.3g} GB, but this machine has {available / 1e9:.3g} GB"
        yield (
            ("selection", setting),
            f"{capacity} experiences {sizes}: keep fewer (selection.capacity) at selection.{setting}",
        )


def _image_policy_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield a finding if the admission check would refuse policies with these images. Their latency on this machine is
    ignored.
    """
    learner = learner_settings(config.learner)
    if learner.algorithm_config.image is None:
        return
    from onrig.learner.algorithm_exercise import untrained_policy
    from onrig.runtime.policy.admission import Refused  # imports onnxruntime, needed only with a policy
    from onrig.sim.evaluation import admission_verdict

    verdict = admission_verdict(untrained_policy(config, learner), config)
    if isinstance(verdict, Refused) and verdict.stage != "latency":
        path = ("learner", learner.algorithm, "images")
        message = f"policies with these images are refused by the {verdict.stage} check: {verdict.reason}"
        yield path, f"{message}; use fewer pixels, images or units, at {'.'.join(path)}"


def _policy_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield a finding if the initial policy cannot be read or the admission check would refuse it. Its latency on this
    machine is ignored.
    """
    from onrig.runtime.policy.admission import Refused  # imports onnxruntime, needed only with a policy
    from onrig.sim.evaluation import admission_verdict, read_model

    policy = str(config.policy)
    try:
        model = read_model(Path(policy), config)
    except OSError as error:
        yield ("policy",), f"'{policy}' cannot be read: {error.strerror or error} at policy"
        return
    verdict = model if isinstance(model, Refused) else admission_verdict(model, config)
    if isinstance(verdict, Refused) and verdict.stage != "latency":
        yield ("policy",), f"'{policy}' is refused by the {verdict.stage} check: {verdict.reason} at policy"


def _capacity(config: RunConfig) -> int:
    """Return the capacity of the memory, or 0 if it is invalid, which another check reports."""
    try:
        return capacity_of(config)
    except (ValueError, OverflowError):
        return 0
