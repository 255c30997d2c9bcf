from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.tools.bench.link.network import LossyLink
from onrig.tools.load import load_for_rig
from onrig.tools.workers import Unavailable
from tests.lab.endurance.schedule import NATURES, Kind, Place
from tests.lab.endurance.soak_rig import BASE_DELAY_S, LineFaults, NetworkFaults
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.wire import FLIP, Mode, ServedWire, Wire, WireProcess

LASTING = [k for k in Kind if NATURES[k].place is Place.SERIAL and k not in (Kind.LOST_FRAMES, Kind.DEVICE_REBOOT)]


class Recorded(LossyLink):
    """Records its calls, and opens nothing."""

    def __init__(self) -> None:
        self.state = "whole"
        self.quality = (0.0, 0.0)

    def set_quality(self, *, delay_s: float, loss: float) -> None:
        self.quality = (delay_s, loss)

    def cut(self) -> None:
        self.state = "cut"

    def freeze(self) -> None:
        self.state = "silent"

    def restore(self) -> None:
        self.state = "whole"


class RecordedLine:
    """Records its calls."""

    mode: Mode = "carry"

    def lose(self, frames: int) -> None:
        raise AssertionError("no frame may be lost here")


@given(st.permutations(LASTING))
@settings(max_examples=30)
def test_a_line_recovers_after_the_last_fault(order: list[Kind]) -> None:
    wire = RecordedLine()
    line = LineFaults(wire)
    for kind in order:
        line.hold(kind)
    for kind in order[:-1]:
        line.release(kind)
        assert wire.mode != "carry"
    line.release(order[-1])
    assert wire.mode == "carry"


def test_a_pulled_cable_is_worse_than_a_garbled_line() -> None:
    wire = RecordedLine()
    line = LineFaults(wire)
    line.hold(Kind.CABLE_PULLED)
    line.hold(Kind.CORRUPTED_BURST)
    modes = [wire.mode]
    line.release(Kind.CABLE_PULLED)
    modes.append(wire.mode)
    assert modes == ["cut", "garble"]


def test_a_cut_ends_while_a_delay_continues() -> None:
    link = Recorded()
    network = NetworkFaults(link)
    network.hold(Kind.NETWORK_DELAY, 0.05)
    network.hold(Kind.NETWORK_CUT)
    network.hold(Kind.NETWORK_SILENT)
    assert link.state == "cut"
    network.release(Kind.NETWORK_CUT)
    assert link.state == "silent"
    network.release(Kind.NETWORK_SILENT)
    assert (link.state, link.quality) == ("whole", (BASE_DELAY_S + 0.05, 0.0))
    network.release(Kind.NETWORK_DELAY, 0.05)
    assert link.quality == (BASE_DELAY_S, 0.0)


def test_a_line_in_another_process_changes_its_mode() -> None:
    wire = Wire(2, 1, keep=False)
    served = ServedWire(wire)
    served.lose(3)
    served.behave("freeze")
    assert (wire.still_to_lose, wire.mode) == (3, "freeze")
    wire.start()
    wire.close()
    with WireProcess(2, 1) as line:
        line.mode = "garble"
        device, host = (os.open(port, os.O_RDWR | os.O_NOCTTY) for port in (line.ports.device, line.ports.host))
        try:
            os.write(host, b"abc")
            assert os.read(device, 3) == b"abc".translate(FLIP)
            with pytest.raises(Unavailable, match="nonsense"):
                line.ask("behave", "nonsense", returns=type(None))
        finally:
            os.close(device)
            os.close(host)
    assert line.has_ended


@pytest.mark.parametrize("name", ["pendulum", "magman", "pendulum-hidden"])
@pytest.mark.parametrize("recipe", [None, "pendulum-sac", "pendulum-vracer"])
def test_the_acting_policy_is_admissible(name: str, recipe: str | None, tmp_path: Path) -> None:
    if name == "magman" and recipe:
        pytest.skip("these recipes are for pendulums")
    overrides = ["device.pace=realtime", *([f"recipe={recipe}"] if recipe else [])]
    path = tmp_path / "steady.onnx"
    path.write_bytes(steady_policy(load_for_rig(name, overrides)))
    assert load_for_rig(name, [*overrides, f"policy={path}"]).policy == str(path)
