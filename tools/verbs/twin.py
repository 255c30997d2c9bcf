"""``onrig twin``: the device twin alone, on a pty or on a serial port."""

from __future__ import annotations

from pathlib import Path

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.report import speak_to_a_person
from onrig.sim.twin.line import link_problem
from onrig.sim.twin.main import serve
from onrig.tools.load import explain, load
from onrig.tools.ports import missing_port
from onrig.tools.terminal import VerbParser, complain, unwritable


def main(arguments: list[str]) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    p = VerbParser(prog="onrig twin", description=__doc__)
    p.add_argument("config", help="path or shipped name of a configuration")
    p.add_argument("--port", help="serve on this serial port instead of a pty")
    p.add_argument(
        "--link",
        type=Path,
        metavar="FILE",
        help="also write the path of the pty to FILE, a new one or an earlier twin's",
    )
    p.add_overrides()
    args = p.parse_args(arguments)
    try:
        config = load(args.config, args.overrides)
    except ConfigError as error:
        return explain(error)
    if config.device.twin is None:
        return complain("twin", f"{args.config} names a port; this needs a twin ('device: {{twin: ...}}')")
    if problem := unwritable("link", args.link):
        return complain("twin", problem)
    if args.link is not None and (problem := link_problem(args.link)):
        return complain("twin", f"--link: {problem}")
    missing = None if args.port is None else missing_port(args.port)
    if missing is not None:
        return complain("twin", f"--port: {args.port}: {missing}", ExitCode.HARDWARE)
    speak_to_a_person()
    return serve(config, args.port, args.link, announce=print)
