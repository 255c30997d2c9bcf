"""Run only the device twin, on a pty or a serial port."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, File, Overrides, Port, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config
    _: KW_ONLY
    port: Port | None = None
    """Serve on this serial port instead of a pty."""
    link: File | None = None
    """Also write the path of the pty to FILE, which must not exist unless an earlier twin wrote it."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Run the twin until SIGINT or SIGTERM, and return the exit code."""
    from onrig.runtime.config.problem import ConfigError
    from onrig.runtime.exit_codes import ExitCode
    from onrig.runtime.run_state.report import use_plain_output
    from onrig.sim.twin.link_file import link_problem
    from onrig.sim.twin.main import serve
    from onrig.tools.load import load, print_problems
    from onrig.tools.ports import missing_port_problem
    from onrig.tools.terminal import complain, file_problem

    try:
        config = load(options.config, options.set)
    except ConfigError as error:
        return print_problems(error)
    if config.device.twin is None:
        return complain("twin", f"{options.config} uses a port; expected a twin ('device: {{twin: ...}}')")
    if problem := file_problem("link", options.link):
        return complain("twin", problem)
    if options.link is not None and (problem := link_problem(options.link)):
        return complain("twin", f"--link: {problem}")
    port_problem = None if options.port is None else missing_port_problem(options.port)
    if port_problem is not None:
        return complain("twin", f"--port: {options.port}: {port_problem}", ExitCode.HARDWARE)
    use_plain_output()
    return serve(config, options.port, options.link, announce=print)
