"""Sharpening of the identification that a run started with, using the run's own data: once, or until the run ends.

Run as a module, it follows the run in a folder: ``python -m onrig.tools.identification.sharpening FOLDER``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.control.realtime import leave_cpu
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.running import RemoteControl, SegmentError, find_running
from onrig.runtime.supervise.child import Child
from onrig.tools.identification.recorded import (
    MCAP_MISSING_TEXT,
    IdentifiedPlant,
    NotIdentified,
    fit_recorded,
    missing_library,
    nominal_plant,
    write_identified,
)
from onrig.tools.sharpened import FITTINGS_FILE, Fitting, read_fittings, write_fitting

if TYPE_CHECKING:
    from onrig.runtime.record import Step
    from onrig.sim.identification.result import Parameter, Result
    from onrig.sim.identification.sharpening import Change

MAX_STEPS: Final = 10_000
"""Maximum number of steps used. These are the newest steps, which show the plant as it is now; at 50 Hz, they yield at
least as many windows as a fit uses.
"""
_MIN_STEPS: Final = 2000
"""Number of logged steps before the first fit of a run in progress."""
_NEW_STEPS: Final = 3000
"""Number of logged steps between two fits."""
_POLL_INTERVAL_S: Final = 1.0
_MAX_START_S: Final = 60.0
_MAX_LAST_FIT_S: Final = 120.0
_NICENESS: Final = 10


class PlantDeparted(NotIdentified):
    """Raised if the plant has departed from the identification that its run started with."""

    def __init__(self, source: str, problem: str, out: Path, p_value: float) -> None:
        super().__init__(source, [problem], out)
        self.p_value: Final = p_value


def sharpen_run(folder: Path, out: Path | None = None) -> IdentifiedPlant:
    """Combine a run's newest steps with the identification that it started with, and write the result to ``out``.

    By default, ``out`` is the run's ``identification``. Raises ConfigError, Failure, and PlantDeparted if the plant has
    departed from the identification, in which case nothing is written.
    """
    config, earlier = _read_beginning(folder)
    return _sharpen(folder, config, earlier, _newest_steps(folder, config), out or folder / "identification")


@contextlib.contextmanager
def sharpening_alongside(folder: Path) -> Iterator[None]:
    """Follow the run in ``folder`` in a separate process, and print the last result at the end of the context."""
    child = Child("sharpening", __name__, [str(folder)], folder / "stderr.log")
    grace_s = 0.0
    try:
        yield
        if (folder / "config.yaml").exists():  # the file is missing if the run did not start
            grace_s = _MAX_LAST_FIT_S
            print("sharpening the identification (Ctrl-C skips this last fit)", flush=True)
    finally:
        try:
            child.end(grace_s, send_sigterm=False)
        except KeyboardInterrupt:
            child.end(0.0)
        child.close()
    if fittings := read_fittings(folder):
        print(f"identification: {fittings[-1].line()}")


def main() -> int:
    """Wait until the run in a folder has begun, and follow it with low priority and off the loop's CPU."""
    folder, deadline_s = Path(sys.argv[1]), time.monotonic() + _MAX_START_S
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    while find_running(folder) is None and time.monotonic() < deadline_s:
        time.sleep(_POLL_INTERVAL_S)
    try:
        config = load_resolved(folder / "config.yaml")
        if not config.lockstep:
            leave_cpu(config.realtime)
        with (folder / FITTINGS_FILE).open("ab") as fittings:
            if fittings.tell():
                fittings.write(b"\n")  # after a crash, the last line may be incomplete
            follow_run(folder, None, lambda fitting: write_fitting(fittings, fitting))
    except (ConfigError, OSError) as error:
        print(f"sharpening: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION
    except Failure as failure:  # the last line of the file contains its message
        return failure.code
    return ExitCode.OK


def follow_run(folder: Path, out: Path | None, show: Callable[[Fitting], object]) -> IdentifiedPlant:
    """Sharpen repeatedly until the run ends, and once more afterwards, and return the last result.

    ``show`` receives each fit. The run is notified if its plant has departed, with at most one false alarm in 1000 runs
    of any length: fit k must be significant at ``DEPARTURE_P_VALUE`` / (k (k + 1)), and these levels sum to less than
    ``DEPARTURE_P_VALUE``. A resumed run that is sharpened again continues the count of its fits, and is notified
    again of an earlier departure.

    Raises the same exceptions as :func:`sharpen_run`, but only for the last fit.
    """
    config, earlier = _read_beginning(folder)
    from onrig.sim.identification.sharpening import DEPARTURE_P_VALUE

    out, fittings = out or folder / "identification", read_fittings(folder)
    n_fits = max((fitting.number for fitting in fittings), default=0)
    next_fit_steps = fittings[-1].ticks + _NEW_STEPS if fittings else _MIN_STEPS
    if any(fitting.has_departed for fitting in fittings):
        _report_departure(folder)

    def fit() -> IdentifiedPlant:
        nonlocal n_fits
        n_fits += 1
        steps = _newest_steps(folder, config)
        try:
            new_plant = _sharpen(folder, config, earlier, steps, out)
        except Failure as failure:
            max_p_value = DEPARTURE_P_VALUE / (n_fits * (n_fits + 1))
            has_departed = isinstance(failure, PlantDeparted) and failure.p_value < max_p_value
            problem = str(failure).replace("\n", "; ")
            show(Fitting(count_logged_steps(folder), problem, has_departed=has_departed, number=n_fits))
            if has_departed:
                _report_departure(folder)
            raise
        widths = _widths(earlier, new_plant.result)
        show(Fitting(count_logged_steps(folder), widths=widths, number=n_fits))
        return new_plant

    while find_running(folder) is not None:
        n = count_logged_steps(folder)
        if n >= next_fit_steps:
            next_fit_steps = n + _NEW_STEPS
            with contextlib.suppress(Failure):  # more data may resolve the problem
                fit()
        time.sleep(_POLL_INTERVAL_S)
    return fit()


def _report_departure(folder: Path) -> None:
    """Notify a run in progress that its plant has departed from the identification."""
    running = find_running(folder)
    if running is not None:
        with contextlib.suppress(SegmentError, OSError), RemoteControl(running) as control:
            control.report_departure()


def _widths(earlier: Result, result: Result) -> dict[str, tuple[float, float]]:
    earlier_parameters = {p.name: p for p in earlier.parameters if p.logarithmic and p.high > p.low}
    return {
        p.name: (_relative_width(earlier_parameters[p.name]), _relative_width(p))
        for p in result.parameters
        if p.logarithmic and p.name in earlier_parameters
    }


def _relative_width(p: Parameter) -> float:
    return (p.high - p.low) / abs(p.high + p.low)


def count_logged_steps(folder: Path) -> int:
    """Return the number of records in a run's log, which is approximate while the log is being written."""
    from onrig.runtime.log.reading import count_steps

    return count_steps(folder)


def _read_beginning(folder: Path) -> tuple[RunConfig, Result]:
    """Read a run's configuration and the identification that the run started with."""
    if missing := missing_library():
        raise Failure(missing, ExitCode.PREFLIGHT)
    if find_spec("mcap") is None:
        raise Failure(MCAP_MISSING_TEXT, ExitCode.PREFLIGHT)
    return load_resolved(folder / "config.yaml"), read_earlier(folder)


def read_earlier(folder: Path) -> Result:
    """Read the identification that a run started with. Raises ConfigError, and Failure if there is none."""
    from onrig.sim.identification.result import read_result

    if not (folder / FILE_NAME).is_file():
        raise Failure(f"'{folder}' began without an identification (identified: FILE): omit --sharpen")
    return read_result(folder / FILE_NAME)


def _newest_steps(folder: Path, config: RunConfig) -> list[Step]:
    from onrig.runtime.log.reading import LogDamagedError, read_last

    layout = record_layout(config)
    try:
        rows = read_last(folder, config.rig, MAX_STEPS, behaviour=config.stochastic, inputs=config.input_names)
    except LogDamagedError as error:
        raise Failure(str(error), ExitCode.INTERNAL) from None
    if not len(rows):
        raise Failure(f"'{folder}' contains no log (log.mcap) with steps")
    return [layout.step(row) for row in rows]


def _sharpen(folder: Path, config: RunConfig, earlier: Result, steps: list[Step], out: Path) -> IdentifiedPlant:
    from onrig.sim.identification.sharpening import sharpen

    source = f"newest {len(steps)} ticks of run {folder.resolve().name}"
    try:
        plant = nominal_plant(config)
        fitted = fit_recorded(config, plant, steps, out, source)
        sharpening = sharpen(earlier, fitted, plant)
    except ValueError as error:
        raise Failure(f"{source}: {error}") from None
    if sharpening.has_departed:
        raise PlantDeparted(source, _describe_departure(sharpening.changes), out, sharpening.p_value)
    source = f"{earlier.source}; sharpened with the {source}"
    return write_identified(config, plant, sharpening.identification, out, source)


def _describe_departure(changes: Sequence[Change]) -> str:
    """Describe the parameters of a plant that has departed from its identification, most significant change first."""
    descriptions = [
        f"{c.name} {c.earlier_value:.4g}, now {c.new_value:.4g} {c.unit}".rstrip() + f" (p {c.p_value:.1g})"
        for c in sorted(changes, key=lambda change: change.p_value)
    ]
    return f"the plant has left the identification: {'; '.join(descriptions)}"


if __name__ == "__main__":
    sys.exit(main())
