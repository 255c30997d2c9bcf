"""Onrig: the folders of this repository as one package, and its public names, each imported on first use."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from onrig.runtime.config.problem import ConfigError as ConfigError
    from onrig.runtime.exit_codes import Failure as Failure
    from onrig.tools.api.run_data import open_run as open_run
    from onrig.tools.check import check as check
    from onrig.tools.experiments.experiment import experiment as experiment
    from onrig.tools.identification.identify import identify as identify
    from onrig.tools.policy import evaluate as evaluate
    from onrig.tools.pretraining.pretrain import pretrain as pretrain
    from onrig.tools.running import run as run
    from onrig.tools.trainers.connection import connect as connect
    from onrig.tools.trainers.environment import make as make
    from onrig.tools.trainers.vector import make_vec as make_vec

    __version__: str

_HOMES: Final = {
    "ConfigError": "onrig.runtime.config.problem",
    "Failure": "onrig.runtime.exit_codes",
    "check": "onrig.tools.check",
    "connect": "onrig.tools.trainers.connection",
    "evaluate": "onrig.tools.policy",
    "experiment": "onrig.tools.experiments.experiment",
    "identify": "onrig.tools.identification.identify",
    "make": "onrig.tools.trainers.environment",
    "make_vec": "onrig.tools.trainers.vector",
    "open_run": "onrig.tools.api.run_data",
    "pretrain": "onrig.tools.pretraining.pretrain",
    "run": "onrig.tools.running",
}
"""Module of each public name."""

__all__ = [
    "ConfigError",
    "Failure",
    "check",
    "connect",
    "evaluate",
    "experiment",
    "identify",
    "make",
    "make_vec",
    "open_run",
    "pretrain",
    "run",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name == "__version__":
        from importlib.metadata import version

        return version("onrig")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, imported or not."""
    return sorted({*globals(), *_HOMES})
