"""Run a rig: device or twin, control, replay, learner."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, Folder, Overrides, Port, RunFolder, Trust, UsageError, Web
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config | None = None
    """Path or shipped name of a configuration, or folder that holds its run.yaml (with --resume: the run's own)."""
    _: KW_ONLY
    run_dir: Folder | None = None
    """Run folder (default: runs/NAME-DATE-TIME)."""
    device: Port | None = None
    set: Overrides = ()
    trust: Trust = False
    web: Web | None = None
    """Serve a live page on this machine (default: the first free port from 8089 on); HOST:PORT serves it to others,
    who then need the token in the printed address."""
    advised: Folder | None = None
    """Take the settings that onrig advise recommends in this folder."""
    resume: RunFolder | None = None
    """Resume the run in this folder, however it ended."""
    dry_run: bool = False
    """Check everything, start nothing."""


def main(options: Options) -> int:
    """Run the rig; returns the exit code."""
    if options.config is None and options.resume is None:
        raise UsageError(_misplaced(options) or "required: a configuration, or --resume DIR")
    if options.resume is not None and options.run_dir is not None:
        return complain("run", "--run-dir: not allowed with --resume; a resumed run stays in its folder")
    if options.resume is not None and options.advised is not None:
        return complain("run", "--advised: not allowed with --resume; a resumed run keeps its settings")
    from onrig.tools.run import run_shown

    return run_shown(
        options.config,
        options.set,
        options.run_dir,
        options.device,
        options.web,
        options.resume,
        advised=options.advised,
        dry_run=options.dry_run,
    )


def _misplaced(options: Options) -> str | None:
    """Message for ``onrig run --web pendulum``, which takes the configuration for a port."""
    word = options.web or ""
    if not word or word.rpartition(":")[2].isdecimal():
        return None
    return f"--web: '{word}' is no port; put the configuration first: onrig run {word} --web"
