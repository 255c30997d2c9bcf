"""``onrig learn``: a learner for a rig in another process or on another machine."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import zmq

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import PATIENCE_S
from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import KeyFault, load_learner_keys
from onrig.runtime.run_state.report import speak_to_a_person
from onrig.tools.load import explain, load_for_learner
from onrig.tools.terminal import VerbParser, complain, tell_missing_library


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = VerbParser(prog="onrig learn", description=__doc__)
    p.add_argument("config", help="path or shipped name of the rig's configuration")
    p.add_argument(
        "--connect", required=True, metavar="ENDPOINT", help="where the rig listens: tcp://HOST:PORT, ipc://…"
    )
    p.add_argument("--keys", type=Path, metavar="DIR", help="this learner's keys (onrig keys); needed for tcp")
    p.add_argument(
        "--plain-loopback", action="store_true", help="connect without keys to a loopback address (tests, tunnels)"
    )
    p.add_argument(
        "--keep-trying", action="store_true", help="retry forever instead of giving up after a minute of silence"
    )
    p.add_argument("--watch", action="store_true", help="mirror the rig's memory without ever pushing policies")
    p.add_argument("--state", type=Path, help="folder in which to save networks and optimisers, and to resume from")
    p.add_overrides()
    return p


def main(arguments: list[str]) -> int:
    """Learn until the rig's run ends; returns the exit code."""
    args = parser().parse_args(arguments)
    try:
        config = load_for_learner(args.config, args.overrides)
    except ConfigError as error:
        return explain(error)
    problem = endpoint_problem(
        args.connect, with_keys=args.keys is not None, plain=args.plain_loopback or config.link.allow_plain_loopback
    )
    if problem is not None:
        return complain("learn", f"--connect: {problem}")
    try:
        keys = None if args.keys is None else load_learner_keys(args.keys)
    except KeyFault as error:
        return complain("learn", f"--keys: {error}", ExitCode.PREFLIGHT)
    if args.state is not None:
        try:
            args.state.mkdir(parents=True, exist_ok=True)
            if not os.access(args.state, os.W_OK | os.X_OK):
                raise PermissionError(13, "not writable")
        except OSError as error:
            return complain("learn", f"--state: '{args.state}' is no folder to write to: {error.strerror or error}")
    tell_missing_library("learn")
    from onrig.learner.attachment import Connection
    from onrig.learner.main import learn  # slow to import: only after all checks

    speak_to_a_person()
    connection = Connection(
        args.connect,
        keys,
        math.inf if args.keep_trying else PATIENCE_S,
        "watch" if args.watch else "push",
    )
    return learn(config, connection, args.state)


def endpoint_problem(endpoint: str, *, with_keys: bool, plain: bool) -> str | None:
    """Why this endpoint is invalid or needs keys; None if it may be used."""
    if endpoint.startswith("ipc://"):
        path = endpoint.removeprefix("ipc://")
        if not 0 < len(os.fsencode(path)) <= zmq.IPC_PATH_MAX_LEN:
            return f"'{endpoint}': expected ipc://PATH with a path of 1 to {zmq.IPC_PATH_MAX_LEN} bytes"
        return "keys are for tcp; leave out --keys" if with_keys else None
    try:
        tcp = parse_tcp(endpoint)
    except ValueError as error:
        return f"{error}; for this machine ipc://PATH also works"
    if tcp.port == 0 or tcp.host == "*":
        return f"'{endpoint}' is no address to connect to; give a host and a port"
    if with_keys:
        return None
    if not tcp.loopback:
        return f"{endpoint} is on another machine: give the learner's keys (--keys DIR, made by `onrig keys DIR`)"
    return None if plain else f"{endpoint}: tcp without keys needs --plain-loopback, or give --keys DIR"
