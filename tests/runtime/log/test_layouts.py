"""The shipped layouts for Foxglove and PlotJuggler: all fields that they show exist in a log."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory

from tests.tools.replaying.runs import LoggedRun

RIGS = ("pendulum", "magman")
LAYOUTS = files("onrig.configs").joinpath("layouts")


def flatten_paths(message: Any, prefix: str) -> Iterator[str]:
    """Paths of all scalar fields of a message, as named by plotting programs."""
    for field in message.DESCRIPTOR.fields:
        path = f"{prefix}/{field.name}"
        if field.message_type is None:
            yield path
        else:
            yield from flatten_paths(getattr(message, field.name), path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """Contents of the log of a short run of each rig, by a public reader."""
    paths_by_rig: dict[str, set[str]] = {}
    for rig in RIGS:
        run = LoggedRun(tmp_path_factory.mktemp(rig) / "run", rig, "episodes=1")
        (run.folder / "events.jsonl").write_bytes(b'{"t_unix_s":1.0,"kind":"event","message":"begins"}\n')
        run.run()
        paths_by_rig[rig] = set(paths_in(run.folder / "log.mcap"))
    return paths_by_rig


def paths_in(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for _, channel, _, message in make_reader(file, decoder_factories=[DecoderFactory()]).iter_decoded_messages():
            yield channel.topic
            yield from flatten_paths(message, channel.topic)


@pytest.mark.parametrize("rig", RIGS)
def test_every_path_in_the_foxglove_layout_exists_in_a_log(rig: str, paths: Mapping[str, set[str]]) -> None:
    layout = msgspec.json.decode(LAYOUTS.joinpath(f"foxglove-{rig}.json").read_bytes(), type=dict[str, Any])
    plotted = [p["value"] for c in layout["configById"].values() for p in c.get("paths", ())]
    topics = [c[key] for c in layout["configById"].values() for key in ("topicPath", "topicToRender") if key in c]
    assert len(plotted) > 20
    assert len(topics) == 2
    assert {p.replace(".", "/") for p in (*plotted, *topics)} <= paths[rig]


@pytest.mark.parametrize("rig", RIGS)
def test_every_panel_of_the_foxglove_layout_has_its_place(rig: str) -> None:
    layout = msgspec.json.decode(LAYOUTS.joinpath(f"foxglove-{rig}.json").read_bytes(), type=dict[str, Any])

    def panels(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        else:
            assert node["direction"] in ("row", "column")
            yield from panels(node["first"])
            yield from panels(node["second"])

    panel_ids = list(panels(layout["layout"]))
    assert sorted(panel_ids) == sorted(layout["configById"])
    assert len(set(panel_ids)) == len(panel_ids)


@pytest.mark.parametrize("rig", RIGS)
def test_every_curve_in_the_plotjuggler_layout_exists_in_a_log(rig: str, paths: Mapping[str, set[str]]) -> None:
    root = ElementTree.fromstring(LAYOUTS.joinpath(f"plotjuggler-{rig}.xml").read_text())
    curves = [c.attrib["name"] for c in root.iter("curve")]
    assert len(curves) > 20
    assert set(curves) <= paths[rig]
    for splitter in root.iter("DockSplitter"):
        assert int(splitter.attrib["count"]) == len(splitter.findall("DockArea"))
        assert len(splitter.attrib["sizes"].split(";")) == len(splitter.findall("DockArea"))


@pytest.mark.parametrize("rig", RIGS)
def test_every_signal_of_the_rig_is_shown(rig: str, paths: Mapping[str, set[str]]) -> None:
    signals = {p for p in paths[rig] if re.search(r"/(observation|applied)/\w+$", p)}
    foxglove = LAYOUTS.joinpath(f"foxglove-{rig}.json").read_text().replace(".", "/")
    plotjuggler = LAYOUTS.joinpath(f"plotjuggler-{rig}.xml").read_text()
    assert signals
    assert all(s in foxglove and s in plotjuggler for s in signals)
