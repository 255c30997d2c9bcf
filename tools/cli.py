"""The ``onrig`` command: dispatches to the verb's module.

Nothing is imported before the verb is known, so that the help appears immediately.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

VERBS: Final = (
    "check",
    "run",
    "web",
    "foxglove",
    "watch",
    "stop",
    "resume",
    "twin",
    "keys",
    "learn",
    "replay",
    "advise",
    "experiment",
    "report",
    "export",
    "bench",
    "baseline",
    "identify",
    "pretrain",
    "safety",
    "settings",
    "doctor",
    "ports",
    "init",
    "service",
    "conformance",
    "disarm",
    "policy",
    "completion",
)
"""Verbs in the order in which the help lists them. Each is a module or package of ``onrig.tools.verbs``."""

_FORMER_VERBS: Final = ("attack", "soak", "bench faults", "bench learner", "bench learning", "bench seeds")
"""Verbs of earlier versions."""

_VERBS_FOLDER: Final = os.path.join(os.path.dirname(__file__), "verbs")
_USAGE: Final = "usage: onrig VERB [ARGUMENT ...]      (details: onrig VERB --help)\n\n"
_EXIT_CODES: Final = """
exit codes: 0 ok, 2 usage or configuration, 3 preflight, 4 hardware or link, 5 safety trip, 6 ended, data
incomplete, 70 internal, 130 interrupted
"""

_EXTRA_BY_PACKAGE: Final = {**dict.fromkeys(("torch", "onnx", "gymnasium"), "learner"), "foxglove": "live"}
"""Extra that installs each optional package, by the package's name."""


def entry(verb: str) -> Callable[[list[str]], int]:
    """Return the function that runs a verb (``run``, ``policy``, ``policy check``): it takes the arguments and returns
    the exit code.
    """
    from functools import partial

    from onrig.tools.options import run_verb

    return partial(_run_group if members(verb) else run_verb, verb)


def _run_group(group: str, arguments: list[str]) -> int:
    """Run one verb of a group, such as ``policy check``."""
    from argparse import SUPPRESS, RawDescriptionHelpFormatter

    from onrig.tools.terminal import VerbParser

    names = members(group)
    parser = VerbParser(
        prog=f"onrig {group}",
        usage=f"onrig {group} {'|'.join(names)} [ARGUMENT ...]      (details: onrig {group} {names[0]} --help)",
        description=f"{summary(group)}.\n\n{_listing({name: summary(f'{group} {name}') for name in names})}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", metavar="|".join(names), choices=names, help=SUPPRESS)
    name = parser.parse_args(arguments[:1]).what
    return entry(f"{group} {name}")(arguments[1:])


def _listing(summaries: dict[str, str]) -> str:
    width = max(map(len, summaries))
    return "".join(f"  {name:<{width}}  {text}\n" for name, text in summaries.items())


def members(group: str) -> list[str]:
    """Return the names of the verbs in a group such as ``policy``, or an empty list for a verb."""
    folder = f"{_VERBS_FOLDER}/{group}"
    names = (name.removesuffix(".py") for name in os.listdir(folder)) if os.path.isdir(folder) else ()
    return sorted(name.replace("_", "-") for name in names if not name.startswith("_"))


def all_verbs() -> list[str]:
    """Return all verbs. Those in a group are prefixed with the group's name: ``run``, ``policy check``."""
    return [f"{verb} {name}".strip() for verb in VERBS for name in members(verb) or ("",)]


def summary(verb: str) -> str:
    """Return the first line of the docstring of a verb's module or package, without importing it: ``Run a rig``."""
    path = f"{_VERBS_FOLDER}/{verb.replace(' ', '/').replace('-', '_')}"
    with open(f"{path}/__init__.py" if os.path.isdir(path) else f"{path}.py", encoding="utf-8") as source:
        return source.readline().strip().strip('"').removesuffix(".")


def main(arguments: list[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    if arguments is None:
        try:
            return main(sys.argv[1:])
        finally:  # a Ctrl-C during interpreter shutdown would only hide the exit code
            import signal

            signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # stdin, stdout or stderr was closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(f"{_USAGE}{_listing({verb: summary(verb) for verb in VERBS})}{_EXIT_CODES}")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"onrig {version('onrig')}\n")
        return 0
    verb = arguments[0]
    for typed_verb in (verb, " ".join(arguments[:2])):
        if typed_verb in _FORMER_VERBS:
            from onrig.tools.terminal import refer_to_laboratory

            return refer_to_laboratory(f"onrig {typed_verb}", typed_verb.split()[-1])
    if verb not in VERBS:
        from onrig.runtime.config.problem import hint

        sys.stderr.write(f"onrig: unknown verb {verb!r}{hint(verb, VERBS)}; choose from {', '.join(VERBS)}\n")
        return 2
    try:
        return _run(verb, arguments[1:])
    except KeyboardInterrupt:
        return 130
    except Exception:
        import traceback

        traceback.print_exc()
        return 70


def _run(verb: str, arguments: list[str]) -> int:
    from onrig.tools.terminal import StreamLost, complain, printable_streams

    os.umask(os.umask(0o022) | 0o022)  # other users must never be able to write to the files created
    # Plots are only written to files. A shell started from a notebook may pass on a backend that is missing in
    # this environment, and matplotlib could then not be imported.
    os.environ["MPLBACKEND"] = "agg"
    try:
        run = entry(verb)
        with printable_streams():
            code = run(arguments)
            sys.stdout.flush()
            return code
    except StreamLost as lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise flushing at interpreter exit fails
        return 0 if lost.reader_left else complain(verb, str(lost), 3)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA_BY_PACKAGE:
            raise
        return complain(verb, f"{error.name} is not installed: pip install 'onrig[{_EXTRA_BY_PACKAGE[error.name]}]'", 3)
    except OSError as error:
        import errno

        if error.errno == errno.ENAMETOOLONG:
            return complain(verb, f"{error.filename!r:.60}...: {error.strerror}")
        if error.errno in (errno.EACCES, errno.EPERM) and error.filename is not None:
            return complain(verb, f"'{error.filename}': {error.strerror}")
        raise


if __name__ == "__main__":
    sys.exit(main())
