"""The core beyond what the wire shows: the code on the page, rig headers, the twin's bytes, hostile input."""

from __future__ import annotations

import ctypes
import math
import random
import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from onrig.hw import messages as m
from onrig.hw.clock import VirtualClock
from onrig.hw.conformance.host import Host
from onrig.hw.conformance.page import code_block
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.messages import Fault, MessageType, Op, Status
from onrig.hw.rig import Rig
from onrig.sim.plants import Magman, Pendulum
from onrig.sim.plants.integrate import step
from onrig.sim.plants.plant import Plant
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.sim.twin.options import TwinOptions
from onrig.tools.load import load
from tests.hw.firmware.build import SOURCES, built, need
from tests.hw.firmware.loop import FirmwareLoop, library

PLANTS: Final[dict[str, Plant]] = {
    "pendulum": Pendulum(),
    "pendulum-hw": Pendulum(inertia="hardware"),
    "magman": Magman(),
}
CONFIGS: Final = {"pendulum": "pendulum", "pendulum-hw": "pendulum-hardware", "magman": "magman"}
CORE: Final = sorted((SOURCES / "core").glob("*.[ch]"))
LINES_MAX: Final = 60


def rig_of(name: str) -> Rig:
    return load(CONFIGS[name], []).rig


# -- sources -----------------------------------------------------------------------------------------------------------


def test_the_code_on_the_page_is_that_of_the_core() -> None:
    page = code_block("c").split("\n\n", 1)[1].strip()
    assert page in (SOURCES / "core" / "framing.c").read_text()


def test_the_core_needs_only_memory_functions_of_the_library() -> None:
    allowed = {"<stdbool.h>", "<stddef.h>", "<stdint.h>", "<string.h>"}
    for path in CORE:
        included = set(re.findall(r'^#include ([<"].*[>"])', path.read_text(), re.MULTILINE))
        assert {i for i in included if i.startswith("<")} <= allowed, path.name
        assert not re.search(r"\b(malloc|calloc|realloc|free|printf|strlen|double \w+\()\b", path.read_text()), (
            path.name
        )


def test_no_function_is_longer_than_a_screen() -> None:
    for path in SOURCES.rglob("*.c"):
        for function in re.finditer(r"^\w[^;{}]*\{\n.*?^\}", path.read_text(), re.MULTILINE | re.DOTALL):
            assert function[0].count("\n") < LINES_MAX, f"{path.name}: {function[0].splitlines()[0]}"


# -- rigs --------------------------------------------------------------------------------------------------------------


def header(name: str) -> dict[str, str]:
    """Macros of a rig's header: name without the rig's prefix, and text."""
    text = (SOURCES / "rigs" / f"{name}.h").read_text().replace("\\\n", " ")
    return dict(re.findall(rf"^#define {name.upper()}_(\w+)(?:\(X\))? +(.+)$", text, re.MULTILINE))


def channels(macro: str) -> list[list[str]]:
    return [[cell.strip().strip('"') for cell in row.split(",")] for row in re.findall(r"X\(([^)]*)\)", macro)]


@pytest.mark.parametrize(("name", "rig"), [("pendulum", "pendulum"), ("pendulum", "pendulum-hw"), ("magman", "magman")])
def test_a_rig_header_matches_its_yaml(name: str, rig: str) -> None:
    wanted, macros = rig_of(rig), header(name)
    sensors = channels(macros["SENSORS"])
    assert [(n, unit, float(r), w == "true") for n, unit, r, w, *_ in sensors] == [
        (s.name, s.unit, s.resolution, s.wrap) for s in wanted.sensors
    ]
    for (*_, low, high), s in zip(sensors, wanted.sensors, strict=True):
        seen = next(o for o in wanted.observations if (o.sensor or o.name) == s.name)
        if s.wrap:
            assert int(high) - int(low) + 1 == round(2 * math.pi / s.resolution)
        else:
            assert int(low) * s.resolution <= seen.low < seen.high <= int(high) * s.resolution
    assert [
        (n, u, float(r), int(lo), int(hi), int(safe)) for n, u, r, lo, hi, safe in channels(macros["ACTUATORS"])
    ] == [
        (
            a.name,
            a.unit,
            a.resolution,
            round(a.low / a.resolution),
            round(a.high / a.resolution),
            round(a.safe / a.resolution),
        )
        for a in wanted.actuators
    ]


@pytest.mark.parametrize("name", ["pendulum", "magman"])
def test_no_pin_is_used_twice(name: str) -> None:
    pins = [int(value) for macro, value in header(name).items() if macro.startswith("PIN_")]
    assert len(set(pins)) == len(pins) >= 7
    assert all(0 <= pin <= 28 for pin in pins)


def test_header_scales_reach_the_limits() -> None:
    pendulum, magman = header("pendulum"), header("magman")
    angle, voltage = rig_of("pendulum-hw").sensors[0], rig_of("pendulum-hw").actuators[0]
    assert round(2 * math.pi / angle.resolution) == int(pendulum["ENCODER_COUNTS_PER_TURN"])
    assert voltage.high <= float(pendulum["SUPPLY_V"])
    coil, ohm_per_v = rig_of("magman").actuators[0], float(magman["COIL_OHM"]) / float(magman["SUPPLY_V"])
    assert math.sqrt(coil.high) <= float(magman["CURRENT_MAX_A"])
    assert float(magman["CURRENT_MAX_A"]) * ohm_per_v <= float(magman["DUTY_MAX"]) <= 1.0
    track = next(o for o in rig_of("magman").observations if o.name == "position")
    low, per_v = float(magman["POSITION_AT_0_V_M"]), float(magman["POSITION_M_PER_V"])
    assert low <= track.low < track.high <= low + 3.0 * per_v + 1e-4


# -- the plant, and the twin -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANTS)
def test_the_plant_moves_like_that_of_the_simulator(name: str) -> None:
    plant, rng, doubles = PLANTS[name], np.random.default_rng(3), ctypes.POINTER(ctypes.c_double)
    high = [a.high for a in rig_of(name).actuators]
    low = [a.low for a in rig_of(name).actuators]
    worst = 0.0
    for _ in range(20):
        start = (rng.uniform(-3, 3), rng.uniform(-20, 20)) if name != "magman" else (rng.uniform(-0.03, 0.1), 0.2)
        state, same = tuple(map(float, start)), (ctypes.c_double * 2)(*start)
        for _ in range(500):
            action = tuple(rng.uniform(low, high).tolist())
            state = step(plant, state, action, 0.02)
            counts = ctypes.cast((ctypes.c_double * len(action))(*action), doubles)
            library().onrig_advance(name.encode(), same, counts, 0.02, 2)
            worst = max(worst, *(abs(a - b) for a, b in zip(state, same, strict=True)))
    assert worst <= 1e-5


@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.parametrize("seed", range(5))
def test_firmware_and_twin_send_identical_bytes(name: str, seed: int) -> None:
    """Random requests and commands at random times; sensor limits in DESCRIBE may differ between devices."""
    rng = random.Random(seed)
    rig = rig_of(name)
    clocks = VirtualClock(), VirtualClock()
    options = TwinOptions(plant=PLANTS[name], period_min_us=1000)
    start = dict.fromkeys(PLANTS[name].state_names, 0.0)
    twin = LoopbackDevice(TwinDevice(rig, options, start, time_scale=1.0), clocks[0]).transport
    device = FirmwareLoop(rig.name, clocks[1])
    device.tick()  # sends a hello at power-on, which the twin need not do
    firmware = device.transport
    layout = m.StateLayout(len(rig.sensors), len(rig.actuators))
    readers = FrameReader(), FrameReader()
    frame, said = 0, 0
    for n in range(1500):
        body = random_body(rng, rig, n, frame)
        bodies = []
        # Not at the end of a period: a command that coincides with the sample there is late for one and not for the
        # other.
        wait_ns = rng.randrange(1, 400) * 10_000 + 3_000
        for transport, clock, reader in zip((twin, firmware), clocks, readers, strict=True):
            transport.write(encode_frame(body))
            heard, end_ns = reader.feed(transport.read(0)), clock.now_ns + wait_ns
            while clock.now_ns < end_ns:
                heard += reader.feed(transport.read(end_ns - clock.now_ns))
            bodies.append(heard)
        assert bodies[0] == bodies[1], f"after {body.hex()}"
        said += len(bodies[0])
        frame = next((layout.decode(b).frame for b in reversed(bodies[0]) if b[0] == MessageType.STATE), frame)
    assert said > 900


def random_body(rng: random.Random, rig: Rig, n: int, frame: int) -> bytes:
    """Mostly commands, beginning with CONFIGURE."""
    op = (
        Op.CONFIGURE
        if n == 0
        else rng.choice([Op.ARM] * 5 + [Op.DISARM, Op.CLEAR_FAULT, Op.CLEAR_FAULT, Op.LIMITS, Op.RESET])
    )
    if n and rng.random() < 0.6:
        values = [rng.choice([0, 100, 29_999, 70_000, -31_000, 2**31 - 1]) for _ in rig.actuators]
        return m.CommandLayout(len(rig.actuators)).encode(frame, tuple(values))
    if n and rng.random() < 0.02:
        op = Op.CONFIGURE
    payload = {
        Op.CONFIGURE: m.CONFIGURE_LAYOUT.pack(rng.choice([5_000, 10_000, 999]), rng.randrange(1, 6)),
        Op.LIMITS: m.LIMITS_LAYOUT.pack(rng.randrange(5), rng.choice([-500, 0, 300]), rng.choice([200, 20_000])),
        Op.RESET: m.RESET_LAYOUT.pack(n),
    }
    return m.encode_request(m.Request(n & 0xFFFF, op, payload.get(op, b"")))


# -- faults ------------------------------------------------------------------------------------------------------------


def connected(name: str = "pendulum-hw") -> tuple[Host, FirmwareLoop]:
    clock, rig = VirtualClock(), rig_of(name)
    device = FirmwareLoop(name, clock)
    return Host(device.transport, rig, clock), device


@pytest.mark.parametrize("lease", [1, 2, 5])
def test_outputs_are_safe_within_the_lease_and_a_period_after_the_host_stops(lease: int) -> None:
    """In device time, for any time of the last command within its period; all of a hundred trials."""
    host, device = connected()
    period_us, rng = 20_000, random.Random(lease)
    for _ in range(100):
        host.begin(period_us, lease)
        host.act(host.latest_state(), host.setpoint(2))
        host._now_ns.__self__.advance(rng.randrange(period_us) * 1000)  # type: ignore[attr-defined]
        device_frame = host.latest_state().frame
        host.send(host.command(device_frame, host.setpoint(2)))
        stopped_us = device.now_us
        while device.output(1) != (0.0,):
            host.wait()
        assert device.now_us - stopped_us <= (lease + 1) * period_us
        assert Fault(host.latest_state().fault) is Fault.LEASE


def test_an_internal_fault_persists_until_the_device_is_restarted() -> None:
    host, device = connected()
    host.begin(10_000, 5)
    host.act(host.latest_state(), host.setpoint(2))
    device.fail()
    state = host.fresh_state()
    assert (Fault(state.fault), state.u_end) == (Fault.INTERNAL, host.safe)
    assert host.result(Op.CLEAR_FAULT) == m.Result.NOT_NOW
    device.press_estop(pressed=True)
    assert Fault(host.fresh_state().fault) is Fault.INTERNAL
    device.restart()
    again = host.reconnect()
    assert not again.begin(10_000, 5).status & Status.FAULT


# -- tools -------------------------------------------------------------------------------------------------------------


def test_static_analysers_report_nothing() -> None:
    need("cppcheck")
    built("analyze")


def test_a_million_hostile_inputs_find_nothing() -> None:
    assert "no finding" in built("fuzz", FUZZ_INPUTS="1000000", FUZZ_SEED="11")


def test_the_fuzzer_reaches_nearly_every_branch_of_the_core() -> None:
    need("gcov")
    printed = built("coverage", COVERAGE_INPUTS="1000000")
    found = re.search(r"branches of the core taken: \d+ of \d+, ([\d.]+) %", printed)
    assert found
    assert float(found[1]) >= 95.0


def test_build_products_are_not_written_to_the_sources() -> None:
    built()
    assert not [path for path in Path(SOURCES).rglob("*") if path.suffix in {".o", ".so", ".gcno", ".gcda", ".gcov"}]
