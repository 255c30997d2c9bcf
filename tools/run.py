"""Run of a complete rig: device or twin, control, replay, learner."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from onrig.hw.line import Serial
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.control.realtime import settle_loop_cpu
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import read_fields
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.actuators import UNCONFIRMED
from onrig.runtime.run_state.completeness import summary_line
from onrig.runtime.run_state.folder_access import FolderBusy, check_folder, check_path, hold
from onrig.runtime.run_state.report import Report
from onrig.runtime.supervise.requests import HELP, keyboard
from onrig.runtime.supervise.run_folder import (
    Resumption,
    fresh_folder,
    occupied_by,
    reopen_run_folder,
    write_run_folder,
)
from onrig.runtime.supervise.supervisor import Supervisor
from onrig.tools.display import display_for
from onrig.tools.foreign import pieces_of, record_pieces
from onrig.tools.load import explain, load_for_rig, print_warning
from onrig.tools.ports import missing_port, no_port, persistent_name
from onrig.tools.resumption import CannotResume, prepare_resumption
from onrig.tools.run_facts import LAST, of_summary
from onrig.tools.terminal import complain, drawn, unwritable_folder, warn_missing_library
from onrig.tools.web.guard import parse_address
from onrig.tools.web.live_view import NoView, live_view


def run(
    name: str | None,
    overrides: Sequence[str],
    run_dir: Path | None,
    device: str | None,
    web: str | None,
    resume: Path | None,
    *,
    dry_run: bool,
) -> int:
    """Run the rig of configuration ``name``, or continue the run in the folder ``resume``; returns the exit code."""
    try:
        if resume is not None:
            resumption = prepare_resumption(resume, name, overrides, device)
            config = resumption.config
        else:
            resumption = None
            config = load_for_rig(str(name), overrides, port=device, on_warning=print_warning)
    except ConfigError as error:
        return explain(error)
    except CannotResume as error:
        return complain("run", f"--resume: {error}")
    if device is not None and config.device.line is None:
        return complain("run", f"--device: the run to resume uses {config.device.place}; leave out --device")
    line = config.device.line
    port = None if line is None else line.place
    if port is not None and isinstance(line, Serial):
        missing = missing_port(port)
        if missing is not None:
            return complain("run", f"{port}: {missing}", ExitCode.HARDWARE)
        wrong = no_port(port)
        if wrong is not None:
            return complain("run", f"{port}: {wrong}")
        port = persistent_name(port)
    if web is not None:
        try:
            parse_address(web)
        except ValueError as error:
            return complain("run", f"--web: {error}")
    folder = resume or run_dir or fresh_folder(Path("runs"), Path(str(name)).resolve().stem)
    try:
        why = occupied_by(folder) if resume is None else None
    except OSError as error:
        return complain("run", f"--run-dir: '{folder}' cannot be read: {error.strerror or error}")
    if why:
        return complain("run", f"--run-dir: '{folder}' {why}; choose another folder")
    if problem := _start_problem(config, folder, option="--resume" if resume is not None else "--run-dir"):
        return complain("run", *problem)
    if dry_run:
        print(f"{name or resume}: sound; would run {config.episodes} episodes at {config.rate_hz:g} Hz into {folder}")
        return ExitCode.OK
    return _run(config, folder, port, web, resumption)


def _start_problem(config: RunConfig, folder: Path, option: str) -> tuple[str, ExitCode] | None:
    """Check folder, keys and log before the start; returns the exit code of a problem, or None."""
    from onrig.runtime.link.keys import KeyFault, load_rig_keys

    if option == "--run-dir" and (problem := unwritable_folder("run-dir", folder)):
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
    except KeyFault as fault:
        return f"link.keys: {fault}", ExitCode.PREFLIGHT
    if config.log.mcap is True and find_spec("mcap") is None:
        return "log.mcap: mcap is not installed; pip install 'onrig[log]', or set log.mcap=auto", ExitCode.PREFLIGHT
    return None


def _run(config: RunConfig, folder: Path, port: str | None, web: str | None, resumption: Resumption | None) -> int:
    option = "--run-dir" if resumption is None else "--resume"
    settle_loop_cpu()
    with contextlib.ExitStack() as held:
        try:
            if resumption is not None:
                held.callback(os.close, hold(folder))
                take_back = _reopen(folder, resumption)
            else:
                take_back = write_run_folder(folder, config, record_pieces(pieces_of(config)))
                held.callback(os.close, hold(folder))
        except (CannotResume, FolderBusy) as error:
            return complain("run", f"{option}: {error}")
        except OSError as error:
            return complain(
                "run", f"{option}: '{error.filename or folder}' cannot be written: {error.strerror or error}"
            )
        print(f"run folder: {folder}", flush=True)
        _warn_of_disk_space(config, folder)
        warn_missing_library("run")
        if web is not None:
            try:
                print(f"live view: {held.enter_context(live_view(folder, web))}", flush=True)
            except NoView as failure:
                take_back()
                return complain("run", str(failure), failure.code)
            except KeyboardInterrupt:
                take_back()
                raise
        return _supervise(config, folder, port, take_back, resumes=resumption is not None)


def _warn_of_disk_space(config: RunConfig, folder: Path) -> None:
    """Warn if the disk is too small for the complete run; a full disk ends the log first."""
    from onrig.tools.doctor.run_needs import whole_run_bytes

    disk = os.statvfs(folder)
    free, needed = disk.f_bavail * disk.f_frsize, whole_run_bytes(config)
    if free < needed:
        remedy = "make room, or see log.max_bytes and log.decimation"
        line = f"{free / 1e6:.0f} MB are free, and the whole run may take {needed / 1e6:.0f} MB; {remedy}"
        print(f"onrig run: {folder}: {line}", file=sys.stderr)


def _reopen(folder: Path, resumption: Resumption) -> Callable[[], None]:
    """Reopen the folder of an ended run; returns the undo function."""
    take_back, cut = reopen_run_folder(folder, resumption)
    if cut:
        print(f"{folder / 'events.jsonl'}: removed an incomplete last line ({cut} bytes)", file=sys.stderr)
    return take_back


def _supervise(
    config: RunConfig, folder: Path, port: str | None, take_back: Callable[[], None], *, resumes: bool
) -> int:
    display = display_for(config)
    said: list[str] = []

    def show(report: Report) -> None:
        if report.kind == "error":
            said.append(report.message)
        display.show(report)

    keys = keyboard()
    with contextlib.ExitStack() as terminal:
        terminal.callback(display.close)
        if keys is not None:
            terminal.enter_context(keys)
            print(HELP, flush=True)
        supervisor = Supervisor(config, folder, port, show, keys, resumes=resumes)
        try:
            code, reason = supervisor.run()
        except KeyboardInterrupt:  # outside the supervisor's signal handling
            if not supervisor.started:
                take_back()
            raise
    if code != ExitCode.OK and reason not in said:
        print(f"onrig run: {reason}", file=sys.stderr)
    if supervisor.started:
        _print_actuators(supervisor.actuators)
    if not supervisor.started and code != ExitCode.INTERNAL:
        take_back()  # the reason has been printed; a crash leaves its traceback in stderr.log
    else:
        with _ignore_interrupts():
            _conclude(folder, config)
        if supervisor.whole is not None:
            print(summary_line(supervisor.whole), file=sys.stdout if supervisor.whole.complete else sys.stderr)
    return code


def _print_actuators(verdict: str) -> None:
    """Print the final state of the actuators; to stderr unless the device confirmed that they are safe."""
    confirmed = not verdict.startswith(UNCONFIRMED)
    advice = "" if confirmed else "; check the rig, or query the device: onrig disarm PORT"
    print(f"actuators: {verdict}{advice}", file=sys.stdout if confirmed else sys.stderr, flush=True)


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C during the short conclusion of a finished run."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _conclude(folder: Path, config: RunConfig) -> None:
    """Draw the learning curve and print the main results."""
    from onrig.tools.reports.run.charts import draw_learning_curve

    summary = read_fields(folder / "summary.json")
    if not summary:
        return
    facts = of_summary(config, summary)
    for name in ("performance", "ticks", "time of a tick", "shield"):
        if text := facts.words().get(name):
            over = f", last {LAST} training episodes ({facts.measure.scale})" if name == "performance" else ""
            print(f"{name}: {text}{over}")
    picture = drawn("learning_curve.png", lambda: draw_learning_curve(folder, config), _say)
    print(f"see {picture or folder}")
    _show_post_mortems(folder, config)


def _say(line: str) -> None:
    complain("run", line)


def _show_post_mortems(folder: Path, config: RunConfig) -> None:
    """Plot the run's last post-mortem (`onrig report` plots all); without matplotlib, print its path."""
    from onrig.runtime.supervise.post_mortem import post_mortems

    found = post_mortems(folder)
    if not found:
        return
    from onrig.tools.reports.run.fault_picture import draw_last_post_mortem

    drawn("the post-mortem", lambda: draw_last_post_mortem(folder, config), _say)
    print(f"{len(found)} post-mortem{'s' if len(found) > 1 else ''}, the last one in {found[-1]}")
