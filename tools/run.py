"""``onrig run``: the whole rig — device or twin, control, replay, learner."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from runtime.config.document import ConfigError
from runtime.config.schema import Port, RunConfig
from runtime.exit_codes import ExitCode
from runtime.supervise.run_folder import fresh_folder, write_run_folder
from runtime.supervise.supervisor import Supervisor
from tools.display import display_for
from tools.load import explain, load, usage_problem


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
        config = load(args.config, args.overrides)
        config, port = _device(config, args.device)
        folder = args.run_dir or fresh_folder(Path("runs"), Path(args.config).stem)
        if (folder / "config.yaml").exists():
            raise usage_problem("--run-dir", f"'{folder}' holds a run already; choose another folder")
    except ConfigError as error:
        return explain(error)
    if args.dry_run:
        print(f"{args.config}: sound; would run {config.episodes} episodes at {config.rate_hz:g} Hz into {folder}")
        return ExitCode.OK
    try:
        write_run_folder(folder, config)
    except OSError as error:
        return explain(usage_problem("--run-dir", f"'{folder}' cannot be written: {error.strerror or error}"))
    print(f"run folder: {folder}", flush=True)
    display = display_for(config.episodes)
    try:
        code, reason = Supervisor(config, folder, port, display.show).run()
    finally:
        display.close()
    if code != ExitCode.OK:
        print(f"onrig run: {reason}", file=sys.stderr)
    _conclude(folder, config)
    return code


def _device(config: RunConfig, port: str | None) -> tuple[RunConfig, str | None]:
    """The port to use (None: a twin of our own), and the configuration as it then stands."""
    if port is None:
        return config, config.device.port.path if config.device.port is not None else None
    if not Path(port).exists():
        raise usage_problem("--device", f"there is no port '{port}'; plug the device in, or start `onrig twin`")
    if config.device.port is not None:
        device = msgspec.structs.replace(config.device, port=msgspec.structs.replace(config.device.port, path=port))
    else:
        device = msgspec.structs.replace(config.device, port=Port(path=port), twin=None, pace=config.device.pace)
    return msgspec.structs.replace(config, device=device), port


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
    print(f"see {picture or folder / 'episodes.csv'}")
