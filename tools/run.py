"""Running a rig in a terminal: display, keys, live views, results."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import UNSET

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.files import read_fields
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.actuators import UNCONFIRMED_TEXT
from onrig.runtime.run_state.completeness import summary_line
from onrig.runtime.run_state.report import Report
from onrig.runtime.supervise.requests import HELP, open_keyboard
from onrig.tools.display import display_for
from onrig.tools.identification.sharpening import sharpening_alongside
from onrig.tools.load import print_problems
from onrig.tools.run_facts import N_AVERAGED_EPISODES, facts_from_summary
from onrig.tools.running import Plan, open_folder, plan_run, supervise
from onrig.tools.terminal import complain, draw_or_report, warn_missing_library
from onrig.tools.web.guard import parse_address
from onrig.tools.web.live_view import ViewError, live_view
from onrig.tools.web.view import FOXGLOVE, PAGE, View


def run_in_terminal(
    name: str | None,
    overrides: Sequence[str],
    run_dir: Path | None,
    device: str | None,
    addresses: Mapping[str, str],
    resume: Path | None,
    *,
    advised: Path | None = None,
    sharpen: bool = False,
    dry_run: bool = False,
) -> int:
    """Run a rig with display, keys and live views, print the results, and return the exit code.

    ``addresses`` maps option names to the addresses of the live views. If ``sharpen`` is true, a separate process
    sharpens the identification during the run.
    """
    try:
        if advised is None:
            plan = plan_run(name, overrides, run_dir, device, resume)
        else:
            plan = _plan_advised(str(name), overrides, run_dir, device, advised)
        for view in _requested_views(addresses):
            _check_view(view, addresses[view.name])
        if sharpen and plan.config.identified is UNSET:
            raise Failure("--sharpen: the run begins without an identification (identified: FILE)")
        if dry_run:
            config = plan.config
            summary = f"would run {config.episodes} episodes at {config.rate_hz:g} Hz into {plan.folder}"
            print(f"{plan.name}: valid; {summary}")
            return ExitCode.OK
        return _run(plan, addresses, sharpen=sharpen)
    except ConfigError as error:
        return print_problems(error)
    except Failure as failure:
        return complain("run", str(failure), failure.code)


def _requested_views(addresses: Mapping[str, str]) -> list[View]:
    return [view for view in (PAGE, FOXGLOVE) if view.name in addresses]


def _check_view(view: View, address: str) -> None:
    """Raise Failure for an invalid address or a missing library."""
    try:
        parse_address(address)
    except ValueError as error:
        raise Failure(f"--{view.name}: {error}") from None
    if view is FOXGLOVE and find_spec("foxglove") is None:
        raise Failure("--foxglove needs foxglove-sdk: pip install 'onrig[live]'", ExitCode.PREFLIGHT)


def _plan_advised(name: str, overrides: Sequence[str], run_dir: Path | None, device: str | None, advised: Path) -> Plan:
    """Plan a run with the settings recommended by `onrig advise`, and record the advice in the run's facts."""
    from onrig.tools.advised import advice_facts, check_same_rig, read_advice, recipe_overrides

    advice = read_advice(advised)
    check_same_rig(advised, advice, name, tuple(overrides))
    plan = plan_run(name, (*recipe_overrides(advised, advice), *overrides), run_dir, device, None)
    return plan._replace(facts=advice_facts(advice))


def _run(plan: Plan, addresses: Mapping[str, str], *, sharpen: bool) -> int:
    with open_folder(plan) as (config, take_back), contextlib.ExitStack() as stack:
        folder = plan.folder
        print(f"run folder: {folder}", flush=True)
        _warn_about_disk_space(config, folder)
        warn_missing_library("run")
        for view in _requested_views(addresses):
            try:
                print(f"{view.title}: {stack.enter_context(live_view(folder, addresses[view.name], view))}", flush=True)
            except ViewError as failure:
                take_back()
                raise Failure(str(failure), ExitCode(failure.code)) from None
            except KeyboardInterrupt:
                take_back()
                raise
        if sharpen:
            stack.enter_context(sharpening_alongside(folder))
        return _supervise(plan._replace(config=config), take_back)


def _warn_about_disk_space(config: RunConfig, folder: Path) -> None:
    """Warn if the disk may be too small for the complete run; on a full disk, the log is the first to end."""
    from onrig.tools.doctor.run_needs import complete_run_bytes

    disk = os.statvfs(folder)
    free_bytes, required_bytes = disk.f_bavail * disk.f_frsize, complete_run_bytes(config)
    if free_bytes < required_bytes:
        remedy = "free some space, or see log.max_bytes and log.decimation"
        warning = (
            f"{free_bytes / 1e6:.0f} MB are free, but the complete run may need {required_bytes / 1e6:.0f} MB; {remedy}"
        )
        print(f"onrig run: {folder}: {warning}", file=sys.stderr)


def _supervise(plan: Plan, take_back: Callable[[], None]) -> int:
    display = display_for(plan.config)
    messages: list[str] = []

    def show(report: Report) -> None:
        if report.kind == "error":
            messages.append(report.message)
        display.show(report)

    keys = open_keyboard()
    with contextlib.ExitStack() as terminal:
        terminal.callback(display.close)
        if keys is not None:
            terminal.enter_context(keys)
            print(HELP, flush=True)
        result = supervise(plan, show, take_back, keys, signals=True)
    if result.code != ExitCode.OK and result.reason not in messages:
        print(f"onrig run: {result.reason}", file=sys.stderr)
    if result.actuators:
        _print_actuators(result.actuators)
    if result.actuators or result.code == ExitCode.INTERNAL:
        with _ignore_interrupts():
            _conclude(plan.folder, plan.config)
        if result.completeness is not None:
            print(summary_line(result.completeness), file=sys.stdout if result.completeness.complete else sys.stderr)
    return result.code


def _print_actuators(verdict: str) -> None:
    """Print the final state of the actuators, to stderr unless the device confirmed that they are safe."""
    is_confirmed = not verdict.startswith(UNCONFIRMED_TEXT)
    advice = "" if is_confirmed else "; inspect the rig, or query the device with onrig disarm PORT"
    print(f"actuators: {verdict}{advice}", file=sys.stdout if is_confirmed else sys.stderr, flush=True)


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C while the results of a finished run are drawn and printed."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _conclude(folder: Path, config: RunConfig) -> None:
    """Draw the learning curve, and print the main results."""
    from onrig.tools.reports.run.charts import draw_learning_curve

    summary = read_fields(folder / "summary.json")
    if not summary:
        return
    facts = facts_from_summary(config, summary)
    for name in ("performance", "ticks", "time of a tick", "shield"):
        if text := facts.words().get(name):
            period = (
                f", last {N_AVERAGED_EPISODES} training episodes ({facts.measure.scale})"
                if name == "performance"
                else ""
            )
            print(f"{name}: {text}{period}")
    plot = draw_or_report("learning_curve.png", lambda: draw_learning_curve(folder, config), _print_line)
    print(f"see {plot or folder}")
    _show_post_mortems(folder, config)


def _print_line(line: str) -> None:
    complain("run", line)


def _show_post_mortems(folder: Path, config: RunConfig) -> None:
    """Plot the run's last post-mortem if matplotlib is installed, and print its path; `onrig report` plots them all."""
    from onrig.runtime.supervise.post_mortem import find_post_mortems

    paths = find_post_mortems(folder)
    if not paths:
        return
    from onrig.tools.reports.run.fault_plot import draw_last_post_mortem

    draw_or_report("the post-mortem", lambda: draw_last_post_mortem(folder, config), _print_line)
    print(f"{len(paths)} post-mortem{'s' if len(paths) > 1 else ''}, the last one in {paths[-1]}")
