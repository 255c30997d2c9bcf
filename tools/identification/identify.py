"""Identification of a plant from a twin, a device or a run: result, page or refusal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.tools.damage import LOG_PATTERNS, exit_code_with_damage, print_damage
from onrig.tools.device_process import open_device_line
from onrig.tools.load import load, load_for_rig, print_problems
from onrig.tools.ports import missing_port_problem
from onrig.tools.progress import show_progress
from onrig.tools.terminal import complain, folder_problem

if TYPE_CHECKING:
    from onrig.hw.session import DeviceSession
    from onrig.runtime.record import Step
    from onrig.sim.identification.outcome import Identification as Fitted
    from onrig.sim.identification.result import Result
    from onrig.sim.plants import Plant
    from onrig.sim.plants.excitation import Excitation
    from onrig.tools.identification.experiment import ExcitationDriver, Experiment

_SCIPY_MISSING_TEXT: Final = "identification needs scipy: pip install 'onrig[identify]'"
MCAP_MISSING_TEXT: Final = "reading a run's log needs mcap: pip install 'onrig[log]'"
_MAX_STEPS: Final = 20_000
"""Maximum number of steps used of a run: the first ones, where exploration is strongest."""


class IdentifiedPlant(NamedTuple):
    """Result of an identification, and the folder that contains it."""

    source: str
    folder: Path
    result: Result
    """Parameters with their joint uncertainty, as in ``identified.yaml``."""
    unpredictable: tuple[str, ...]
    """Reasons why the configuration's shield cannot predict the identified plant: a run would refuse the result."""
    settings: tuple[str, ...]
    """Settings to change before a run can use the result."""
    damage: tuple[str, ...] = ()
    """Damaged files of the run from which the plant was identified."""


class NotIdentified(Failure):
    """No plant can be identified from the data, or the rig is connected wrongly. ``problems`` has one line per
    problem."""

    def __init__(self, source: str, problems: Sequence[str], out: Path | None = None) -> None:
        lines = [f"{source}: {problem}" for problem in problems]
        if out is not None and (out / FILE_NAME).exists():
            lines.append(f"nothing was written; '{out / FILE_NAME}' is from an earlier identification")
        super().__init__("\n".join(lines), ExitCode.PREFLIGHT)
        self.problems: Final = tuple(problems)


def missing_library() -> str | None:
    """Return a message if a required library is missing, otherwise None."""
    return _SCIPY_MISSING_TEXT if find_spec("scipy") is None else None


ConfirmationPrompt = Callable[[str], bool]
"""Receives a description of the motion, and returns whether the device may be driven."""


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
    """Identify a plant from the log of a run (``source`` is its folder), or by exciting a configuration's twin or
    device.

    ``effort``: share of each actuator's range; ``seed``: of the twin's noise; ``until``: sufficient relative half-width
    of the plant's parameters (default: the full experiment); ``sharpen``: combine a run's newest ticks with the
    identification that it began with, instead of using its first ticks alone; ``confirm``: called before a device is
    driven; by default, it refuses.  Writes ``identified.yaml`` and a page to ``out`` (default: the run's
    ``identification``, or ``identified-RIG``).  Raises ConfigError, Failure, NotIdentified.
    """
    if missing := missing_library():
        raise Failure(missing, ExitCode.PREFLIGHT)
    folder = None if out is None else Path(out)
    if problem := folder_problem("out", folder):
        raise Failure(problem)
    if sharpen:
        from onrig.tools.identification.sharpening import sharpen_run

        return sharpen_run(Path(source), folder)
    if (Path(source) / "config.yaml").is_file():
        return _identify_run(Path(source), folder or Path(source) / "identification")
    name = str(source)
    config = load_for_rig(name, overrides, port=device) if device else load(name, overrides)
    try:
        # the twin's plant is the best initial guess for a device on a port, too
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
    """Identify a plant and print the result; asks before driving a device unless ``yes``.

    ``sharpen``: combine a run's ticks with the identification it began with, again and again while it is running.
    Returns the exit code.
    """
    try:
        if sharpen:
            from onrig.tools.identification.sharpening import follow_run

            identified = follow_run(Path(source), out, lambda fitting: print(fitting.line(), flush=True))
        else:
            identified = identify(
                source, overrides, device=device, effort=effort, seed=seed, out=out, until=until,
                confirm=(lambda text: True) if yes else _ask,
            )  # fmt: skip
    except ConfigError as error:
        return print_problems(error)
    except Failure as failure:
        for line in str(failure).splitlines():
            complain("identify", line)
        return failure.code
    from onrig.tools.identification.page import result_tables

    for sheet in result_tables(identified.result):
        print(f"{sheet.title}\n{sheet.text()}\n")
    print("Not identifiable:")
    for line in identified.result.not_known:
        print(f"  {line}")
    before_use = [*identified.unpredictable, *identified.settings]
    if identified.unpredictable:
        for problem in before_use:
            complain("identify", f"{identified.source}: {problem}")
        return ExitCode.PREFLIGHT
    usage = "; ".join(before_use) or f"use it in a run: --set identified={identified.folder / FILE_NAME}"
    print(f"\nsee {identified.folder / 'identification.html'}; {usage}")
    return exit_code_with_damage(ExitCode.OK, identified.damage)


def _ask(text: str) -> bool:
    print(f"{text}\nKeep clear, a hand on the e-stop.  Continue? (yes) ", end="", flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def nominal_plant(config: RunConfig) -> Plant:
    """Return the initial guess: the twin's plant, otherwise the shield's nominal plant; raises ValueError if neither
    exists.
    """
    from onrig.sim.plants.registry import simulated
    from onrig.sim.twin.main import twin_options

    if config.device.twin is not None:
        return twin_options(config).plant
    if config.limits.predicted is None:
        raise ValueError("the plant is unknown: set limits.predicted, or a twin")
    return simulated(config.limits.predicted).of_box(config.limits.predicted, config.rig)


def _identify_run(folder: Path, out: Path) -> IdentifiedPlant:
    if find_spec("mcap") is None:
        raise Failure(MCAP_MISSING_TEXT, ExitCode.PREFLIGHT)
    from onrig.runtime.log.reading import LogDamagedError
    from onrig.runtime.run_loading import load_resolved

    config = load_resolved(folder / "config.yaml")
    damage = print_damage("identify", folder, *LOG_PATTERNS)
    try:
        steps = _logged_steps(folder, config)
    except LogDamagedError as error:
        raise Failure(str(error), ExitCode.INTERNAL) from None
    if not steps:
        raise Failure(f"'{folder}' contains no log (log.mcap) with steps")
    try:
        plant = nominal_plant(config)
    except ValueError as error:
        raise Failure(f"{folder / 'config.yaml'}: {error}") from None
    source = f"run {folder.resolve().name}, its first {len(steps)} ticks"
    return fit_and_write(config, plant, steps, out, source)._replace(damage=tuple(damage))


def _logged_steps(folder: Path, config: RunConfig) -> list[Step]:
    from onrig.runtime.log.reading import Event, LogEnd, LogStart, StoredLoopState, read_log

    layout = record_layout(config)
    steps: list[Step] = []
    for part in read_log(folder, config.rig, behaviour=config.stochastic, inputs=config.input_names):
        if isinstance(part, LogStart | LogEnd | Event | StoredLoopState):
            continue
        for row in part[: _MAX_STEPS - len(steps)]:
            steps.append(layout.step(row))
        if len(steps) >= _MAX_STEPS:
            break
    return steps


def _identify_twin(experiment: Experiment, seed: int, out: Path) -> IdentifiedPlant:
    from onrig.hw.transport import LinkError
    from onrig.tools.evaluate import lockstep_session
    from onrig.tools.identification.driving import DeviceFault

    config = experiment.config

    def drive(parts: Sequence[Excitation], piece: int) -> list[Step]:
        return _drive_with_progress(config, lockstep_session(config), parts, (seed + piece) % (1 << 63))

    try:
        return _run_experiment(experiment, drive, out, f"its twin, seed {seed}")
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
    missing = missing_port_problem(line.path) if isinstance(line, Serial) else None
    if missing is not None:
        raise Failure(f"{address}: {missing}", ExitCode.HARDWARE)
    if not confirm(_describe_experiment(experiment, address)):
        raise Failure("not confirmed; nothing was moved", ExitCode.PREFLIGHT)
    try:
        with open_device_line(config) as opened, contextlib.closing(opened.open()) as transport:
            session = DeviceSession(transport, config.rig, time)
            hello = session.connect(5.0)
            check_pace(config, hello)
            session.configure(config.period_us, config.rig.lease_periods)
            apply_limits(config, session)
            resets = bool(hello.capabilities & Capability.RESET)

            def drive(parts: Sequence[Excitation], piece: int) -> list[Step]:
                return _drive_with_progress(config, session, parts, piece if resets else None)

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
        lines = [f"onrig identify drives {config.rig.name} on {port} for {experiment.longest_s:.0f} s at most:"]
    lines += [f"  {a.name}: {ranges[a.name][0]:g} to {ranges[a.name][1]:g} {a.unit}" for a in config.rig.actuators]
    for name, envelope in config.limits.envelope.items():
        lines.append(f"  the shield keeps {name} within {envelope.low:g} to {envelope.high:g}")
    return "\n".join(lines)


def _run_experiment(experiment: Experiment, drive: ExcitationDriver, out: Path, source: str) -> IdentifiedPlant:
    from onrig.sim.identification.outcome import Implausible
    from onrig.tools.identification.experiment import excite

    try:
        steps, narrow = excite(experiment, drive)
    except Implausible as error:
        raise NotIdentified(source, error.problems, out) from None
    if experiment.until is not None:
        source = f"{source}, {len(steps) / experiment.config.rate_hz:.1f} s driven"
    return fit_and_write(experiment.config, experiment.plant, steps, out, source, narrow)


def fit_and_write(
    config: RunConfig, plant: Plant, steps: Sequence[Step], out: Path, source: str, identification: Fitted | None = None
) -> IdentifiedPlant:
    """Fit a plant to steps unless ``identification`` is given; write the result.  Raises Failure, NotIdentified."""
    from onrig.sim.identification.outcome import Implausible
    from onrig.sim.identification.result import result_of, write_result
    from onrig.tools.identification.experiment import fit_steps
    from onrig.tools.identification.page import write_page
    from onrig.tools.identification.refusal import find_conflicts, reversed_channels

    try:
        identification = identification or fit_steps(config, plant, steps)
    except Implausible as error:
        raise NotIdentified(source, error.problems, out) from None
    except ValueError as error:
        raise Failure(f"{source}: {error}") from None
    result = result_of(identification, plant, config.rig, config.limits.predicted, source, config.limits.envelope)
    if problems := reversed_channels(identification.connection, config.rig):
        raise NotIdentified(source, problems, out)
    conflicts = find_conflicts(config, result)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_result(result, out / FILE_NAME, [*conflicts.unpredictable, *conflicts.settings])
        write_page(result, identification, config.rig, out / "identification.html")
    except OSError as error:
        raise Failure(f"'{error.filename or out}' cannot be written: {error.strerror or error}") from None
    return IdentifiedPlant(source, out, result, tuple(conflicts.unpredictable), tuple(conflicts.settings))


def _drive_with_progress(
    config: RunConfig, session: DeviceSession, parts: Sequence[Excitation], seed: int | None
) -> list[Step]:
    from onrig.tools.identification.driving import drive

    with show_progress("exciting the rig", sum(e.duration_s for e in parts)) as progress:
        return drive(config, session, parts, seed, progress)
