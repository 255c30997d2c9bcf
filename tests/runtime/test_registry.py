"""Names from entry points, with synthetic distributions in a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

import onrig.learner.sampler_settings  # noqa: F401  in these tests no other package can be imported
from onrig.runtime import registry
from onrig.runtime.memory.strategy import parse_strategy


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of distributions, the only one on the path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    saved = (registry._entry_points, registry._entries, registry._load_cached)
    for function in saved:
        function.cache_clear()
    yield tmp_path
    for function in saved:
        function.cache_clear()


def distribution(site: Path, name: str, *points: str, kind: str = "dist-info") -> None:
    folder = site / f"{name}-1.0.{kind}"
    folder.mkdir()
    (folder / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(f"Metadata-Version: 2.1\nName: {name}\n")
    (folder / "entry_points.txt").write_text("\n".join(["[onrig.samplers]", *points]))


def test_names_are_known_without_an_import(site: Path) -> None:
    distribution(site, "onrig", "PER = nowhere:At")
    distribution(site, "crossq", "Mine = nowhere.else:At")
    assert registry.names(registry.SAMPLERS) == ("PER", "Mine")
    with pytest.raises(ValueError, match=r"crossq registers 'Mine' in onrig\.samplers, .* \w+: No module"):
        registry.load(registry.SAMPLERS, "Mine")
    with pytest.raises(KeyError):
        registry.load(registry.SAMPLERS, "Other")


def test_a_packages_metadata_are_parsed_once_even_if_they_contain_a_readme(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names_read: list[str] = []
    original_read_text = PathDistribution.read_text

    def record_and_read(self: PathDistribution, name: str | os.PathLike[str]) -> str | None:
        names_read.append(str(name))
        return original_read_text(self, name)

    monkeypatch.setattr(PathDistribution, "read_text", record_and_read)
    points = [f"{kind} = nowhere:At\n" for kind in ("PER", "FIS", "ERO")]
    distribution(site, "onrig", *points, "[onrig.algorithms]", "sac = nowhere:At")
    assert registry.names(registry.SAMPLERS) == ("PER", "FIS", "ERO")
    assert registry.names(registry.ALGORITHMS) == ("sac",)
    assert names_read.count("METADATA") == 1


def test_two_packages_with_one_name_are_refused(site: Path) -> None:
    distribution(site, "onrig", "PER = nowhere:At")
    distribution(site, "crossq", "PER = nowhere:At")
    with pytest.raises(ValueError, match=r"onrig and crossq both register 'PER' in onrig\.samplers: uninstall one"):
        registry.names(registry.SAMPLERS)


def test_build_leftovers_hide_nothing(site: Path) -> None:
    distribution(site, "onrig", kind="egg-info")
    distribution(site, "onrig", "PER = onrig.learner.sampler_settings:RankSettings")
    assert registry.load(registry.SAMPLERS, "PER").corrections == ("IS", "FIS")


def test_an_installation_without_entry_points_reports_the_remedy(site: Path) -> None:
    with pytest.raises(ValueError, match=r"reinstall it \(`make setup`\)"):
        registry.names(registry.SAMPLERS)


def test_a_broken_package_affects_only_those_who_use_it(site: Path) -> None:
    fifo = "FIFO = onrig.runtime.memory.keepers.cyclic:Fifo"
    settings = "onrig.learner.sampler_settings:RankSettings"
    distribution(site, "onrig", f"PER = {settings}", "[onrig.retentions]", fifo)
    distribution(site, "crossq", "Mine = nowhere.else:At")
    assert list(registry.load_available(registry.SAMPLERS)) == ["PER"]
    with pytest.raises(ValueError, match="crossq registers 'Mine'"):
        parse_strategy("FIFO[Mine]")


def test_editors_and_long_modules_do_not_prevent_the_digest_of_a_package(site: Path) -> None:
    distribution(site, "onrig", "PER = nowhere:At")
    distribution(site, "lab", "Mine = my_lab.mine:Mine")
    package = site / "my_lab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "table.py").write_text("# a generated module\n" * 60_000)
    origin = registry.plugin_origin(registry.SAMPLERS, "Mine")
    assert origin is not None
    registry._package_digest.cache_clear()
    (package / ".#mine.py").symlink_to("user@host.1234:56")  # as Emacs marks a file with unsaved changes
    os.mkfifo(package / "pipe.py")
    assert registry.plugin_origin(registry.SAMPLERS, "Mine") == origin
