"""``onrig web``: serves the live page of a running or finished run."""

from __future__ import annotations

import argparse
from pathlib import Path

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.report import speak_to_a_person
from onrig.tools.damage import FIGURES, name_damage
from onrig.tools.terminal import VerbParser, complain
from onrig.tools.verbs.stop import choose
from onrig.tools.web.guard import parse_address
from onrig.tools.web.process import serve


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = VerbParser(prog="onrig web", description=__doc__)
    p.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="run folder; default: the only active run below this folder"
    )
    p.add_argument(
        "--listen",
        default="",
        metavar="PORT",
        help="port on this machine (default: the first free one from 8089 on), or HOST:PORT, which needs the token in "
        "the printed address",
    )
    p.add_trust()
    return p


def main(arguments: list[str]) -> int:
    """Serve until Ctrl-C; returns the exit code."""
    args = parser().parse_args(arguments)
    folder: Path | None = args.run
    if folder is None:
        found = choose("web", None, anywhere=False)
        if isinstance(found, int):
            return found
        folder = found.folder
    if not (folder / "config.yaml").exists():
        return complain("web", f"'{folder}' is not a run folder")
    try:
        parse_address(args.listen)
    except ValueError as error:
        return complain("web", f"--listen: {error}")
    name_damage("web", folder, *FIGURES)
    speak_to_a_person()
    print(f"run folder: {folder}")
    code = serve(folder, args.listen, lambda url: print(f"live view: {url} (Ctrl-C ends it, not the run)", flush=True))
    return ExitCode(code)
