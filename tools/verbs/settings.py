"""Explain the settings of a configuration: values, defaults, meaning.

Without PATH, all sections are listed.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import Config, Trust, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    paths: Annotated[tuple[str, ...], Value("PATH")] = ()
    """A section or setting, such as limits or learner.sac.lr."""
    _: KW_ONLY
    of: Config | None = None
    """Include the plugin files of this configuration."""
    trust: Trust = False
    markdown: bool = False
    """Print the page docs/settings.md."""


def main(options: Options) -> int:
    """Print settings and return the exit code."""
    from onrig.tools.settings import show

    return show(options.paths, options.of, markdown=options.markdown)
