"""``onrig learn``: a learner for a rig that runs elsewhere (another process, another machine)."""

from __future__ import annotations

import argparse
from pathlib import Path

from runtime.config.document import ConfigError
from runtime.exit_codes import ExitCode
from runtime.supervise.report import speak_to_a_person
from tools.load import complain, explain, load


def main(arguments: list[str]) -> int:
    """Learn until the rig's run ends; returns the exit code."""
    p = argparse.ArgumentParser(prog="onrig learn", description=__doc__)
    p.add_argument("config", help="path or shipped name of the rig's configuration")
    p.add_argument("--connect", required=True, metavar="ENDPOINT", help="where the rig listens (printed by onrig run)")
    p.add_argument("--state", type=Path, help="folder to keep networks and optimisers in, and to go on from")
    p.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a value")
    args = p.parse_args(arguments)
    try:
        config = load(args.config, args.overrides)
    except ConfigError as error:
        return explain(error)
    if not args.connect.startswith(("ipc://", "tcp://")):
        return complain("learn", f"--connect: '{args.connect}' is no endpoint; it reads ipc://PATH or tcp://HOST:PORT")
    try:
        from learner.main import learn  # torch takes a second to import: only once the configuration is sound
    except ImportError as error:
        return complain("learn", f"{error}; install it with pip install 'onrig[learner]'", ExitCode.PREFLIGHT)
    speak_to_a_person()
    return learn(config, args.connect, args.state)
