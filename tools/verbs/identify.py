"""Estimate a plant's parameters and their joint uncertainty from its device's signals.

Given a CONFIG, the command excites its twin, or the device on the port given by --device, within the configuration's
limits and under its shield. Given a RUN, it uses the log of the run. Both write identified.yaml, which a run uses as
`identified: FILE`, and an HTML page (docs/identification.md).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import Annotated

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.options import Count, Folder, Overrides, Port, Seed, Trust, Value
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    source: Annotated[str, Value("CONFIG|RUN", complete="config")]
    """Path or shipped name of a configuration, or folder of a run."""
    _: KW_ONLY
    device: Port | None = None
    """Excite the device on this port instead of a twin."""
    effort: Annotated[float, Value("SHARE")] | None = None
    """Share of each actuator's range that is used (default: 1)."""
    until: Annotated[float, Value("WIDTH")] | None = None
    """Stop as soon as each parameter of the plant is known to this relative accuracy, such as 0.1 (default: after the
    full experiment).
    """
    sharpen: bool = False
    """Combine a run's newest ticks with the identification that it began with, and repeat this while the run
    continues.
    """
    yes: bool = False
    """Do not ask before driving a device."""
    out: Folder | None = None
    """Folder for the result (default: identified-NAME, or the run folder)."""
    study: Count | None = None
    """Identify N random twins and report coverage."""
    policies: bool = False
    """Also compare policies trained on the study's twins."""
    seed: Seed | None = None
    """Seed of the twin's noise, or of the study (default: 0)."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Identify the plant and return the exit code."""
    from pathlib import Path

    from onrig.tools.identification.identify import show_identification
    from onrig.tools.identification.recorded import missing_library

    effort, seed = 1.0 if options.effort is None else options.effort, options.seed or 0
    if options.until is not None and not 0 < options.until < 1:
        return complain("identify", f"--until: expected more than 0 and less than 1, got {options.until:g}")
    if not 0 < effort <= 1:
        return complain("identify", f"--effort: expected more than 0 and at most 1, got {effort:g}")
    if options.study is not None and options.study < 1:
        return complain("identify", f"--study: expected 1 or more twins, got {options.study}")
    if not 0 <= seed < 1 << 63:
        return complain("identify", f"--seed: expected 0 or more, below 2^63, got {seed}")
    if message := _inapplicable_options(options, of_run=(Path(options.source) / "config.yaml").is_file()):
        return complain("identify", message)
    if options.sharpen and not (Path(options.source) / "config.yaml").is_file():
        return complain("identify", f"--sharpen: '{options.source}' is not the folder of a run")
    if options.study is not None:
        if library_problem := missing_library():
            return complain("identify", library_problem, ExitCode.PREFLIGHT)
        from onrig.tools.identification.policies import show_study

        return show_study(options.source, options.set, options.study, seed, policies=options.policies)
    return show_identification(
        options.source, options.set, options.device, effort, seed, options.out, options.until,
        yes=options.yes, sharpen=options.sharpen,
    )  # fmt: skip


def _inapplicable_options(options: Options, *, of_run: bool) -> str | None:
    """Return a message about options that do not apply to this kind of source, or None if all apply."""
    inapplicable_names: tuple[str, ...]
    if of_run:
        reason = f"'{options.source}' is a run"
        inapplicable_names = ("device", "effort", "until", "yes", "study", "policies", "seed", "set")
    elif options.study is not None:
        reason = "a study drives no device and writes no file"
        inapplicable_names = ("device", "effort", "until", "yes", "out")
    elif options.device is not None:
        reason, inapplicable_names = (
            "a device has its own noise, and only a study compares policies",
            ("seed", "policies"),
        )
    else:
        reason, inapplicable_names = "only a study compares policies", ("policies",)
    set_options = [
        f.name for f in fields(options) if f.name in inapplicable_names and getattr(options, f.name) != f.default
    ]
    return f"{reason}: omit {', '.join(f'--{name}' for name in set_options)}" if set_options else None
