"""The ``onrig`` command: dispatches to the verb's module.

Nothing is imported before the verb is known, so that the help appears at once.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

VERBS: Final = {
    "check": "validate a configuration and show what it means",
    "run": "run a rig: device or twin, control, replay, learner",
    "web": "serve the live page of a running or finished run",
    "watch": "watch a running rig from another terminal, also over ssh",
    "stop": "stop a running rig from another terminal, actuators first",
    "resume": "resume a paused or faulted run from another terminal",
    "twin": "run the device twin alone, on a pty or a serial port",
    "keys": "generate key pairs for a rig and its learners",
    "learn": "run a learner for a rig on another machine or in another process",
    "replay": "recompute every decision of a recorded run and compare",
    "experiment": "run many trials of many strategies, on all cores or on a cluster",
    "report": "report the results of a run or an experiment",
    "bench": "benchmark a part of Onrig, next to peer libraries where they are installed",
    "baseline": "score a random and a model-based controller on a task",
    "identify": "estimate a plant's parameters from its device's signals, with joint uncertainty",
    "safety": "drive adversarial policies against the shield and report the worst margin",
    "settings": "explain what a configuration may say: values, defaults, meaning",
    "doctor": "check that this machine is fit for a rig: kernel, permissions, ports, keys, wheels",
    "ports": "list the serial ports, what is plugged in, and who holds each",
    "init": "write a rig, a task, a run and a README to begin with",
    "service": "set up a rig as a service: systemd unit, udev rule, limits",
    "disarm": "disarm the device on a port when its run is gone",
    "policy": "check a policy against admission (policy check) or score it on the twin (policy eval)",
}

_PLACES: Final = {
    **{verb: f"{verb}.verb" for verb in ("bench", "doctor", "service", "web")},
    "experiment": "experiments.verb",
    "identify": "identification.verb",
    **{verb: f"verbs.{verb}" for verb in ("disarm", "init", "keys", "learn", "ports", "stop", "twin")},
    "resume": "verbs.stop:resume",
}
"""Modules below ``onrig.tools`` of verbs without one of their own name; ``main`` unless a function is named."""

_LABORATORY: Final = ("attack", "soak")
"""Verbs of earlier versions."""

_USAGE: Final = "usage: onrig VERB [ARGUMENT ...]      (details: onrig VERB --help)\n\n"
_EXIT_CODES: Final = """
exit codes: 0 ok, 2 usage or configuration, 3 preflight, 4 hardware or link, 5 safety trip, 6 ended, data
incomplete, 70 internal, 130 interrupted
"""

_EXTRAS: Final = dict.fromkeys(("torch", "onnx", "gymnasium"), "learner")
"""Packages that a board may lack, and the extra that brings them."""


def entry(verb: str) -> Callable[[list[str]], int]:
    """Import the verb's module and return the function that runs it."""
    import importlib

    place, _, function = _PLACES.get(verb, verb).partition(":")
    run: Callable[[list[str]], int] = getattr(importlib.import_module(f"onrig.tools.{place}"), function or "main")
    return run


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    if arguments is None:
        try:
            return main(sys.argv[1:])
        finally:  # a Ctrl-C during interpreter shutdown would only hide the exit code
            import signal

            signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(len(v) for v in VERBS)
        listing = "".join(f"  {verb:<{width}}  {what}\n" for verb, what in VERBS.items())
        sys.stdout.write(f"{_USAGE}{listing}{_EXIT_CODES}")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"onrig {version('onrig')}\n")
        return 0
    verb = arguments[0]
    if verb in _LABORATORY:
        from onrig.tools.terminal import refer_to_laboratory

        return refer_to_laboratory(f"onrig {verb}", verb)
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

    os.umask(os.umask(0o022) | 0o022)  # what runs and verbs write is for others to read at most
    # Pictures go to files. What a notebook sets here for its own processes may not even exist in this environment, and
    # then matplotlib cannot be imported.
    os.environ["MPLBACKEND"] = "agg"
    try:
        run = entry(verb)
        with printable_streams():
            code = run(arguments)
            sys.stdout.flush()
            return code
    except StreamLost as lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise the flush at interpreter exit fails
        return 0 if lost.reader_left else complain(verb, str(lost), 3)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        return complain(verb, f"{error.name} is not installed: pip install 'onrig[{_EXTRAS[error.name]}]'", 3)
    except OSError as error:
        import errno

        if error.errno == errno.ENAMETOOLONG:
            return complain(verb, f"{error.filename!r:.60}...: {error.strerror}")
        if error.errno in (errno.EACCES, errno.EPERM) and error.filename is not None:
            return complain(verb, f"'{error.filename}': {error.strerror}")
        raise


if __name__ == "__main__":
    sys.exit(main())
