"""The page of commands, written from the verbs' modules: ``python -m tests.docs.commands_page > docs/commands.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onrig.tools.cli import all_verbs, summary
from onrig.tools.options import Argument, arguments_of, usage, verb_module

_HEAD: Final = """# Commands

Generated from the verbs' descriptions by `python -m tests.docs.commands_page > docs/commands.md`, and held by a test.
`onrig VERB --help` prints the same in a terminal, `onrig --version` the version.

CONFIG is a path, a folder that holds its `run.yaml`, or the name of a shipped run (`pendulum`, `pendulum-hidden`,
`magman`, `pendulum-hardware`, `pendulum-overnight`). Recipes select other algorithms:
`onrig run pendulum --set recipe=pendulum-sac` ([configs](../configs/README.md#recipe-how-to-learn)).

Exit codes: 0 ok · 2 usage or configuration · 3 preflight failed · 4 hardware or link · 5 safety trip · 6 ended, data
incomplete · 70 internal · 130 interrupted.

`--trust` trusts the Python files named in a run folder or in a configuration from someone else
([extending](extending.md#what-runs-and-what-is-checked)). Attack, endurance test, fault matrix and the comparisons of
learners need a checkout: [tests/lab](../tests/lab/README.md).
"""
_TAIL: Final = """## Stopping

Ctrl-C (or key `q`, or `onrig stop` in another terminal) fades the command out and ends the run: actuators, processes,
files. A second Ctrl-C, Ctrl-\\\\, the space bar or `onrig stop --now` disarms at once. A pressed e-stop or a spent
session budget leaves the rig disarmed until `onrig resume` or key `r`; after a spent hour budget the run continues by
itself. [Faults](faults.md) lists every fault with its cause, its remedy and who may re-arm.

*Safe* always means confirmed by a state frame of the device. Otherwise `onrig run`, `onrig stop`, the page and
`systemctl stop` report "unconfirmed" with the time at which the device's lease expires at the latest, and the exit code
is 4.

## Completion

`source <(onrig completion bash)`, in zsh `source <(onrig completion zsh)` after compinit, completes verbs, options,
shipped configurations, run folders, ports and files; [below](#onrig-completion) for all sessions.
"""


def page() -> str:
    """The page as Markdown."""
    verbs = all_verbs()
    rows = [f"| [`onrig {verb}`](#onrig-{verb.replace(' ', '-')}) | {summary(verb)} |" for verb in verbs]
    table = "\n".join(["| command | does |", "|---|---|", *rows])
    return "\n".join([_HEAD, f"{table}\n", _TAIL, *("\n".join(_section(verb)) for verb in verbs)])


def _section(verb: str) -> Iterator[str]:
    module = verb_module(verb)
    arguments = arguments_of(module.Options)
    yield f"## onrig {verb}\n"
    yield f"`{usage(verb, arguments)}`\n"
    for paragraph in (module.__doc__ or "").strip().split("\n\n"):
        yield f"{' '.join(paragraph.replace('``', '`').split())}\n"
    if arguments:
        yield "| argument | meaning |\n|---|---|"
        yield from (_row(a) for a in arguments)
        yield ""


def _row(a: Argument) -> str:
    word = a.value.metavar if a.positional else a.flag
    return f"| `{_cell(word)}` | {_cell(a.help)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
