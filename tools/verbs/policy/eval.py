"""Score a policy on the lockstep twin, without exploration."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, Count, File, Json, Overrides, Seed, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    file: File
    """A policy (ONNX)."""
    config: Config
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    episodes: Count = 10
    """Number of evaluation episodes."""
    json: Json | None = None
    seed: Seed | None = None
    """Seed of the run (default: the configuration's)."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Evaluate a policy and return the exit code."""
    from onrig.tools.policy import score

    return score(options.file, options.config, options.set, options.episodes, options.seed, options.json)
