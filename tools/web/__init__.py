"""``onrig web``: the live page of a running or finished run; also served by ``onrig run --web``."""

from __future__ import annotations


def main(arguments: list[str]) -> int:
    """Serve the page until Ctrl-C; returns the exit code."""
    from onrig.tools.web.verb import main as serve_run

    return serve_run(arguments)
