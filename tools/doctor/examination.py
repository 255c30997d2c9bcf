"""Examination of this machine's suitability for a rig, with remedies.

Wheels are checked first, each in a separate process, and only those that work are imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from onrig.tools.doctor import clocks, cpus, kernel, memory, ports
from onrig.tools.doctor.finding import Check, Needs, Verdict, exit_code, report_data, report_warning
from onrig.tools.doctor.wheels import (
    WheelFacts,
    check_wheels,
    examine_native,
    examine_python,
    is_importable,
    read_wheels,
    required_wheels,
)
from onrig.tools.machine import Machine
from onrig.tools.terminal import complain, drawing_stream, file_problem, write_json

Examination = Callable[[Machine, Needs], Iterable[Check]]

_FIRST_EXAMINATIONS: Final[tuple[tuple[str, Examination], ...]] = (
    ("kernel", kernel.examine_kernel),
    ("python", examine_python),
    ("c-library", examine_native),
)
_LATER_EXAMINATIONS: Final[tuple[tuple[str, Examination], ...]] = (
    ("sched-fifo", kernel.examine_scheduling),
    ("cpu", cpus.examine_cpus),
    ("interrupts", cpus.examine_interrupts),
    ("governor", clocks.examine_frequency),
    ("clocksource", clocks.examine_clocks),
    ("memory", memory.examine_memory),
    ("disk", memory.examine_disk),
    ("ports", ports.examine_ports),
)
_CORE_WHEELS: Final = ("numpy", "onnxruntime", "pyyaml", "msgspec", "pyzmq", "pyserial")
"""Wheels required to read a configuration."""
_COLOURS: Final = {Verdict.PASS: "32", Verdict.WARN: "33", Verdict.FAIL: "31"}
_NAME_WIDTH: Final = 17


def examine_machine(
    name: str | None, overrides: Sequence[str], device: str | None, run_dir: Path, json_file: str | None, *, quick: bool
) -> int:
    """Examine the machine, print the findings, write them as JSON if requested, and return the exit code.

    If ``json_file`` is ``-``, only the JSON is written, to standard output.
    """
    wheels = read_wheels(required_wheels(None))
    core_wheels_work = all(is_importable(f) for f in wheels if f.wheel.package in _CORE_WHEELS)
    needs = Needs(folder=run_dir, port=device)
    if name is not None and core_wheels_work:
        from onrig.runtime.config.problem import ConfigError
        from onrig.tools.doctor.run_needs import determine_needs
        from onrig.tools.load import load_for_rig, print_problems

        try:
            config = load_for_rig(name, overrides, port=device)
        except ConfigError as error:
            return print_problems(error)
        needs = determine_needs(config, name, run_dir, device)
    if json_file not in (None, "-") and (problem := file_problem("json", Path(json_file))):
        return complain("doctor", problem)
    printer = _FindingPrinter(quiet=json_file == "-")
    checks = []
    for check in examine(Machine(), needs, wheels, quick=quick, on_progress=printer.show_remaining):
        checks.append(check)
        printer.show(check)
    printer.close(checks)
    code = exit_code(checks)
    if json_file is None:
        return code
    return write_json("doctor", json.dumps(report_data(Machine().describe(), checks), indent=1), json_file) or code


def examine(
    machine: Machine,
    needs: Needs,
    wheels: Sequence[WheelFacts],
    *,
    quick: bool,
    on_progress: Callable[[float], None] = lambda remaining_s: None,
) -> Iterator[Check]:
    """Yield the findings of all examinations; an examination that crashes is reported and does not stop the others."""
    core_wheels_work = all(is_importable(f) for f in wheels if f.wheel.package in _CORE_WHEELS)
    for name, examination in _FIRST_EXAMINATIONS:
        yield from _run_guarded(name, partial(examination, machine, needs))
    reported_packages = {w.package for w in required_wheels(needs.learner)}
    yield from check_wheels(f for f in wheels if f.wheel.package in reported_packages)
    for name, examination in _LATER_EXAMINATIONS:
        yield from _run_guarded(name, partial(examination, machine, needs))
    if not core_wheels_work:
        finding = "keys, loop and configuration were not checked, because a required library does not work"
        yield report_warning("loop", finding, "repair the wheels above first")
        return
    yield from _run_guarded("keys", partial(ports.examine_keys, machine, needs))

    def loop() -> Iterable[Check]:
        from onrig.tools.doctor import punctuality

        seconds = punctuality.QUICK_DURATION_S if quick else punctuality.LONG_DURATION_S
        return punctuality.examine_loop(machine, needs, seconds, on_progress)

    yield from _run_guarded("loop", loop)


def _run_guarded(name: str, examination: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    try:
        yield from examination()
    except Exception as error:  # a check that fails on an unknown board must not hide other findings
        yield report_warning(name, f"could not be checked: {type(error).__name__}: {error}", "please report this line")


class _FindingPrinter:
    """Printer of findings, in colour on a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_terminal = sys.stdout.isatty()
        self._uses_colour = self._is_terminal and "NO_COLOR" not in os.environ
        self._shows_progress = False

    def show(self, check: Check) -> None:
        """Print a finding: verdict, name and observation, with the remedy on the next line."""
        if self._quiet:
            return
        self._clear_progress()
        verdict = check.verdict.value
        coloured_verdict = f"\033[{_COLOURS[check.verdict]}m{verdict}\033[0m" if self._uses_colour else verdict
        drawing_stream(sys.stdout).write(coloured_verdict)
        print(f"  {check.name:<{_NAME_WIDTH}}  {check.finding}", flush=True)
        if check.remedy:
            print(f"      {'':<{_NAME_WIDTH}}  -> {check.remedy}", flush=True)

    def show_remaining(self, remaining_s: float) -> None:
        """Show the remaining time of the measurement on a terminal."""
        if self._is_terminal and not self._quiet:
            drawing_stream(sys.stdout).write(f"\r      measuring the loop: {remaining_s:.0f} s left ")
            sys.stdout.flush()
            self._shows_progress = True

    def _clear_progress(self) -> None:
        if self._shows_progress:
            drawing_stream(sys.stdout).write("\r\033[K")
            self._shows_progress = False

    def close(self, checks: Sequence[Check]) -> None:
        """Print the totals."""
        if self._quiet:
            return
        self._clear_progress()
        counts = {v: sum(c.verdict is v for c in checks) for v in Verdict}
        print(f"{counts[Verdict.PASS]} pass, {counts[Verdict.WARN]} warn, {counts[Verdict.FAIL]} fail", flush=True)


def looks_like_configuration(argument: str) -> bool:
    """Return whether the name given for the output file looks like the name of a configuration."""
    if argument.endswith((".yaml", ".yml")):
        return True
    return (Path(__file__).parents[2] / "configs" / f"{argument}.yaml").is_file()
