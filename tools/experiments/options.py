"""Options of an experiment: which trials to run, on which workers."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.tools.experiments.spec import MAX_TRIALS
from onrig.tools.experiments.workers import ExecutorMismatch, LocalWorkers, NoWorkers, Workers
from onrig.tools.machine import Machine

_NO_RAY = "--cluster needs Ray: pip install 'onrig[cluster]'"


class ExperimentOptions(NamedTuple):
    """Options for selecting and running trials; None if not given."""

    workers: int | None = None
    cluster: str | None = None
    trials: int | None = None
    chunk: int | None = None
    only: Sequence[str] = ()

    @property
    def command_line_arguments(self) -> list[str]:
        """Options as command-line arguments, without ``only``."""
        options = {name: value for name, value in self._asdict().items() if value is not None and name != "only"}
        return [argument for name, value in options.items() for argument in (f"--{name}", str(value))]

    def problem(self, *, costs: bool) -> str | None:
        """Return what is wrong with the options, or None."""
        if costs and self.command_line_arguments:
            arguments = shlex.join(self.command_line_arguments)
            return f"--costs measures one trial of each cell on this machine: omit {arguments}"
        for name in ("workers", "trials", "chunk"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_TRIALS:
                return f"--{name}: expected 1 to {MAX_TRIALS}, got {value}"
        if self.cluster is not None and self.workers is not None:
            return "--workers applies to this machine, not to a cluster: omit --workers or --cluster"
        return None


def check_cluster(address: str) -> None:
    """Check that Ray is installed and the address is well-formed. Raises Failure if not."""
    if find_spec("ray") is None:
        raise Failure(_NO_RAY, ExitCode.PREFLIGHT)
    from onrig.tools.experiments.cluster import address_problem

    problem = address_problem(address)
    if problem is not None:
        raise Failure(f"--cluster: {problem}")


@contextlib.contextmanager
def start_workers(options: ExperimentOptions, folder: Path, resume_advice: str) -> Iterator[Workers]:
    """Context manager that starts workers for the trials in a folder, and closes them on exit.

    Errors of the workers or the folder are converted to Failure, with a message that ends with ``resume_advice``.
    """
    workers: Workers | None = None
    try:
        workers = _create_workers(options)
        yield workers
    except NoWorkers as error:
        code = ExitCode.HARDWARE if options.cluster else ExitCode.INTERNAL
        raise Failure(f"{error}; {resume_advice}", code) from None
    except ExecutorMismatch as error:
        raise Failure(f"{error}; {resume_advice}") from None
    except OSError as error:
        path = error.filename2 or error.filename or folder
        message = f"'{path}' cannot be written: {error.strerror or error}; {resume_advice}"
        raise Failure(message, ExitCode.PREFLIGHT) from None
    finally:
        if workers is not None:
            workers.close()


def _create_workers(options: ExperimentOptions) -> Workers:
    if options.cluster:
        from onrig.tools.experiments.cluster import ClusterWorkers

        return ClusterWorkers(options.cluster)
    return LocalWorkers(options.workers or math.ceil(Machine().usable_cpu_count()))
