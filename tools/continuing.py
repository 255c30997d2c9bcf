"""``onrig run --resume DIR``: whether the run in a folder can go on, and with which configuration."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from onrig.runtime.run_config import RunConfig, differences
from onrig.runtime.run_state.folder_access import FolderBusy, claim
from onrig.runtime.run_state.running import running_rigs
from onrig.tools.load import load_for_rig

_PATIENCE_S: Final = 30.0
"""The processes of a run whose supervisor was killed end by themselves, and write what they know."""
_SHOWN: Final = 5


class CannotResume(Exception):
    """The run cannot go on; the message says why in one line."""


def continued(folder: Path, name: str | None, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration that the run in ``folder`` goes on with: its own, but for what may change.

    ``name``: a configuration that must be the run's, where the command names one.  Raises CannotResume, and ConfigError
    for a configuration that cannot be used.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise CannotResume(f"'{folder}' holds no run: there is no config.yaml in it")
    for running in running_rigs():
        if running.folder == folder.resolve():
            raise CannotResume(
                f"the run in '{folder}' is running (process {running.pid}); `onrig stop` ends it, `onrig resume` ends "
                "its pause"
            )
    run = load_for_rig(str(path))
    config = load_for_rig(str(path) if name is None else name, overrides)
    found = [str(difference) for difference in differences(run, config)]
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        said = "; ".join(found[:_SHOWN])
        raise CannotResume(f"this is not the configuration of the run in '{folder}': {said}{more}")
    done = _episodes_done(folder)
    if done is not None and done >= config.episodes:
        raise CannotResume(
            f"the run in '{folder}' is complete with {done} episodes; --set episodes=N lets it go on to N"
        )
    return config


def wait_for_folder(folder: Path) -> None:
    """Wait until the processes of the last run have left the folder; raises CannotResume."""
    try:
        os.close(claim(folder, _PATIENCE_S))
    except FolderBusy as error:
        raise CannotResume(f"{error}; wait for it, or end it") from None
    except OSError as error:
        raise CannotResume(f"'{folder}' cannot be read: {error.strerror}") from None


def _episodes_done(folder: Path) -> int | None:
    """Training episodes of a run that says it is complete."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict[str, object])
        episodes = summary.get("episodes")
        if summary.get("exit_reason") == "completed" and isinstance(episodes, int):
            return episodes
    return None
