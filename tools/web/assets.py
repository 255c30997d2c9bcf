"""The page's files, read once from the package: nothing is looked for by a name that came from outside."""

from __future__ import annotations

from importlib.resources import files
from typing import Final, NamedTuple

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """One file."""

    content_type: str
    body: bytes


def load_assets() -> dict[str, Asset]:
    """Read all files of ``static``, by the path that a browser asks for; ``/`` is the page."""
    found = {}
    for file in files("onrig.tools.web").joinpath("static").iterdir():
        suffix = f".{file.name.rpartition('.')[2]}"
        if suffix in _TYPES:
            found[f"/{file.name}"] = Asset(_TYPES[suffix], file.read_bytes())
    found["/"] = found["/index.html"]
    return found
