"""Learn on plants drawn from a rig's identification, before the rig itself moves.

CONFIG names a result of `onrig identify` (identified: FILE, or --set identified=FILE). The policy learns on a twin,
under the rig's limits and shield, with a new plant from the identification's samples in each episode. Held-out samples
show what score to expect on the rig. Pretraining ends when the score has settled, and writes a recipe with which a run
can start (docs/pretraining.md).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import Config, Count, Folder, Overrides, Trust, UsageError, Value
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config | None = None
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    out: Folder | None = None
    """Folder for the result (default: pretrained-NAME)."""
    minutes: Annotated[float, Value("M")] | None = None
    """Maximum computing time in minutes (default: 10)."""
    episodes: Count | None = None
    """Maximum number of training episodes (default: 10000)."""
    resume: Folder | None = None
    """Continue the pretraining in this folder, however it was stopped."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Run the pretraining and return the exit code."""
    if options.config is None and options.resume is None:
        raise UsageError("required: a configuration, or --resume DIR")
    if options.resume is not None and (
        options.config or options.out or options.set or options.minutes or options.episodes
    ):
        return complain("pretrain", "--resume takes all settings from the folder: omit the other arguments")
    if options.minutes is not None and not options.minutes > 0:
        return complain("pretrain", f"--minutes: expected more than 0, got {options.minutes:g}")
    if options.episodes is not None and options.episodes < 1:
        return complain("pretrain", f"--episodes: expected 1 or more, got {options.episodes}")
    from onrig.tools.pretraining.screen import show_pretraining

    return show_pretraining(options.config, options.set, options.out, options.minutes, options.episodes, options.resume)
