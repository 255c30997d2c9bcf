"""Examination of this machine's fitness for a rig, with remedies.

Wheels are checked first, each in a separate process; only then are they imported.
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
from onrig.tools.doctor.finding import Check, Needs, Verdict, as_data, exit_code, warned
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

Subject = Callable[[Machine, Needs], Iterable[Check]]

_FIRST_SUBJECTS: Final[tuple[tuple[str, Subject], ...]] = (
    ("kernel", kernel.examine_kernel),
    ("python", examine_python),
    ("c-library", examine_native),
)
_LATER_SUBJECTS: Final[tuple[tuple[str, Subject], ...]] = (
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
"""Wheels without which no configuration can be read."""
_COLOURS: Final = {Verdict.PASS: "32", Verdict.WARN: "33", Verdict.FAIL: "31"}
_NAME_WIDTH: Final = 17


def examine_machine(
    name: str | None, overrides: Sequence[str], device: str | None, run_dir: Path, json_file: str | None, *, quick: bool
) -> int:
    """Examine the machine, and print the findings or write them as JSON (``-``: to standard output); returns the exit
    code."""
    wheels = read_wheels(required_wheels(None))
    ready = all(is_importable(f) for f in wheels if f.wheel.package in _CORE_WHEELS)
    needs = Needs(folder=run_dir, port=device)
    if name is not None and ready:
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
    lines = _Lines(quiet=json_file == "-")
    checks = []
    for check in examine(Machine(), needs, wheels, quick=quick, on_progress=lines.show_remaining):
        checks.append(check)
        lines.show(check)
    lines.close(checks)
    code = exit_code(checks)
    if json_file is None:
        return code
    return write_json("doctor", json.dumps(as_data(Machine().describe(), checks), indent=1), json_file) or code


def examine(
    machine: Machine,
    needs: Needs,
    wheels: Sequence[WheelFacts],
    *,
    quick: bool,
    on_progress: Callable[[float], None] = lambda remaining_s: None,
) -> Iterator[Check]:
    """Findings of all subjects; a check that crashes is reported and does not stop the others."""
    ready = all(is_importable(f) for f in wheels if f.wheel.package in _CORE_WHEELS)
    for name, subject in _FIRST_SUBJECTS:
        yield from _run_guarded(name, partial(subject, machine, needs))
    shown = {w.package for w in required_wheels(needs.learner)}
    yield from check_wheels(f for f in wheels if f.wheel.package in shown)
    for name, subject in _LATER_SUBJECTS:
        yield from _run_guarded(name, partial(subject, machine, needs))
    if not ready:
        found = "keys, loop and configuration were not checked: a required library does not work"
        yield warned("loop", found, "repair the wheels above first")
        return
    yield from _run_guarded("keys", partial(ports.examine_keys, machine, needs))

    def loop() -> Iterable[Check]:
        from onrig.tools.doctor import punctuality

        seconds = punctuality.QUICK_DURATION_S if quick else punctuality.LONG_DURATION_S
        return punctuality.examine_loop(machine, needs, seconds, on_progress)

    yield from _run_guarded("loop", loop)


def _run_guarded(name: str, subject: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    try:
        yield from subject()
    except Exception as error:  # an unknown board must not hide other findings
        yield warned(name, f"could not be checked: {type(error).__name__}: {error}", "please report this line")


class _Lines:
    """Report on a terminal (coloured) or in a pipe."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stdout.isatty()
        self._coloured = self._terminal and "NO_COLOR" not in os.environ
        self._waiting = False

    def show(self, check: Check) -> None:
        """Print a finding: verdict, name and observation; the remedy on the next line."""
        if self._quiet:
            return
        self._wipe()
        verdict = check.verdict.value
        coloured_verdict = f"\033[{_COLOURS[check.verdict]}m{verdict}\033[0m" if self._coloured else verdict
        drawing_stream(sys.stdout).write(coloured_verdict)
        print(f"  {check.name:<{_NAME_WIDTH}}  {check.found}", flush=True)
        if check.remedy:
            print(f"      {'':<{_NAME_WIDTH}}  -> {check.remedy}", flush=True)

    def show_remaining(self, remaining_s: float) -> None:
        """Show the remaining time of the measurement on a terminal."""
        if self._terminal and not self._quiet:
            drawing_stream(sys.stdout).write(f"\r      measuring the loop: {remaining_s:.0f} s left ")
            sys.stdout.flush()
            self._waiting = True

    def _wipe(self) -> None:
        if self._waiting:
            drawing_stream(sys.stdout).write("\r\033[K")
            self._waiting = False

    def close(self, checks: Sequence[Check]) -> None:
        """Print the totals."""
        if self._quiet:
            return
        self._wipe()
        counts = {v: sum(c.verdict is v for c in checks) for v in Verdict}
        print(f"{counts[Verdict.PASS]} pass, {counts[Verdict.WARN]} warn, {counts[Verdict.FAIL]} fail", flush=True)


def looks_like_configuration(word: str) -> bool:
    """Return whether the name of an output file suggests that the configuration was meant."""
    if word.endswith((".yaml", ".yml")):
        return True
    return (Path(__file__).parents[2] / "configs" / f"{word}.yaml").is_file()
