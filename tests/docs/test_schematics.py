"""Pins are defined once, in the firmware's headers: schematics and tables agree with them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RIGS = {"pendulum": 0, "magman": 1}
"""Position of each rig in the table of docs/wiring.md."""


@pytest.fixture(scope="module")
def schematics() -> ModuleType:
    pytest.importorskip("schemdraw")
    spec = importlib.util.spec_from_file_location("schematics", ROOT / "docs" / "wiring" / "schematics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("rig", RIGS)
def test_the_table_has_every_pin_of_the_header(rig: str, schematics: ModuleType) -> None:
    table: dict[str, int] = {}
    for line in (ROOT / "docs" / "wiring.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[2] == "":
            name, pin = cells[3 * RIGS[rig] : 3 * RIGS[rig] + 2]
            if pin.isdigit():
                table[name.lower().replace(" ", "_")] = int(pin)
    assert table == schematics.read_pins(rig)


@pytest.mark.parametrize("rig", RIGS)
def test_no_two_signals_share_a_pin(rig: str, schematics: ModuleType) -> None:
    pins = schematics.read_pins(rig)
    assert len(set(pins.values())) == len(pins) >= 7


@pytest.mark.parametrize("rig", RIGS)
def test_the_committed_schematic_is_what_the_program_draws(rig: str, schematics: ModuleType, tmp_path: Path) -> None:
    getattr(schematics, f"draw_{rig}")().save(str(tmp_path / "drawn.svg"))
    drawn, kept = ((path).read_text() for path in (tmp_path / "drawn.svg", ROOT / "docs" / "wiring" / f"{rig}.svg"))
    assert re.findall(r">([^<>]+)</", drawn) == re.findall(r">([^<>]+)</", kept)
    for name, pin in schematics.read_pins(rig).items():
        assert f"GP{pin}  {name.replace('_', ' ')}" in drawn
