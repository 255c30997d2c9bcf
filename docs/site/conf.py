"""The site: the pages as they are in the repository, and the Python API; ``make site`` builds it into build/site."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])+)\]\(((?!https?:|#|mailto:)[^)#\s]+)(#[^)\s]*)?\)")
"""A link to a file of the repository."""
_IMAGES = {".png", ".svg"}

project = "Onrig"
author = "The Onrig maintainers"
version = release = installed_version("onrig")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"Onrig {release}"
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "**/README.md", "hw/PROTOCOL.md", "runtime/SAFETY.md", "docs/**.md"]
exclude_patterns = ["build", ".*", "onrig", "docs/experiments/data"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
# Not every page is in the navigation; some blocks show YAML with placeholders.
suppress_warnings = ["toc.not_included", "misc.highlighting_failure", "myst.header"]


def _navigation() -> str:
    """Return the navigation: each table of docs/README.md is a part."""
    parts = []
    for block in (_ROOT / "docs/README.md").read_text().split("\n\n"):
        caption = re.match(r"\| ([^|]+) \|", block)
        pages = [(_ROOT / "docs" / name).resolve() for name in re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)", block, re.M)]
        if caption and pages:
            lines = "\n".join(f"/{page.relative_to(_ROOT).with_suffix('')}" for page in pages)
            parts.append(f"```{{toctree}}\n:hidden:\n:caption: {caption[1].strip().capitalize()}\n\n{lines}\n```")
    api = "```{toctree}\n:hidden:\n:caption: Python\n\n/docs/site/api\n```"
    return "\n\n".join(["", *parts, api, ""])


def _prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation, and name code where a page links to it: the site holds pages and images only."""
    folder = (_ROOT / page).parent

    def named(match: re.Match[str]) -> str:
        text, target = match[1], (folder / match[2]).resolve()
        if target.suffix == ".md" or target.suffix in _IMAGES:
            return match[0]
        if (target / "README.md").is_file():
            return f"[{text}]({match[2].rstrip('/')}/README.md)"
        path = target.relative_to(_ROOT).as_posix()
        return text if path in text else f"{text} (`{path}`)"

    source[0] = _LINK.sub(named, source[0]) + (_navigation() if page == root_doc else "")


def _add_index(app: Sphinx, exception: Exception | None) -> None:
    """Forward the site's address to its first page."""
    (app.outdir / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def setup(app: Sphinx) -> None:
    """Prepare every page when it is read."""
    app.connect("source-read", _prepare)
    app.connect("build-finished", _add_index)
