"""Identification of a plant from its twin, its device or a run: result, page or refusal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.tools.damage import LOGS, name_damage, with_damage
from onrig.tools.device_process import line_to
from onrig.tools.load import explain, load, load_for_rig
from onrig.tools.ports import missing_port
from onrig.tools.progress import progress_of
from onrig.tools.terminal import complain, unwritable_folder

if TYPE_CHECKING:
    from onrig.hw.session import DeviceSession
    from onrig.runtime.record import Step
    from onrig.sim.plants import Plant
    from onrig.sim.plants.excitation import Excitation
    from onrig.tools.identification.study import Outcome

_NO_SCIPY: Final = "it needs scipy: pip install 'onrig[identify]'"
_NO_MCAP: Final = "reading a run's log needs mcap: pip install 'onrig[log]'"
_MAX_STEPS: Final = 20_000
"""Maximum steps used of a run, from its beginning, where exploration is strongest."""


def missing_library(out: Path | None) -> int | None:
    """Return the exit code, after an error message, if a library is missing or ``out`` cannot be written; else None."""
    if find_spec("scipy") is None:
        return complain("identify", _NO_SCIPY, ExitCode.PREFLIGHT)
    problem = unwritable_folder("out", out)
    return None if problem is None else complain("identify", problem)


def identify_plant(
    name: str,
    overrides: Sequence[str],
    device: str | None,
    effort: float,
    seed: int,
    out: Path | None,
    *,
    unasked: bool,
) -> int:
    """Excite a configuration's twin or device (without confirmation if ``unasked``); returns the exit code."""
    try:
        config = load_for_rig(name, overrides, port=device) if device else load(name, overrides)
    except ConfigError as error:
        return explain(error)
    try:
        # For a device on a port, the twin's plant is still the best guess.
        plant = nominal_plant(load(name, overrides) if device else config)
    except (ValueError, ConfigError) as error:
        return complain("identify", f"{name}: {error}")
    out = out or Path(f"identified-{config.rig.name}")
    if config.device.twin is None:
        return _identify_device(config, plant, effort, out, yes=unasked)
    return _identify_twin(config, plant, effort, seed, out)


def nominal_plant(config: RunConfig) -> Plant:
    """Initial guess: the twin's plant, else the shield's nominal one; raises ValueError if there is neither."""
    from onrig.sim.plants.registry import simulated
    from onrig.sim.twin.main import twin_options

    if config.device.twin is not None:
        return twin_options(config).plant
    if config.limits.predicted is None:
        raise ValueError("the plant is unknown: set limits.predicted, or a twin")
    return simulated(config.limits.predicted).of_box(config.limits.predicted, config.rig)


def identify_run(folder: Path, out: Path) -> int:
    """Identify from the log of a run; returns the exit code."""
    if find_spec("mcap") is None:
        return complain("identify", _NO_MCAP, ExitCode.PREFLIGHT)
    from onrig.runtime.log.reading import LogDamaged
    from onrig.runtime.run_loading import load_resolved

    try:
        config = load_resolved(folder / "config.yaml")
    except ConfigError as error:
        return explain(error)
    damage = name_damage("identify", folder, *LOGS)
    try:
        steps = _logged_steps(folder, config)
    except LogDamaged as error:
        return complain("identify", str(error), ExitCode.INTERNAL)
    if not steps:
        return complain("identify", f"'{folder}' holds no log (log.mcap) with steps")
    try:
        plant = nominal_plant(config)
    except ValueError as error:
        return complain("identify", f"{folder / 'config.yaml'}: {error}")
    source = f"run {folder.resolve().name}, its first {len(steps)} ticks"
    return with_damage(_conclude(config, plant, steps, out, source), damage)


def _logged_steps(folder: Path, config: RunConfig) -> list[Step]:
    from onrig.runtime.log.reading import Event, Kept, LogEnd, LogStart, read_log

    layout = record_layout(config)
    steps: list[Step] = []
    for part in read_log(folder, config.rig, behaviour=config.stochastic, inputs=config.input_names):
        if isinstance(part, LogStart | LogEnd | Event | Kept):
            continue
        for row in part[: _MAX_STEPS - len(steps)]:
            steps.append(layout.step(row))
        if len(steps) >= _MAX_STEPS:
            break
    return steps


def _identify_twin(config: RunConfig, plant: Plant, effort: float, seed: int, out: Path) -> int:
    from onrig.hw.transport import LinkError
    from onrig.tools.evaluate import lockstep_session
    from onrig.tools.identification.driving import DeviceFault

    def experiment(parts: Sequence[Excitation]) -> list[Step]:
        return _driven(config, lockstep_session(config), parts, seed)

    try:
        return _run_excitation(config, plant, effort, experiment, out, f"its twin, seed {seed}")
    except (LinkError, DeviceFault) as error:
        return complain("identify", f"the twin: {error}", ExitCode.HARDWARE)


def _identify_device(config: RunConfig, plant: Plant, effort: float, out: Path, *, yes: bool) -> int:
    from onrig.hw.identity import DeviceMismatch, LimitsWider
    from onrig.hw.line import Serial
    from onrig.hw.messages import Capability
    from onrig.hw.session import DeviceSession, RequestRefused
    from onrig.hw.transport import LinkError
    from onrig.runtime.control.connection import LimitsTooWide, apply_limits, check_pace
    from onrig.tools.identification.driving import DeviceFault, ranges_of

    line, place = config.device.line, config.device.place
    if line is not None and not line.identifies:
        return complain("identify", f"{place}: a transport that identification cannot use")
    missing = missing_port(line.path) if isinstance(line, Serial) else None
    if missing is not None:
        return complain("identify", f"{place}: {missing}", ExitCode.HARDWARE)
    if not yes and not _confirm(config, plant, ranges_of(config, effort), place):
        return complain("identify", "not confirmed; nothing was driven", ExitCode.PREFLIGHT)
    try:
        with line_to(config) as opened, contextlib.closing(opened.open()) as transport:
            session = DeviceSession(transport, config.rig, time)
            hello = session.connect(5.0)
            check_pace(config, hello)
            session.configure(config.period_us, config.rig.lease_periods)
            apply_limits(config, session)
            seed = 0 if hello.capabilities & Capability.RESET else None

            def experiment(parts: Sequence[Excitation]) -> list[Step]:
                return _driven(config, session, parts, seed)

            return _run_excitation(config, plant, effort, experiment, out, f"device on {place}")
    except (LimitsTooWide, LimitsWider) as error:
        return complain("identify", f"{place}: {error}; tighten the configuration's limits to the device's")
    except (LinkError, DeviceMismatch, RequestRefused) as error:
        return complain("identify", f"{place}: {error}", ExitCode.HARDWARE)
    except DeviceFault as error:
        return complain("identify", f"{place}: {error}; clear its cause and start again", ExitCode.SAFETY)


def _confirm(config: RunConfig, plant: Plant, ranges: dict[str, tuple[float, float]], port: str) -> bool:
    """Ask for confirmation of the experiment and its limits."""
    duration_s = sum(e.duration_s for e in plant.excitations(config.rig, ranges))
    print(f"onrig identify drives {config.rig.name} on {port} for {duration_s:.0f} s:")
    for a in config.rig.actuators:
        print(f"  {a.name}: {ranges[a.name][0]:g} to {ranges[a.name][1]:g} {a.unit}")
    for name, envelope in config.limits.envelope.items():
        print(f"  the shield keeps {name} within {envelope.low:g} to {envelope.high:g}")
    print("Keep clear, a hand on the e-stop.  Continue? (yes) ", end="", flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def _run_excitation(
    config: RunConfig,
    plant: Plant,
    effort: float,
    experiment: Callable[[Sequence[Excitation]], list[Step]],
    out: Path,
    source: str,
) -> int:
    """Excite gently, check the sensors and signs, then excite fully."""
    from onrig.tools.identification.driving import GENTLE, ranges_of
    from onrig.tools.identification.refusal import refuse

    parts = plant.excitations(config.rig, ranges_of(config, effort))
    steps = experiment(parts[:GENTLE])
    if problems := _early_problems(config, plant, steps):
        return refuse(source, problems, out)
    steps += experiment(parts[GENTLE:])
    return _conclude(config, plant, steps, out, source)


def _early_problems(config: RunConfig, plant: Plant, steps: Sequence[Step]) -> list[str]:
    """List the certain problems after the gentle excitations, with which stronger ones would be unsafe."""
    from onrig.sim.identification.identify import connection_of, contradictions
    from onrig.sim.identification.recording import stretches
    from onrig.tools.identification.refusal import reversed_channels

    recorded = list(stretches(steps, config.rig, config.period_us))
    if problems := contradictions(plant, config.rig, recorded):
        return problems
    try:
        return reversed_channels(connection_of(plant, config.rig, recorded), config.rig)
    except ValueError:
        return []  # too short


def _conclude(config: RunConfig, plant: Plant, steps: Sequence[Step], out: Path, source: str) -> int:
    from onrig.sim.identification.identify import identify
    from onrig.sim.identification.outcome import Implausible
    from onrig.sim.identification.recording import stretches
    from onrig.sim.identification.result import result_of, write_result
    from onrig.sim.plants.integrate import SUBSTEPS
    from onrig.sim.twin.main import twin_options
    from onrig.tools.identification.page import result_tables, write_page
    from onrig.tools.identification.refusal import RESULT, conflicts_of, refuse, reversed_channels

    try:
        substeps = SUBSTEPS if config.device.twin is None else twin_options(config).substeps
        found = identify(plant, config.rig, list(stretches(steps, config.rig, config.period_us)), substeps)
    except Implausible as error:
        return refuse(source, error.problems, out)
    except ValueError as error:
        return complain("identify", f"{source}: {error}")
    result = result_of(found, plant, config.rig, config.limits.predicted, source, config.limits.envelope)
    if problems := reversed_channels(found.connection, config.rig):
        return refuse(source, problems, out)
    conflicts = conflicts_of(config, result)
    before_use = [*conflicts.unpredictable, *conflicts.settings]
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_result(result, out / RESULT, before_use)
        write_page(result, found, config.rig, out / "identification.html")
    except OSError as error:
        return complain("identify", f"'{error.filename or out}' cannot be written: {error.strerror or error}")
    for sheet in result_tables(result):
        print(f"{sheet.title}\n{sheet.text()}\n")
    print("Not identifiable:")
    for line in result.not_known:
        print(f"  {line}")
    if conflicts.unpredictable:
        return refuse(source, before_use)
    usage = "; ".join(before_use) or f"use it in a run: --set identified={out / RESULT}"
    print(f"\nsee {out / 'identification.html'}; {usage}")
    return ExitCode.OK


def _driven(config: RunConfig, session: DeviceSession, parts: Sequence[Excitation], seed: int | None) -> list[Step]:
    from onrig.tools.identification.driving import drive

    with progress_of("exciting the rig", sum(e.duration_s for e in parts)) as told:
        return drive(config, session, parts, seed, told)


def study(name: str, overrides: Sequence[str], twins: int, seed: int, *, policies: bool) -> int:
    """Identify random twins and print the coverage; returns the exit code."""
    try:
        config = load(name, overrides)
    except ConfigError as error:
        return explain(error)
    from onrig.tools.identification.study import Outcome, run_study, summary

    if config.device.twin is None:
        return complain("identify", "--study needs a twin (device.twin)")
    outcomes = []
    for outcome in run_study(config, twins, seed):
        outcomes.append(outcome)
        print(f"{len(outcomes)} of {twins} twins", file=sys.stderr, flush=True)
    print(summary(outcomes))
    return _compare(config, [o for o in outcomes if isinstance(o, Outcome)]) if policies else ExitCode.OK


def _compare(config: RunConfig, outcomes: Sequence[Outcome]) -> int:
    import numpy as np

    from onrig.tools.identification.policies import compare_policies
    from onrig.tools.quantity import bounded

    def show(episode: int) -> None:
        if episode % 50 == 0:
            print(f"{episode} of {config.episodes} episodes", file=sys.stderr, flush=True)

    try:
        found = compare_policies(config, outcomes, show)
    except ValueError as error:
        return complain("identify", f"--policies: {error}")
    learned, true = np.median(found.identified), np.median(found.true)
    print(f"policies on the true plant, medians: {learned:.3f} learned on the identified twins,")
    print(f"{true:.3f} on the true plants; difference {bounded(found.difference, 3, signed=True)}")
    return ExitCode.OK
