"""Show a running rig in Foxglove or Lichtblick."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import RunFolder, Trust, Web


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    run: RunFolder | None = None
    """Run folder (default: the only active run under the current folder)."""
    _: KW_ONLY
    foxglove: Web = ""
    """Port on this machine (default: the first free one from 8765 on), or HOST:PORT for other machines, which need the
    token in the printed address.
    """
    trust: Trust = False


def main(options: Options) -> int:
    """Serve until Ctrl-C, and return the exit code."""
    from onrig.runtime.run_state.report import use_plain_output
    from onrig.tools.active_runs import choose_run
    from onrig.tools.foxglove.process import serve_viewers
    from onrig.tools.terminal import complain
    from onrig.tools.web.guard import parse_address

    selected = choose_run("foxglove", options.run, anywhere=False)
    if isinstance(selected, int):
        return selected
    try:
        parse_address(options.foxglove)
    except ValueError as error:
        return complain("foxglove", f"--foxglove: {error}")
    selected.trust_files()
    use_plain_output()
    print(f"run folder: {selected.folder}")
    return serve_viewers(
        selected.folder,
        options.foxglove,
        lambda url: print(f"Foxglove: {url} (Ctrl-C ends this view, not the run)", flush=True),
    )
