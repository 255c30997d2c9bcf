"""Run a learner for a rig on another machine or in another process."""

from __future__ import annotations

import math
import os
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import Config, Folder, Overrides, Trust, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    connect: Annotated[str, Value("ENDPOINT")]
    """Where the rig listens: tcp://HOST:PORT, ipc://PATH."""
    keys: Folder | None = None
    """This learner's keys (onrig keys); needed for tcp."""
    plain_loopback: bool = False
    """Connect without keys to a loopback address (tests, tunnels)."""
    keep_trying: bool = False
    """Retry forever instead of giving up after a minute of silence."""
    watch: bool = False
    """Mirror the rig's memory without ever pushing policies."""
    state: Folder | None = None
    """Folder in which to save networks and optimisers, and to resume from."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Learn until the rig's run ends; returns the exit code."""
    from onrig.runtime.config.problem import ConfigError
    from onrig.runtime.exit_codes import ExitCode
    from onrig.runtime.link.client import PATIENCE_S
    from onrig.runtime.link.keys import KeyFault, load_learner_keys
    from onrig.runtime.run_state.report import use_plain_output
    from onrig.tools.load import explain, load_for_learner
    from onrig.tools.terminal import complain, warn_missing_library

    try:
        config = load_for_learner(options.config, options.set)
    except ConfigError as error:
        return explain(error)
    plain = options.plain_loopback or config.link.allow_plain_loopback
    if problem := endpoint_problem(options.connect, with_keys=options.keys is not None, plain=plain):
        return complain("learn", f"--connect: {problem}")
    try:
        keys = None if options.keys is None else load_learner_keys(options.keys)
    except KeyFault as error:
        return complain("learn", f"--keys: {error}", ExitCode.PREFLIGHT)
    if options.state is not None:
        try:
            options.state.mkdir(parents=True, exist_ok=True)
            if not os.access(options.state, os.W_OK | os.X_OK):
                raise PermissionError(13, "not writable")
        except OSError as error:
            return complain("learn", f"--state: '{options.state}' cannot be written to: {error.strerror or error}")
    warn_missing_library("learn")
    from onrig.learner.attachment import Connection
    from onrig.learner.main import learn  # slow to import: only after all checks

    use_plain_output()
    patience_s = math.inf if options.keep_trying else PATIENCE_S
    return learn(
        config, Connection(options.connect, keys, patience_s, "watch" if options.watch else "push"), options.state
    )


def endpoint_problem(endpoint: str, *, with_keys: bool, plain: bool) -> str | None:
    """Message for an endpoint that is invalid or needs keys, or None."""
    import zmq

    from onrig.runtime.link.endpoint import parse_tcp

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
