"""Identification of a plant from recorded steps, such as the log of a run: result, page or refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.tools.damage import LOG_PATTERNS, print_damage
from onrig.tools.progress import show_progress

if TYPE_CHECKING:
    from onrig.runtime.record import Step
    from onrig.sim.identification.outcome import Identification as Fitted
    from onrig.sim.identification.result import Result
    from onrig.sim.plants import Plant

_SCIPY_MISSING_TEXT: Final = "identification needs scipy: pip install 'onrig[identify]'"
MCAP_MISSING_TEXT: Final = "reading a run's log needs mcap: pip install 'onrig[log]'"
_MAX_STEPS: Final = 20_000
"""Maximum number of a run's steps to use; they are the first ones, in which exploration is strongest."""


class IdentifiedPlant(NamedTuple):
    """Result of an identification, and the folder that contains it."""

    source: str
    folder: Path
    result: Result
    """Parameters with their joint uncertainty, as in ``identified.yaml``."""
    unpredictable: tuple[str, ...]
    """Reasons why the configuration's shield cannot predict the identified plant, so that a run would refuse it."""
    settings: tuple[str, ...]
    """Settings to change before a run can use the result."""
    damage: tuple[str, ...] = ()
    """Damaged files of the run from which the plant was identified."""


class NotIdentified(Failure):
    """Raised if no plant can be identified from the data, or if the rig is wrongly connected.

    ``problems`` contains one line per problem.
    """

    def __init__(self, source: str, problems: Sequence[str], out: Path | None = None) -> None:
        lines = [f"{source}: {problem}" for problem in problems]
        if out is not None and (out / FILE_NAME).exists():
            lines.append(f"nothing was written; '{out / FILE_NAME}' is from an earlier identification")
        super().__init__("\n".join(lines), ExitCode.PREFLIGHT)
        self.problems: Final = tuple(problems)


def missing_library() -> str | None:
    """Return a message if a required library is missing, otherwise None."""
    return _SCIPY_MISSING_TEXT if find_spec("scipy") is None else None


def nominal_plant(config: RunConfig) -> Plant:
    """Return the initial guess: the twin's plant if there is a twin, otherwise the shield's nominal plant.

    Raises ValueError if neither exists.
    """
    from onrig.sim.plants.registry import plant_type_for
    from onrig.sim.twin.main import twin_options

    if config.device.twin is not None:
        return twin_options(config).plant
    if config.limits.predicted is None:
        raise ValueError("the plant is unknown: set limits.predicted, or a twin")
    return plant_type_for(config.limits.predicted).of_box(config.limits.predicted, config.rig)


def identify_run(folder: Path, out: Path) -> IdentifiedPlant:
    """Identify a plant from the first steps of a run's log. Raises ConfigError, Failure, NotIdentified."""
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
    source = f"first {len(steps)} ticks of run {folder.resolve().name}"
    with show_progress("fitting the plant", 1.0) as report:
        identification = fit_recorded(config, plant, steps, out, source, report)
    return write_identified(config, plant, identification, out, source)._replace(damage=tuple(damage))


def _logged_steps(folder: Path, config: RunConfig) -> list[Step]:
    from onrig.runtime.log.reading import Event, LogEnd, LogStart, StoredLoopState, read_log

    layout = record_layout(config)
    steps: list[Step] = []
    for entry in read_log(folder, config.rig, behaviour=config.stochastic, inputs=config.input_names):
        if isinstance(entry, LogStart | LogEnd | Event | StoredLoopState):
            continue
        for row in entry[: _MAX_STEPS - len(steps)]:
            steps.append(layout.step(row))
        if len(steps) >= _MAX_STEPS:
            break
    return steps


def fit_recorded(
    config: RunConfig,
    plant: Plant,
    steps: Sequence[Step],
    out: Path,
    source: str,
    report: Callable[[float], None] = lambda done: None,
) -> Fitted:
    """Fit a plant to steps. Raises Failure, and NotIdentified with a note about any earlier result in ``out``."""
    from onrig.sim.identification.outcome import Implausible
    from onrig.tools.identification.experiment import fit_steps

    try:
        return fit_steps(config, plant, steps, report)
    except Implausible as error:
        raise NotIdentified(source, error.problems, out) from None
    except ValueError as error:
        raise Failure(f"{source}: {error}") from None


def write_identified(
    config: RunConfig, plant: Plant, identification: Fitted, out: Path, source: str
) -> IdentifiedPlant:
    """Write a result and its page to ``out``. Raises Failure, and NotIdentified if channels are reversed."""
    from onrig.sim.identification.result import result_of, write_result
    from onrig.tools.identification.page import write_page
    from onrig.tools.identification.refusal import find_conflicts, reversed_channels

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
