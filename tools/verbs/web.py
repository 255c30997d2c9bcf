"""Serve the live page of a running or finished run."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import RunFolder, Trust, Web


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    run: RunFolder | None = None
    """Run folder (default: the only active run under the current folder)."""
    _: KW_ONLY
    web: Web = ""
    """Port on this machine (default: the first free one from 8089 on), or HOST:PORT for other machines, which need the
    token in the printed address.
    """
    trust: Trust = False


def main(options: Options) -> int:
    """Serve until Ctrl-C, and return the exit code."""
    from onrig.runtime.exit_codes import ExitCode
    from onrig.runtime.run_state.report import use_plain_output
    from onrig.runtime.run_state.running import find_running
    from onrig.tools.active_runs import choose_run
    from onrig.tools.damage import REPORT_PATTERNS, print_damage
    from onrig.tools.terminal import complain
    from onrig.tools.web.guard import parse_address
    from onrig.tools.web.process import serve_page

    folder = options.run
    if folder is None:
        selected = choose_run("web", None, anywhere=False)
        if isinstance(selected, int):
            return selected
        folder = selected.folder
    if not (folder / "config.yaml").exists():
        return complain("web", f"'{folder}' is not a run folder")
    try:
        parse_address(options.web)
    except ValueError as error:
        return complain("web", f"--web: {error}")
    if (running := find_running(folder)) is not None:
        running.trust_files()
    print_damage("web", folder, *REPORT_PATTERNS)
    use_plain_output()
    print(f"run folder: {folder}")
    line_format = "live view: {} (Ctrl-C ends this view, not the run)"
    return ExitCode(serve_page(folder, options.web, lambda url: print(line_format.format(url), flush=True)))
