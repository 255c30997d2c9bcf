"""The ``onrig`` command: finds the verb's module and leaves the rest to it.

Nothing is imported before a verb is known, not even what takes milliseconds: the help is there at once.
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
    "web": "serve the live page of a run, under way or over",
    "watch": "look at a running rig from another terminal, over ssh as well",
    "stop": "stop a running rig from another terminal, actuators first",
    "resume": "let a paused or faulted run go on from another terminal",
    "twin": "run a device twin alone, on a pty or a serial port",
    "keys": "make the key pairs of a rig and its learners",
    "learn": "run a learner for a rig that is running elsewhere",
    "replay": "decide a recorded run once more and compare every decision",
    "experiment": "run many trials of many strategies, on all cores or on a cluster",
    "report": "say what a run came to, and draw its learning curve",
    "bench": "measure a part of Onrig, peers beside it where they are installed",
    "soak": "run a rig, a learner and a bad network for minutes, with faults everywhere, and keep the books",
    "attack": "try to break a rig from outside and from within, and say what did",
    "baseline": "what the random controller and a model-based one reach on a task",
    "identify": "find the parameters of a plant from its device's signals, with their joint uncertainty",
    "safety": "try to break what the shield promises, and say how near that came",
    "doctor": "check board, kernel, permissions, ports, keys and wheels",
    "service": "make a rig a service of this machine: systemd unit, udev rule, limits",
    "disarm": "tell the device behind a port to be safe, when nothing is left of its run",
    "policy": "judge a policy (policy check) or measure it on the twin (policy eval)",
}

_PLACES: Final = {
    **{verb: f"{verb}.verb" for verb in ("bench", "doctor", "service", "web")},
    "experiment": "experiments.verb",
    "identify": "identification.verb",
    **{verb: f"verbs.{verb}" for verb in ("keys", "learn", "stop", "disarm", "twin")},
    "resume": "verbs.stop:resume",
}
"""Modules below ``onrig.tools`` of verbs that are no module themselves; ``main`` where no function is named."""

_USAGE: Final = "usage: onrig VERB [ARGUMENT ...]      (onrig VERB --help tells more)\n\n"
_EXIT_CODES: Final = """
exit codes: 0 ok, 2 usage or configuration, 3 preflight, 4 hardware or link, 5 safety trip, 70 internal,
130 interrupted
"""


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
        finally:  # a Ctrl-C in the interpreter's own end would only hide the exit code
            import signal

            signal.signal(signal.SIGINT, signal.SIG_IGN)
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
    if verb not in VERBS:
        from onrig.runtime.config.problem import hint

        sys.stderr.write(f"onrig: there is no verb {verb!r}{hint(verb, VERBS)}; there are: {', '.join(VERBS)}\n")
        return 2
    from onrig.tools.terminal import printable_streams

    run = entry(verb)
    try:
        with printable_streams():
            code = run(arguments[1:])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains when it flushes at exit
        return 0
    except Exception:
        import traceback

        traceback.print_exc()
        return 70
    return code


if __name__ == "__main__":
    sys.exit(main())
