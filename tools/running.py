"""Planning and executing a run, without a terminal: `onrig.run`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import UNSET

from onrig.hw.line import Serial
from onrig.runtime.config.document import MAX_BYTES
from onrig.runtime.config.identified import FILE_NAME, identification_hash
from onrig.runtime.control.realtime import resolve_loop_cpu
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.files import read_file
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import find_identification
from onrig.runtime.run_state.completeness import Completeness
from onrig.runtime.run_state.folder_access import FolderBusy, check_folder, check_path, lock_folder
from onrig.runtime.run_state.report import Report
from onrig.runtime.supervise.reports import ReportCallback
from onrig.runtime.supervise.requests import Keyboard, Request
from onrig.runtime.supervise.run_folder import (
    Resumption,
    fresh_folder,
    occupied_reason,
    reopen_run_folder,
    write_run_folder,
)
from onrig.runtime.supervise.supervisor import Supervisor
from onrig.tools.beginning import read_beginning
from onrig.tools.load import load_for_rig, print_warning
from onrig.tools.plugins import plugin_records, third_party_plugins
from onrig.tools.ports import missing_port_problem, persistent_name, wrong_port_problem
from onrig.tools.resumption import CannotResume, prepare_resumption
from onrig.tools.run_facts import RunFacts, facts_from_progress
from onrig.tools.terminal import folder_problem


class Plan(NamedTuple):
    """A run that has passed the checks and can start."""

    name: str
    """Configuration, or folder of the run to resume."""
    config: RunConfig
    folder: Path
    port: str | None
    resumption: Resumption | None = None
    facts: Mapping[str, object] = MappingProxyType({})
    """Additional entries for ``meta.json`` of a new run."""
    files: Mapping[str, bytes] = MappingProxyType({})
    """Additional files for the folder of a new run."""
    other_names: Collection[str] = ()
    """Files and folders that the folder of a new run may already contain."""

    @property
    def option(self) -> str:
        """Option that chooses the folder."""
        return "--run-dir" if self.resumption is None else "--resume"


class RunResult(NamedTuple):
    """Result of a run."""

    folder: Path
    config: RunConfig
    code: ExitCode
    """``OK``, ``INCOMPLETE`` if data are missing, ``INTERRUPTED`` if it was stopped; otherwise the kind of failure."""
    reason: str
    actuators: str
    """State of the actuators at the end, including whether the device confirmed it; empty if the run's loop never
    started.
    """
    completeness: Completeness | None
    """Completeness of the run's data; None if it is unknown."""


class RunFailed(Failure):
    """A fault, the device or one of the processes ended the run; ``result`` describes the end."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(f"{result.folder}: {result.reason}", result.code)
        self.result: Final = result


def run(
    name: str,
    overrides: Sequence[str] = (),
    *,
    run_dir: str | Path | None = None,
    device: str | None = None,
    resume: str | Path | None = None,
    progress: Callable[[RunFacts], object] = lambda facts: None,
) -> RunResult:
    """Run a configuration to its end, from a notebook, a program or a thread. No signal handlers are installed.

    ``name`` is a path or shipped name, ``device`` the port of a real device, and ``resume`` the folder of a run to
    continue. ``progress`` receives the facts of the run a few times per second (``facts.line()`` formats them); if it
    raises an exception, the run is stopped in an orderly way and the exception propagates. Ctrl-C ends the processes at
    once, after making the actuators safe. If `onrig stop` ends the run, this function returns normally. Raises
    ConfigError for an invalid configuration, Failure if the run cannot start, and RunFailed if a fault, the device or a
    process ends it.
    """
    plan = plan_run(name, overrides, _to_path(run_dir), device, _to_path(resume))

    stop = _StopOnError()

    def show(report: Report) -> None:
        if report.kind == "progress" and stop.cause is None:
            try:
                progress(facts_from_progress(plan.config, report.values))
            except BaseException as error:
                stop.cause = error

    with open_folder(plan) as (config, take_back):
        result = supervise(plan._replace(config=config), show, take_back, stop)
    if stop.cause is not None:
        raise stop.cause
    if result.code not in (ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.INTERRUPTED):
        raise RunFailed(result)
    return result


class _StopOnError(Keyboard):
    """Source of requests that stops the run after the caller's ``progress`` function has raised an exception."""

    def __init__(self) -> None:
        self.cause: BaseException | None = None

    @property
    def is_listening(self) -> bool:
        """Whether an operator can press a key: always False."""
        return False

    def requests(self) -> list[Request]:
        """Return a stop request, as a keyboard would, if ``progress`` has raised an exception."""
        return [] if self.cause is None else [Request.STOP]


def _to_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def plan_run(
    name: str | None, overrides: Sequence[str], run_dir: Path | None, device: str | None, resume: Path | None
) -> Plan:
    """Check everything that a run needs, and return its plan. Raises ConfigError and Failure."""
    try:
        if resume is not None:
            resumption = prepare_resumption(resume, name, overrides, device)
            config = resumption.config
        else:
            resumption = None
            config = load_for_rig(str(name), overrides, port=device, on_warning=print_warning)
    except CannotResume as error:
        raise Failure(f"--resume: {error}") from None
    if config.actor is not UNSET:
        raise Failure("actor: the actions of this run come from a Python program: start the run there, with onrig.make")
    if device is not None and config.device.line is None:
        raise Failure(f"--device: the run to resume uses {config.device.address}; omit --device")
    line = config.device.line
    port = None if line is None else line.address
    if port is not None and isinstance(line, Serial):
        missing_problem = missing_port_problem(port)
        if missing_problem is not None:
            raise Failure(f"{port}: {missing_problem}", ExitCode.HARDWARE)
        wrong_problem = wrong_port_problem(port)
        if wrong_problem is not None:
            raise Failure(f"{port}: {wrong_problem}")
        port = persistent_name(port)
    folder = resume or run_dir or fresh_folder(Path("runs"), Path(str(name)).resolve().stem)
    try:
        reason = occupied_reason(folder) if resume is None else None
    except OSError as error:
        raise Failure(f"--run-dir: '{folder}' cannot be read: {error.strerror or error}") from None
    if reason:
        raise Failure(f"--run-dir: '{folder}' {reason}; choose another folder")
    files = {} if resume is not None else _identification(str(name), overrides, config)
    plan = Plan(str(name or resume), config, folder, port, resumption, files=files)
    if problem := _start_problem(config, folder, plan.option):
        raise Failure(*problem)
    return plan


def _identification(name: str, overrides: Sequence[str], config: RunConfig) -> dict[str, bytes]:
    """Return the content of the identification that a run begins with, by file name; empty if there is none. Raises
    Failure if the file changed while it was read.
    """
    path = find_identification(name, overrides)
    if path is None:
        return {}
    data = read_file(path, MAX_BYTES)
    if identification_hash(data) != config.identified:
        raise Failure(f"identified: '{path}' changed while it was read; start again")
    return {FILE_NAME: data}


def _start_problem(config: RunConfig, folder: Path, option: str) -> tuple[str, ExitCode] | None:
    """Check folder, keys and log before the start. Return a message and an exit code, or None if nothing is wrong."""
    from onrig.runtime.link.keys import KeyFileError, load_rig_keys

    if option == "--run-dir" and (problem := folder_problem("run-dir", folder)):
        return problem, ExitCode.CONFIGURATION
    try:
        check_folder(folder) if folder.exists() else check_path(folder)
    except OSError as error:
        return (
            f"{option}: '{error.filename or folder}' cannot be written: {error.strerror or error}",
            ExitCode.CONFIGURATION,
        )
    try:
        if config.link.listen is not None and config.link.keys is not None:
            load_rig_keys(Path(config.link.keys).expanduser())
    except KeyFileError as fault:
        return f"link.keys: {fault}", ExitCode.PREFLIGHT
    if config.log.mcap is True and find_spec("mcap") is None:
        return "log.mcap: mcap is not installed; pip install 'onrig[log]', or set log.mcap=auto", ExitCode.PREFLIGHT
    return None


@contextlib.contextmanager
def open_folder(plan: Plan) -> Iterator[tuple[RunConfig, Callable[[], None]]]:
    """Context manager that creates or reopens the run's folder and holds its lock. Yields the resolved configuration,
    and a function that undoes the changes to the folder, to be called if the run never starts. Raises Failure if the
    folder cannot be used.
    """
    resolve_loop_cpu()
    config, folder, resumption = plan.config, plan.folder, plan.resumption
    with contextlib.ExitStack() as stack:
        try:
            if resumption is not None:
                stack.callback(os.close, lock_folder(folder))
                take_back = _reopen(folder, resumption)
            else:
                config, files, facts = read_beginning(config)
                meta = {**plugin_records(third_party_plugins(config)), **facts, **plan.facts}
                take_back = write_run_folder(folder, config, meta, {**files, **plan.files}, plan.other_names)
                stack.callback(os.close, lock_folder(folder))
        except (CannotResume, FolderBusy) as error:
            raise Failure(f"{plan.option}: {error}") from None
        except OSError as error:
            path = error.filename or folder
            raise Failure(f"{plan.option}: '{path}' cannot be written: {error.strerror or error}") from None
        yield config, take_back


def supervise(
    plan: Plan,
    show: ReportCallback,
    take_back: Callable[[], None],
    keys: Keyboard | None = None,
    *,
    signals: bool = False,
) -> RunResult:
    """Execute a plan to its end in an open folder. If ``signals`` is true, signals to this process stop the run."""
    resumes = plan.resumption is not None
    supervisor = Supervisor(plan.config, plan.folder, plan.port, show, keys, resumes=resumes, signals=signals)
    try:
        code, reason = supervisor.run()
    except BaseException:  # raised outside the supervisor's signal handling, or by ``show``
        if not supervisor.has_started:
            take_back()
        raise
    if not supervisor.has_started and code != ExitCode.INTERNAL:
        take_back()  # ``reason`` has the cause; the traceback of a crash is in stderr.log
    actuators = supervisor.actuators if supervisor.has_started else ""
    return RunResult(plan.folder, plan.config, ExitCode(code), reason, actuators, supervisor.completeness)


def _reopen(folder: Path, resumption: Resumption) -> Callable[[], None]:
    """Reopen the folder of a run that has ended, and return a function that undoes this."""
    take_back, removed_bytes = reopen_run_folder(folder, resumption)
    if removed_bytes:
        print(f"{folder / 'events.jsonl'}: removed an incomplete last line ({removed_bytes} bytes)", file=sys.stderr)
    return take_back
