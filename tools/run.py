"""``onrig run``: the whole rig — device or twin, control, replay, learner."""

from __future__ import annotations

import argparse
import contextlib
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from runtime.config.document import ConfigError
from runtime.config.schema import Port, RunConfig
from runtime.exit_codes import ExitCode
from runtime.supervise.keyboard import HELP, keyboard
from runtime.supervise.report import Report
from runtime.supervise.run_folder import fresh_folder, write_run_folder
from runtime.supervise.supervisor import Supervisor
from tools.display import display_for
from tools.load import complain, explain, load_for_rig

_LINK_FILE_BYTES: Final = 4096
_NO_TORCH: Final = (
    "the learner needs torch: pip install 'onrig[learner]', or set local_learner=false and run `onrig learn` elsewhere"
)


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = argparse.ArgumentParser(prog="onrig run", description=__doc__)
    p.add_argument("config", help="path or shipped name of a configuration")
    p.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/NAME-DATE-TIME)")
    p.add_argument("--device", metavar="PORT", help="serial port of a real device, or of a twin that runs elsewhere")
    p.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a value")
    p.add_argument("--dry-run", action="store_true", help="check everything, start nothing")
    return p


def main(arguments: list[str]) -> int:
    """Run; returns the exit code."""
    args = parser().parse_args(arguments)
    try:
        config = load_for_rig(args.config, args.overrides)
    except ConfigError as error:
        return explain(error)
    if args.device is not None:
        if config.selection.synthetic is not None:
            return complain("run", "--device: selection.synthetic needs the plant of a twin of the run's own")
        config = _on_port(config, args.device)
    port = config.device.port.path if config.device.port is not None else None
    if port is not None:
        fault = _port_problem(Path(port))
        if fault is not None:
            return complain("run", *fault)
    folder = args.run_dir or fresh_folder(Path("runs"), Path(args.config).stem)
    if (folder / "config.yaml").exists():
        return complain("run", f"--run-dir: '{folder}' holds a run already; choose another folder")
    if config.local_learner and find_spec("torch") is None:
        return complain("run", _NO_TORCH, ExitCode.PREFLIGHT)
    if args.dry_run:
        print(f"{args.config}: sound; would run {config.episodes} episodes at {config.rate_hz:g} Hz into {folder}")
        return ExitCode.OK
    return _run(config, folder, port)


def _run(config: RunConfig, folder: Path, port: str | None) -> int:
    try:
        take_back = write_run_folder(folder, config)
    except OSError as error:
        return complain("run", f"--run-dir: '{folder}' cannot be written: {error.strerror or error}")
    print(f"run folder: {folder}", flush=True)
    display = display_for(config.episodes)
    told: list[str] = []

    def show(report: Report) -> None:
        if report.kind == "error":
            told.append(report.message)
        display.show(report)

    keys = keyboard()
    with contextlib.ExitStack() as terminal:
        terminal.callback(display.close)
        if keys is not None:
            terminal.enter_context(keys)
            print(HELP, flush=True)
        supervisor = Supervisor(config, folder, port, show, keys)
        try:
            code, reason = supervisor.run()
        except KeyboardInterrupt:  # before the supervisor listened for it
            take_back()
            raise
    if code != ExitCode.OK and reason not in told:
        print(f"onrig run: {reason}", file=sys.stderr)
    if not supervisor.started and code != ExitCode.INTERNAL:
        take_back()  # what stopped it has been said in a line; a crash leaves its traceback in stderr.log
    else:
        _conclude(folder, config)
    return code


def _on_port(config: RunConfig, path: str) -> RunConfig:
    """The configuration with the device behind a port instead of a twin of our own; its pace stays."""
    port = config.device.port
    port = Port(path=path) if port is None else msgspec.structs.replace(port, path=path)
    return msgspec.structs.replace(config, device=msgspec.structs.replace(config.device, port=port, twin=None))


def _port_problem(path: Path) -> tuple[str, int] | None:
    """What can be told of a port without opening it (which may reset the board behind it): message and exit code."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        remedy = "plug the device in, or start `onrig twin`"
        return f"{path}: there is no such port ({error.strerror}); {remedy}", ExitCode.HARDWARE
    if stat.S_ISCHR(mode):
        return None
    hint = "name the port itself"
    if stat.S_ISREG(mode):
        with path.open(errors="replace") as file:
            inside = file.read(_LINK_FILE_BYTES).strip()
        if inside.startswith("/dev/"):
            hint = f"it names a port: use --device {inside}"
    return f"{path}: this is no serial port; {hint}", ExitCode.CONFIGURATION


def _conclude(folder: Path, config: RunConfig) -> None:
    """Draw the learning curve and say in a few lines how it went."""
    from tools.plots import plot_learning_curve

    try:
        summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError):
        return
    picture = plot_learning_curve(folder, config)
    score = summary.get("normalized_last20")
    if isinstance(score, float):
        print(f"normalized over the last 20 training episodes: {score:.3f} (0 random, 1 reference)")
    tick = summary.get("tick_us")
    if isinstance(tick, dict) and isinstance(tick.get("p99"), float):
        print(f"ticks: {summary.get('ticks')}, missed {summary.get('missed_ticks')}, p99 {tick['p99']:.0f} us")
    print(f"see {picture or folder}")
