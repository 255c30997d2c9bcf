"""Identification of a plant from a twin, a device or a run: result, page or refusal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.run_config import RunConfig
from onrig.tools.damage import exit_code_with_damage
from onrig.tools.device_process import open_device_line
from onrig.tools.identification.recorded import (
    IdentifiedPlant,
    NotIdentified,
    fit_recorded,
    identify_run,
    missing_library,
    nominal_plant,
    write_identified,
)
from onrig.tools.load import load, load_for_rig, print_problems
from onrig.tools.ports import missing_port_problem
from onrig.tools.progress import show_progress
from onrig.tools.terminal import complain, folder_problem

if TYPE_CHECKING:
    from onrig.hw.session import DeviceSession
    from onrig.runtime.record import Step
    from onrig.sim.plants.excitation import Excitation
    from onrig.tools.identification.experiment import ExcitationDriver, Experiment


ConfirmationPrompt = Callable[[str], bool]
"""Function that receives a description of the motion and returns whether the device may be driven."""


def identify(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    effort: float = 1.0,
    seed: int = 0,
    out: str | Path | None = None,
    until: float | None = None,
    sharpen: bool = False,
    confirm: ConfirmationPrompt = lambda text: False,
) -> IdentifiedPlant:
    """Identify a plant from a run's log, or by exciting a configuration's twin or device.

    ``source`` is the run's folder or the configuration. ``effort`` is the share of each actuator's range to use,
    ``seed`` is the seed of the twin's noise, and ``until`` is the relative half-width of the plant's parameters that is
    sufficient (default: the full experiment). With ``sharpen``, a run's newest ticks are combined with the
    identification that it started with; otherwise, its first ticks are used alone. ``confirm`` is called before a
    device is driven and refuses by default.

    The result, ``identified.yaml``, and a page are written to ``out`` (default: the run's ``identification``, or
    ``identified-RIG``). Raises ConfigError, Failure, NotIdentified.
    """
    if problem := missing_library():
        raise Failure(problem, ExitCode.PREFLIGHT)
    folder = None if out is None else Path(out)
    if problem := folder_problem("out", folder):
        raise Failure(problem)
    if sharpen:
        from onrig.tools.identification.sharpening import sharpen_run

        return sharpen_run(Path(source), folder)
    if (Path(source) / "config.yaml").is_file():
        return identify_run(Path(source), folder or Path(source) / "identification")
    name = str(source)
    config = load_for_rig(name, overrides, port=device) if device else load(name, overrides)
    try:
        # For a device on a port, too, the twin's plant is the best initial guess.
        plant = nominal_plant(load(name, overrides) if device else config)
    except (ValueError, ConfigError) as error:
        raise Failure(f"{name}: {error}") from None
    from onrig.tools.identification.driving import ranges_of
    from onrig.tools.identification.experiment import Experiment

    folder = folder or Path(f"identified-{config.rig.name}")
    experiment = Experiment(config, plant, ranges_of(config, effort), until)
    if config.device.twin is None:
        return _identify_device(experiment, folder, confirm)
    return _identify_twin(experiment, seed, folder)


def show_identification(
    source: str,
    overrides: Sequence[str],
    device: str | None,
    effort: float,
    seed: int,
    out: Path | None,
    until: float | None,
    *,
    yes: bool,
    sharpen: bool,
) -> int:
    """Identify a plant, print the result and return the exit code; ask before driving a device unless ``yes``.

    With ``sharpen``, a run's ticks are combined with the identification that it started with, repeatedly while the run
    is in progress.
    """
    try:
        if sharpen:
            from onrig.tools.identification.sharpening import follow_run

            identified_plant = follow_run(Path(source), out, lambda fitting: print(fitting.line(), flush=True))
        else:
            identified_plant = identify(
                source, overrides, device=device, effort=effort, seed=seed, out=out, until=until,
                confirm=(lambda text: True) if yes else _confirm,
            )  # fmt: skip
    except ConfigError as error:
        return print_problems(error)
    except Failure as failure:
        for line in str(failure).splitlines():
            complain("identify", line)
        return failure.code
    from onrig.tools.identification.page import result_tables

    for sheet in result_tables(identified_plant.result):
        print(f"{sheet.title}\n{sheet.text()}\n")
    print("Not identifiable:")
    for line in identified_plant.result.not_known:
        print(f"  {line}")
    required_changes = [*identified_plant.unpredictable, *identified_plant.settings]
    if identified_plant.unpredictable:
        for problem in required_changes:
            complain("identify", f"{identified_plant.source}: {problem}")
        return ExitCode.PREFLIGHT
    usage = "; ".join(required_changes) or f"use it in a run: --set identified={identified_plant.folder / FILE_NAME}"
    print(f"\nsee {identified_plant.folder / 'identification.html'}; {usage}")
    return exit_code_with_damage(ExitCode.OK, identified_plant.damage)


def _confirm(text: str) -> bool:
    print(f"{text}\nKeep clear, with a hand on the e-stop.  Continue? (yes) ", end="", flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def _identify_twin(experiment: Experiment, seed: int, out: Path) -> IdentifiedPlant:
    from onrig.hw.transport import LinkError
    from onrig.sim.evaluation import lockstep_session
    from onrig.tools.identification.driving import DeviceFault

    config = experiment.config

    def drive(excitations: Sequence[Excitation], piece: int) -> list[Step]:
        return _drive_with_progress(config, lockstep_session(config), excitations, (seed + piece) % (1 << 63))

    try:
        return _run_experiment(experiment, drive, out, f"twin, seed {seed}")
    except (LinkError, DeviceFault) as error:
        raise Failure(f"the twin: {error}", ExitCode.HARDWARE) from None


def _identify_device(experiment: Experiment, out: Path, confirm: ConfirmationPrompt) -> IdentifiedPlant:
    from onrig.hw.identity import DeviceMismatch, LimitMismatch
    from onrig.hw.line import Serial
    from onrig.hw.messages import Capability
    from onrig.hw.session import DeviceSession, RequestRefused
    from onrig.hw.transport import LinkError
    from onrig.runtime.control.connection import LimitsTooWide, apply_limits, check_pace
    from onrig.tools.identification.driving import DeviceFault

    config = experiment.config
    line, address = config.device.line, config.device.address
    if line is not None and not line.allows_identification:
        raise Failure(f"{address}: identification does not support devices with this transport")
    problem = missing_port_problem(line.path) if isinstance(line, Serial) else None
    if problem is not None:
        raise Failure(f"{address}: {problem}", ExitCode.HARDWARE)
    if not confirm(_describe_experiment(experiment, address)):
        raise Failure("not confirmed; nothing was moved", ExitCode.PREFLIGHT)
    try:
        with open_device_line(config) as open_line, contextlib.closing(open_line.open()) as transport:
            session = DeviceSession(transport, config.rig, time)
            hello = session.connect(5.0)
            check_pace(config, hello)
            session.configure(config.period_us, config.rig.lease_periods)
            apply_limits(config, session)
            has_reset = bool(hello.capabilities & Capability.RESET)

            def drive(excitations: Sequence[Excitation], piece: int) -> list[Step]:
                return _drive_with_progress(config, session, excitations, piece if has_reset else None)

            return _run_experiment(experiment, drive, out, f"device on {address}")
    except (LimitsTooWide, LimitMismatch) as error:
        raise Failure(f"{address}: {error}; tighten the limits in the configuration to those of the device") from None
    except (LinkError, DeviceMismatch, RequestRefused) as error:
        raise Failure(f"{address}: {error}", ExitCode.HARDWARE) from None
    except DeviceFault as error:
        raise Failure(f"{address}: {error}; fix the cause and run it again", ExitCode.SAFETY) from None


def _describe_experiment(experiment: Experiment, port: str) -> str:
    config, ranges = experiment.config, experiment.ranges
    lines = [f"onrig identify drives {config.rig.name} on {port} for {experiment.longest_s:.0f} s:"]
    if experiment.until is not None:
        lines = [f"onrig identify drives {config.rig.name} on {port} for at most {experiment.longest_s:.0f} s:"]
    lines += [f"  {a.name}: {ranges[a.name][0]:g} to {ranges[a.name][1]:g} {a.unit}" for a in config.rig.actuators]
    for name, envelope in config.limits.envelope.items():
        lines.append(f"  the shield keeps {name} within {envelope.low:g} to {envelope.high:g}")
    return "\n".join(lines)


def _run_experiment(experiment: Experiment, drive: ExcitationDriver, out: Path, source: str) -> IdentifiedPlant:
    from onrig.sim.identification.outcome import Implausible
    from onrig.tools.identification.experiment import excite

    try:
        steps, narrow_result = excite(experiment, drive)
    except Implausible as error:
        raise NotIdentified(source, error.problems, out) from None
    if experiment.until is not None:
        source = f"{source}, driven for {len(steps) / experiment.config.rate_hz:.1f} s"
    config, plant = experiment.config, experiment.plant
    if narrow_result is None:
        with show_progress("fitting the plant", 1.0) as report:
            narrow_result = fit_recorded(config, plant, steps, out, source, report)
    return write_identified(config, plant, narrow_result, out, source)


def _drive_with_progress(
    config: RunConfig, session: DeviceSession, excitations: Sequence[Excitation], seed: int | None
) -> list[Step]:
    from onrig.tools.identification.driving import drive

    with show_progress("exciting the rig", sum(e.duration_s for e in excitations)) as progress:
        return drive(config, session, excitations, seed, progress)
