"""Run a rig: device or twin, control, replay, learner."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, Folder, Overrides, Port, RunFolder, Trust, UsageError, Web
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config | None = None
    """Path or shipped name of a configuration, or a folder that contains a run.yaml (default with --resume: the run's
    configuration).
    """
    _: KW_ONLY
    run_dir: Folder | None = None
    """Run folder (default: runs/NAME-DATE-TIME)."""
    device: Port | None = None
    set: Overrides = ()
    trust: Trust = False
    web: Web | None = None
    """Serve a live page on this machine (default: the first free port from 8089 on); HOST:PORT serves it to other
    machines, which need the token in the printed address.
    """
    foxglove: Web | None = None
    """Show the run in Foxglove or Lichtblick on this machine (default: the first free port from 8765 on); HOST:PORT as
    for --web.
    """
    pretrained: Folder | None = None
    """Start from the networks and experiences in this folder, written by onrig pretrain."""
    advised: Folder | None = None
    """Use the settings recommended in this folder, written by onrig advise."""
    sharpen: bool = False
    """Sharpen the identification that the run begins with, using the run's own data (see onrig identify --sharpen)."""
    resume: RunFolder | None = None
    """Resume the run in this folder, however it ended."""
    dry_run: bool = False
    """Check everything, but start nothing."""


def main(options: Options) -> int:
    """Run the rig and return the exit code."""
    if options.config is None and options.resume is None:
        raise UsageError(_misplaced_configuration(options) or "required: a configuration, or --resume DIR")
    if options.resume is not None and options.run_dir is not None:
        return complain("run", "--run-dir cannot be combined with --resume: a resumed run remains in its folder")
    for option in ("pretrained", "advised"):
        if options.resume is not None and getattr(options, option) is not None:
            return complain("run", f"--{option} cannot be combined with --resume: a resumed run keeps its settings")
    from onrig.tools.run import run_in_terminal

    pretrained: tuple[str, ...] = ()
    if options.pretrained is not None:
        from onrig.tools.pretraining.start import start_settings

        pretrained = start_settings(options.pretrained)
    addresses = {name: address for name, address in _addresses(options) if address is not None}
    return run_in_terminal(
        options.config,
        (*pretrained, *options.set),
        options.run_dir,
        options.device,
        addresses,
        options.resume,
        advised=options.advised,
        sharpen=options.sharpen,
        dry_run=options.dry_run,
    )


def _addresses(options: Options) -> tuple[tuple[str, str | None], ...]:
    return ("web", options.web), ("foxglove", options.foxglove)


def _misplaced_configuration(options: Options) -> str | None:
    """Return a message for ``onrig run --web pendulum``, where the configuration was parsed as a port, or None."""
    for name, address in _addresses(options):
        if address and not address.rpartition(":")[2].isdecimal():
            return f"--{name}: '{address}' is not a port; put the configuration first: onrig run {address} --{name}"
    return None
