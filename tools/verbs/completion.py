"""Print a script that completes onrig's verbs, options and values in a shell.

For bash: `onrig completion bash > ~/.local/share/bash-completion/completions/onrig`. For zsh, in ~/.zshrc and after
compinit: `source <(onrig completion zsh)`. For one session: `source <(onrig completion bash)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    shell: Literal["bash", "zsh"]
    """Shell for which the script is printed."""


def main(options: Options) -> int:
    """Print the script and return the exit code."""
    from onrig.tools.cli import VERBS, all_verbs, members
    from onrig.tools.completion import script

    print(script(options.shell, {verb: members(verb) for verb in VERBS}, all_verbs()), end="")
    return 0
