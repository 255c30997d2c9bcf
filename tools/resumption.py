"""Preparing the resumption of a run: its configuration with permitted changes, and a check for damaged files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onrig.hw.native import difference_from_this_process, executor
from onrig.learner.states import States, state_fault, state_name
from onrig.runtime.config.pieces import holds_results
from onrig.runtime.files import read_fields
from onrig.runtime.replay.evidence import Evidence, Fault, Grade, faults, read_evidence
from onrig.runtime.run_changes import compare_configs
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run, read_resolved
from onrig.runtime.run_state.folder_access import FolderBusy, claim
from onrig.runtime.run_state.running import find_running
from onrig.runtime.supervise.run_folder import RESUMES_KEY, Resumption, find_executor
from onrig.tools.beginning import with_resolved_origins
from onrig.tools.load import load_for_rig, replace_device, sections
from onrig.tools.plugins import plugin_difference, third_party_plugins

_ORPHAN_TIMEOUT_S: Final = 30.0
"""Timeout for the orphaned processes of a killed supervisor to save their data and exit."""
_MAX_DIFFERENCES: Final = 5


class CannotResume(Exception):
    """The run cannot be resumed; the message gives the reason in one line."""


def prepare_resumption(folder: Path, name: str | None, overrides: Sequence[str], port: str | None = None) -> Resumption:
    """Return the resumption of the run in ``folder``, with its configuration and the permitted changes.

    The run's own configuration is read from its newest checkpoint or, without one, from ``config.yaml``. ``name`` is a
    configuration from the command line that replaces ``config.yaml``, if any, and ``port`` is the current port of the
    run's device. Raises CannotResume, also if a file that the run needs is damaged, and ConfigError if a configuration
    is invalid.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise CannotResume(f"'{folder}' contains no run: config.yaml is missing")
    if not holds_results(path):
        raise CannotResume(f"'{folder}' contains no run: meta.json is missing")
    if (running := find_running(folder)) is not None:
        raise CannotResume(
            f"the run in '{folder}' is running (process {running.pid}); `onrig stop` ends it, `onrig resume` ends "
            "its pause"
        )
    if name is not None:
        load_run(name, overrides)  # trusts the Python files that it names, also if the run's configuration names them
    wait_for_folder(folder)
    evidence = read_evidence(folder)
    point = evidence.point
    if point is not None and point.config:
        run = read_resolved(
            point.config.encode(), f"{folder / 'buffer'}: the configuration in its checkpoint", sections, folder=folder
        )
    else:
        run = load_for_rig(str(path), is_new_run=False)
    on_device = port if run.device.line is not None else None
    if on_device is not None:
        run = replace_device(run, on_device)
    config = load_for_rig(str(path) if name is None else name, overrides, port=on_device, is_new_run=False)
    config = with_resolved_origins(config, run)
    changes = compare_configs(run, config)
    if changes.refused:
        differences = [str(difference) for difference in changes.refused]
        omitted = f"; and {len(differences) - _MAX_DIFFERENCES} more" if len(differences) > _MAX_DIFFERENCES else ""
        listed = "; ".join(differences[:_MAX_DIFFERENCES])
        raise CannotResume(f"the configuration differs from that of the run in '{folder}': {listed}{omitted}")
    recorded_executor = find_executor(read_fields(folder / "meta.json"), RESUMES_KEY)
    recorded_executor = recorded_executor or States(folder / "learner", sys.stderr.write).executor()
    if mismatch := difference_from_this_process(recorded_executor):
        raise CannotResume(f"the run in '{folder}' was {mismatch}")
    if mismatch := plugin_difference(read_fields(folder / "meta.json"), third_party_plugins(config)):
        raise CannotResume(f"'{folder}': {mismatch}")
    damaged_files = _find_damage(folder, evidence, config, learned_here=run.local_learner and config.local_learner)
    episodes_done = _episodes_done(folder)
    if episodes_done is not None and episodes_done >= config.episodes:
        raise CannotResume(
            f"the run in '{folder}' is complete with {episodes_done} episodes; --set episodes=N extends it to N"
        )
    if recorded_executor is None:
        sys.stderr.write(f"{folder}: meta.json does not name the run's executor; the run continues with {executor()}\n")
    return Resumption(config, changes.permitted, damaged_files, "" if point is None else point.run)


def _find_damage(folder: Path, evidence: Evidence, config: RunConfig, *, learned_here: bool) -> list[str]:
    """Report the damaged files that the run does not need, and return the names of those whose data are lost. Raises
    CannotResume if the run needs a damaged file.

    ``learned_here`` states whether the folder contains the learner's states.
    """
    has_checkpoint = evidence.point is not None  # then config.yaml is compared field by field instead
    damage = faults(
        folder, evidence, lambda name: not (has_checkpoint and name == "config.yaml"), lockstep=config.lockstep
    )
    if evidence.point is not None and config.lockstep and learned_here:
        name = f"learner/{state_name(evidence.counts['closed'])}"
        if state_problem := state_fault(folder / name, evidence.point.run):
            damage.append(Fault(name, state_problem, Grade.ESSENTIAL))
    essential_faults = [str(fault) for fault in damage if fault.grade is Grade.ESSENTIAL]
    if essential_faults:
        omitted = (
            f"; and {len(essential_faults) - _MAX_DIFFERENCES} more" if len(essential_faults) > _MAX_DIFFERENCES else ""
        )
        listed = "; ".join(essential_faults[:_MAX_DIFFERENCES])
        raise CannotResume(f"'{folder}' has changed since the run ended: {listed}{omitted}; restore it from a backup")
    for fault in damage:
        consequence = ": the run ends as incomplete" if fault.grade is Grade.LOST else ""
        sys.stderr.write(f"{folder}: {fault}{consequence}\n")
    return [fault.name for fault in damage if fault.grade is Grade.LOST]


def wait_for_folder(folder: Path) -> None:
    """Wait until the previous processes have released the run folder. Raises CannotResume if that takes too long or the
    folder cannot be read.
    """
    try:
        os.close(claim(folder, _ORPHAN_TIMEOUT_S))
    except FolderBusy as error:
        raise CannotResume(f"{error}; wait for that process to end, or stop it") from None
    except OSError as error:
        raise CannotResume(f"'{folder}' cannot be read: {error.strerror}") from None


def _episodes_done(folder: Path) -> int | None:
    """Return the number of training episodes of a run that is marked as complete, or None for any other run."""
    summary = read_fields(folder / "summary.json")
    episodes = summary.get("episodes")
    return episodes if summary.get("exit_reason") == "completed" and isinstance(episodes, int) else None
