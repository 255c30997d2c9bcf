"""The parts of the Pico's firmware that run anywhere (duty, decoder, velocity, USB control pipe), and its images."""

from __future__ import annotations

import ctypes
import functools
import math
import random
import re
import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.hw.firmware.build import PRODUCTS, SOURCES, built, need, pico_library

LEVELS: Final = 6250
README: Final = SOURCES / "README.md"
STALL, SEND, TAKE, STATUS = range(4)
BULK_IN, BULK_OUT, NOTIFY = 0x82, 0x02, 0x81


class Bridge(ctypes.Structure):
    _fields_ = [("in1", ctypes.c_uint32), ("in2", ctypes.c_uint32)]


class Slope(ctypes.Structure):
    _fields_ = [("readings", ctypes.c_int32 * 32), ("taken", ctypes.c_uint32)]


class Usb(ctypes.Structure):
    _fields_ = [
        ("product", ctypes.c_char_p),
        ("serial", ctypes.c_char_p),
        ("address", ctypes.c_uint8),
        ("configuration", ctypes.c_uint8),
        ("halted", ctypes.c_uint8),
        ("dtr", ctypes.c_bool),
        ("suspended", ctypes.c_bool),
        ("line_coding", ctypes.c_uint8 * 7),
        ("reply", ctypes.c_uint8 * 2),
    ]


class Answer(ctypes.Structure):
    _fields_ = [
        ("stage", ctypes.c_int),
        ("data", ctypes.POINTER(ctypes.c_uint8)),
        ("n", ctypes.c_size_t),
        ("restart", ctypes.c_uint8),
    ]


@functools.cache
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(pico_library()))
    f32, u32, i32 = ctypes.c_float, ctypes.c_uint32, ctypes.c_int32
    loaded.onrig_bridge_of_volts.argtypes = [f32, f32, u32]
    loaded.onrig_bridge_of_volts.restype = Bridge
    loaded.onrig_level_of_squared_current.argtypes = [f32, f32, f32, f32, u32]
    loaded.onrig_level_of_squared_current.restype = u32
    loaded.onrig_slope_take.argtypes = [ctypes.POINTER(Slope), i32]
    loaded.onrig_slope_of.argtypes = [ctypes.POINTER(Slope), u32]
    loaded.onrig_slope_of.restype = f32
    loaded.onrig_quadrature_wrapped.argtypes = [i32, i32]
    loaded.onrig_quadrature_wrapped.restype = i32
    loaded.onrig_usb_setup.argtypes = [ctypes.POINTER(Usb), ctypes.c_char_p]
    loaded.onrig_usb_setup.restype = Answer
    loaded.onrig_usb_taken.argtypes = [ctypes.POINTER(Usb), ctypes.c_char_p, ctypes.c_size_t]
    loaded.onrig_usb_reset.argtypes = loaded.onrig_usb_line_open.argtypes = [ctypes.POINTER(Usb)]
    loaded.onrig_usb_line_open.restype = ctypes.c_bool
    return loaded


# -- duty --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("volts", [-12.0, -3.0, -0.01, 0.0, 0.01, 1.5, 3.0, 12.0])
def test_the_mean_voltage_of_the_bridge_is_the_command(volts: float) -> None:
    """Driving while the inputs differ, braking while both are high."""
    bridge = library().onrig_bridge_of_volts(volts, 12.0, LEVELS)
    assert max(bridge.in1, bridge.in2) == LEVELS
    assert (bridge.in1 - bridge.in2) * 12.0 / LEVELS == pytest.approx(volts, abs=6.0 / LEVELS + 1e-6)


@pytest.mark.parametrize("volts", [13.0, -1e9, math.inf, -math.inf, math.nan])
def test_no_command_exceeds_the_period_of_the_bridge(volts: float) -> None:
    bridge = library().onrig_bridge_of_volts(volts, 12.0, LEVELS)
    assert max(bridge.in1, bridge.in2) == LEVELS
    assert min(bridge.in1, bridge.in2) == (LEVELS if math.isnan(volts) else 0)


def test_the_duty_of_a_coil_follows_from_the_current_and_ends_at_its_clamp() -> None:
    level = library().onrig_level_of_squared_current
    for squared_a in (0.01, 0.25, 0.6):
        assert level(squared_a, 10.0, 12.0, 0.67, LEVELS) == pytest.approx(
            math.sqrt(squared_a) * 10.0 / 12.0 * LEVELS, abs=1.0
        )
    clamp = int(0.67 * LEVELS)
    assert [level(x, 10.0, 12.0, 0.67, LEVELS) for x in (0.7, 1e9, math.inf)] == [clamp] * 3
    assert [level(x, 10.0, 12.0, 0.67, LEVELS) for x in (0.0, -1.0, math.nan)] == [0] * 3


# -- velocity, encoder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 8, 16, 32])
def test_the_slope_of_a_line_is_exact_even_where_the_count_wraps(n: int) -> None:
    slope = Slope()
    for i in range(100):
        reading = 2**31 - 300 + 7 * i
        library().onrig_slope_take(slope, (reading + 2**31) % 2**32 - 2**31)
        if i >= n - 1:
            assert library().onrig_slope_of(slope, n) == pytest.approx(7.0)
        else:
            assert library().onrig_slope_of(slope, n) == 0.0


def test_the_noise_of_the_slope_is_as_documented() -> None:
    rng, n, slopes = random.Random(1), 16, []
    slope = Slope()
    for _ in range(4000):
        library().onrig_slope_take(slope, round(rng.gauss(0, 1000)))
        slopes.append(library().onrig_slope_of(slope, n))
    rms = math.sqrt(sum(s * s for s in slopes) / len(slopes))
    assert rms == pytest.approx(1000 * math.sqrt(12 / (n * (n * n - 1))), rel=0.1)


@pytest.mark.parametrize("turn", [16384, 4000])
def test_an_angle_wraps_at_the_channel_limits(turn: int) -> None:
    wrapped = library().onrig_quadrature_wrapped
    for count in (0, 1, -1, turn // 2 - 1, turn // 2, -turn // 2, -turn // 2 - 1, 5 * turn + 3, -7 * turn - 3):
        assert wrapped(count, turn) == (count + turn // 2) % turn - turn // 2


class StateMachine:
    """The instructions of the PIO that the decoder uses (RP2040 datasheet 3.4), on two pins."""

    def __init__(self, program: list[int], start: int) -> None:
        self._program, self._wrap_to, self._pc = program, start, start
        self.pins = self.cycles = self._y = self._isr = self._osr = 0
        self.told = 0

    def step(self) -> None:
        word, self.cycles = self._program[self._pc], self.cycles + 1
        self._pc = self._wrap_to if self._pc == len(self._program) - 1 else self._pc + 1
        kind = word >> 13
        if kind == 0:
            jump = word & 0x0080 == 0 or self._y != 0
            if word & 0x0080:
                self._y = (self._y - 1) & 0xFFFFFFFF
            self._pc = word & 31 if jump else self._pc
        elif kind == 2:
            source = {0: self.pins, 7: self._osr}[word >> 5 & 7]
            self._isr = (self._isr << 2 | source & 3) & 0xFFFFFFFF
        elif kind == 4:
            self.told, self._isr = self._isr, 0
        else:
            value = {2: self._y, 6: self._isr}[word & 7] ^ (0xFFFFFFFF if word >> 3 & 3 == 1 else 0)
            target = word >> 5 & 7
            if target == 2:
                self._y = value
            elif target == 5:
                self._pc = value
            elif target == 6:
                self._isr = value
            else:
                self._osr = value


@pytest.mark.parametrize("cycles_per_edge", [10, 11, 37])
def test_the_decoder_counts_every_edge_up_to_one_in_ten_cycles(cycles_per_edge: int) -> None:
    program = (ctypes.c_uint16 * 26).in_dll(library(), "onrig_quadrature_program")
    machine, rng, count, direction = StateMachine(list(program), 19), random.Random(cycles_per_edge), 0, 1
    for _ in range(5000):
        if rng.random() < 0.05:
            direction = -direction
        count += direction
        machine.pins = (0b00, 0b01, 0b11, 0b10)[count % 4]
        for _ in range(cycles_per_edge):
            machine.step()
    for _ in range(30):
        machine.step()
    assert machine.told == count % 2**32


# -- USB ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def usb() -> Usb:
    device = Usb(product=b"pendulum-hw", serial=b"0123456789ABCDEF")
    library().onrig_usb_reset(device)
    return device


def ask(usb: Usb, kind: int, request: int, value: int = 0, index: int = 0, length: int = 0) -> tuple[int, bytes]:
    answer = library().onrig_usb_setup(usb, struct.pack("<BBHHH", kind, request, value, index, length))
    return answer.stage, bytes(answer.data[: answer.n]) if answer.stage == SEND else b""


def test_the_descriptors_describe_a_serial_port(usb: Usb) -> None:
    stage, device = ask(usb, 0x80, 6, 0x0100, 0, 64)
    assert (stage, len(device), device[:2], device[4], device[7]) == (SEND, 18, bytes([18, 1]), 2, 64)
    whole = ask(usb, 0x80, 6, 0x0200, 0, 255)[1]
    assert ask(usb, 0x80, 6, 0x0200, 0, 9)[1] == whole[:9]
    assert struct.unpack_from("<H", whole, 2) == (len(whole),)
    parts, at = [], 0
    while at < len(whole):
        parts.append(whole[at : at + whole[at]])
        at += whole[at]
    assert at == len(whole)
    interfaces = [p for p in parts if p[1] == 4]
    assert [(p[2], p[4], p[5]) for p in interfaces] == [(0, 1, 2), (1, 2, 10)]
    assert whole[4] == len(interfaces)
    assert [(p[2], p[3], p[4]) for p in parts if p[1] == 5] == [(NOTIFY, 3, 8), (BULK_OUT, 2, 64), (BULK_IN, 2, 64)]
    assert [p[2] for p in parts if p[1] == 0x24] == [0, 1, 2, 6]


def test_the_strings_name_rig_and_board(usb: Usb) -> None:
    device = ask(usb, 0x80, 6, 0x0100, 0, 64)[1]
    strings = [ask(usb, 0x80, 6, 0x0300 + i, 0x0409, 255)[1] for i in device[14:17]]
    assert all(s[0] == len(s) and s[1] == 3 for s in strings)
    assert [s[2:].decode("utf-16-le") for s in strings] == ["Onrig", "pendulum-hw", "0123456789ABCDEF"]
    assert ask(usb, 0x80, 6, 0x0300, 0, 255)[1] == bytes([4, 3, 9, 4])


@pytest.mark.parametrize(
    ("kind", "request_code", "value", "index"),
    [
        (0x80, 6, 0x0600, 0),  # device qualifier: full speed only
        (0x80, 6, 0x0304, 0),
        (0x80, 6, 0x0201, 0),
        (0x00, 9, 2, 0),
        (0x00, 3, 1, 0),  # wake the host
        (0x02, 3, 0, 0x83),
        (0x01, 11, 1, 0),
        (0x81, 10, 0, 2),
        (0x21, 0x22, 1, 0),  # to a port that is not configured
        (0xC0, 1, 0, 0),
    ],
)
def test_unknown_control_requests_are_refused(usb: Usb, kind: int, request_code: int, value: int, index: int) -> None:
    before = bytes(usb)
    assert ask(usb, kind, request_code, value, index, 2) == (STALL, b"")
    assert bytes(usb) == before


def test_the_line_is_open_while_the_host_holds_it_open_and_the_bus_is_awake(usb: Usb) -> None:
    is_open = library().onrig_usb_line_open
    assert ask(usb, 0x00, 5, 9)[0] == STATUS
    assert usb.address == 9
    assert library().onrig_usb_setup(usb, struct.pack("<BBHHH", 0x00, 9, 1, 0, 0)).restart == 3
    assert ask(usb, 0x80, 8, 0, 0, 1) == (SEND, b"\1")
    assert not is_open(usb)
    assert ask(usb, 0x21, 0x22, 3) == (STATUS, b"")
    assert is_open(usb)
    usb.suspended = True
    assert not is_open(usb)
    usb.suspended = False
    assert ask(usb, 0x21, 0x22, 2) == (STATUS, b"")
    assert not is_open(usb)
    ask(usb, 0x21, 0x22, 1)
    library().onrig_usb_reset(usb)
    assert (is_open(usb), usb.address, usb.configuration) == (False, 0, 0)


def test_line_coding_is_stored_and_reported(usb: Usb) -> None:
    ask(usb, 0x00, 9, 1)
    coding = struct.pack("<IBBB", 921600, 0, 0, 8)
    assert ask(usb, 0x21, 0x20, 0, 0, 7)[0] == TAKE
    assert ask(usb, 0x21, 0x20, 0, 0, 8)[0] == STALL
    library().onrig_usb_taken(usb, coding, 7)
    assert ask(usb, 0xA1, 0x21, 0, 0, 7) == (SEND, coding)


@pytest.mark.parametrize("endpoint", [BULK_IN, BULK_OUT])
def test_an_endpoint_can_be_halted_and_restarts_afterwards(usb: Usb, endpoint: int) -> None:
    ask(usb, 0x00, 9, 1)
    assert ask(usb, 0x82, 0, 0, endpoint, 2) == (SEND, b"\0\0")
    assert ask(usb, 0x02, 3, 0, endpoint)[0] == STATUS
    assert ask(usb, 0x82, 0, 0, endpoint, 2) == (SEND, b"\1\0")
    answer = library().onrig_usb_setup(usb, struct.pack("<BBHHH", 0x02, 1, 0, endpoint, 0))
    assert (answer.stage, answer.restart, usb.halted) == (STATUS, 1 if endpoint == BULK_IN else 2, 0)


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rig", ["pendulum", "pendulum-hw", "magman"])
def test_an_image_boots_and_its_uf2_file_is_identical(rig: str) -> None:
    need("arm-none-eabi-gcc")
    built("pico")
    image = (PRODUCTS / f"pico-{rig}.bin").read_bytes()
    crc = 0xFFFFFFFF
    for bit in (byte >> 7 - i & 1 for byte in image[:252] for i in range(8)):
        crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 ^ bit else 0)) & 0xFFFFFFFF
    assert struct.unpack_from("<I", image, 252) == (crc,)
    stack, reset = struct.unpack_from("<II", image, 256)
    assert (stack, reset & 1) == (0x20040000, 1)
    assert 0x20000000 < reset < 0x20000000 + len(image)
    told = (PRODUCTS / f"pico-{rig}.uf2").read_bytes()
    blocks = [told[at : at + 512] for at in range(0, len(told), 512)]
    assert b"".join(b[32:288] for b in blocks)[: len(image)] == image
    for n, block in enumerate(blocks):
        head = (0x0A324655, 0x9E5D5157, 0x2000, 0x10000000 + 256 * n, 256, n, len(blocks), 0xE48BFF56)
        assert struct.unpack_from("<8I", block) == head
        assert block[508:] == bytes.fromhex("306fb10a")


def test_the_table_of_sizes_on_the_page_matches_make() -> None:
    """Another compiler may differ a little."""
    need("arm-none-eabi-gcc")
    told = [line.split()[-3:] for line in built("size").splitlines() if re.match(r"(host|mps2|pico) ", line)]
    page = re.findall(r"^\| (?:host|mps2|pico).*\| (\d+) \| (\d+) \| (\d+) \|$", README.read_text(), re.MULTILINE)
    assert len(told) == len(page) == 4
    for is_now, was in zip(told, page, strict=True):
        assert [int(n) for n in is_now] == pytest.approx([int(n) for n in was], rel=0.1, abs=256)
    boards = told[1:]  # a process on the host has megabytes
    assert all(int(stack) <= 8192 for _, _, stack in boards)


def test_a_custom_rig_is_flashed_under_its_own_name(tmp_path: Path) -> None:
    """Emulates make; the next test shows that the compiler accepts such a name."""
    need("make")
    variables = [f"OUT={tmp_path}", "RIG=magman", "NAME=ball-on-a-track", f"DRIVE={tmp_path}"]
    told = subprocess.run(
        ["make", "-n", "-C", SOURCES, "flash", *variables], capture_output=True, text=True, check=True
    ).stdout
    assert """-DONRIG_RIG_NAME='"ball-on-a-track"'""" in told
    assert f'cp {tmp_path}/pico-magman@ball-on-a-track.uf2 "{tmp_path}/"' in told


@pytest.mark.parametrize(("name", "fits"), [("sixteen-bytes-is", True), ("seventeen-bytes-i", False)])
def test_a_name_that_does_not_fit_the_wire_is_refused(name: str, fits: bool, tmp_path: Path) -> None:
    need("gcc")
    words = [
        "gcc",
        "-std=c99",
        "-c",
        f'-DONRIG_RIG_NAME="{name}"',
        str(SOURCES / "rigs" / "rigs.c"),
        "-o",
        str(tmp_path / "rigs.o"),
    ]
    assert (subprocess.run(words, capture_output=True, check=False).returncode == 0) is fits
    assert not fits or name.encode() in (tmp_path / "rigs.o").read_bytes()
