from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from onrig.tools.web.server import load_assets

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "tools" / "web" / "static").iterdir())
UPLOT = ROOT / "tools" / "web" / "uplot"


def test_all_files_of_the_page_are_served() -> None:
    foreign_paths = {"/uPlot.iife.min.js", "/uPlot.min.css"}
    assert {f"/{s.name}" for s in SOURCES} | foreign_paths | {"/"} == set(load_assets())


def test_the_wheel_includes_them() -> None:
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = package_data.get("onrig.tools.web", [])
    assert all(any(s.match(p) for p in patterns) for s in (*SOURCES, *UPLOT.iterdir()))


def test_third_party_files_have_a_version_and_a_licence_and_load_nothing_else() -> None:
    script, licence = (UPLOT / "uPlot.iife.min.js").read_text(), (UPLOT / "LICENSE").read_text()
    assert "uPlot (v1.6.32)" in script.splitlines()[0]
    assert licence.startswith("The MIT License")
    assert "Leon Sorokin" in licence
    uplot_text = script.partition("\n")[2] + (UPLOT / "uPlot.min.css").read_text()
    assert not re.search(r"https?://|innerHTML|eval\(|new Function|@import|url\(", uplot_text)
    assert "uPlot" in (ROOT / "docs" / "dependencies.md").read_text()


@pytest.mark.parametrize("source", [s for s in SOURCES if s.suffix in (".html", ".js", ".css")], ids=lambda s: s.name)
def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline(source: Path) -> None:
    text = source.read_text()
    assert not re.search(r"https?://|[\"'(]//", text)
    assert "innerHTML" not in text
    assert "eval(" not in text
    if source.suffix == ".html":
        assert not re.search(r"\son[a-z]+=|\sstyle=|<style|<script(?![^>]*src=)", text)


def test_every_requested_import_and_element_exists() -> None:
    names = {s.name for s in SOURCES}
    page = (ROOT / "tools" / "web" / "static" / "index.html").read_text()
    ids = set(re.findall(r'id="([^"]+)"', page))
    for source in SOURCES:
        if source.suffix != ".js":
            continue
        text = source.read_text()
        assert set(re.findall(r'from "\./([^"]+)"', text)) <= names
        element_ids = re.findall(
            r'(?:getElementById\(|\$\(|new CanvasView\(|new TimePlot\(|say\(|show\()"([^"]+)"', text
        )
        assert {w for w in element_ids if " " not in w} <= ids, source.name


def test_the_files_are_small() -> None:
    for source in SOURCES:
        assert len(source.read_text().splitlines()) <= 260, source.name
