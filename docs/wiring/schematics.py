"""The schematics of both rigs on a Raspberry Pi Pico, drawn from the pins of ``hw/firmware/rigs/*.h``.

python docs/wiring/schematics.py        # writes pendulum.svg and magman.svg next to this file; needs schemdraw
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import schemdraw
import schemdraw.elements as elm
from schemdraw.util import Point

schemdraw.use("svg")  # text stays text

FOLDER: Final = Path(__file__).parent
RIGS: Final = FOLDER.parents[1] / "hw" / "firmware" / "rigs"
_PIN_PATTERN: Final = re.compile(r"^#define \w+?_PIN_(\w+) (\d+)$", re.MULTILINE)
SMALL_FONT_SIZE: Final = 11.0


def read_pins(rig: str) -> dict[str, int]:
    """GPIO number of each signal of a rig's header, by name in lower case."""
    return {
        name.lower(): int(pin) for name, pin in _PIN_PATTERN.findall((RIGS / f"{rig}.h").read_text(encoding="utf-8"))
    }


def _create_pico(pins: dict[str, int]) -> elm.Ic:
    """The board: signals on the right, USB and supplies on the left."""
    signals = [elm.IcPin(name=f"GP{pin}", side="right", anchorname=name) for name, pin in reversed(pins.items())]
    supplies = [elm.IcPin(name=n, side="left", anchorname=n) for n in ("GND", "3V3", "VBUS", "USB")]
    ic = elm.Ic(pins=[*supplies, *signals], edgepadW=1.6, pinspacing=1.3)
    ic.right().label("Raspberry Pi Pico", "top")
    return ic


def _add_driver(drawing: schemdraw.Drawing, position: tuple[float, float], name: str) -> elm.Ic:
    """A DRV8874 in PWM mode (PMODE to 3V3)."""
    inputs = [elm.IcPin(name=n, side="left", anchorname=n) for n in ("nSLEEP", "IN2", "IN1")]
    outputs = [elm.IcPin(name=n, side="right", anchorname=n) for n in ("GND", "OUT2", "OUT1", "VM")]
    bottom_pins = [
        elm.IcPin(name=n, side="bottom", anchorname=n, slot=slot) for n, slot in (("IPROPI", "1/3"), ("VREF", "3/3"))
    ]
    driver = elm.Ic(pins=[*inputs, *outputs, *bottom_pins], size=(5.4, 7.0), edgepadH=1.2, pinspacing=1.5)
    drawing.add(driver.at(position).right().label(name, "top"))
    return driver


def _add_load(drawing: schemdraw.Drawing, driver: elm.Ic, load: elm.Element2Term, name: str) -> None:
    """A driver's supply, and what it drives."""
    _add_lead(drawing, driver.VM, 0.6, "VM")
    drawing.add(elm.Line().at(driver.GND).right().length(0.6))
    drawing.add(elm.Ground())
    drawing.add(elm.Line().at(driver.OUT1).right().length(2.2))
    drawing.add(load.down().toy(driver.OUT2).label(name, "bottom"))
    drawing.add(elm.Line().left().tox(driver.OUT2))


def _add_lead(drawing: schemdraw.Drawing, start: Point, length: float, text: str, side: str = "right") -> None:
    """A short lead from a pin that ends in a net's name."""
    line, tag = (
        elm.Line().at(start).length(length),
        elm.Tag(width=0.9 + 0.19 * len(text)).label(text, fontsize=SMALL_FONT_SIZE),
    )
    for element in (line, tag):
        drawing.add(element.right() if side == "right" else element.left())


def _add_supply(drawing: schemdraw.Drawing, position: tuple[float, float], fuse: str, bulk_capacitor: str) -> None:
    """Bench supply, fuse, first contact of the e-stop, bulk capacitor: the net VM."""
    drawing.add(elm.SourceV().at(position).up().label("12 V\ncurrent\nlimited"))
    drawing.add(elm.Fuse().right().label(f"F1 {fuse}"))
    drawing.add(elm.Line().right().length(0.6))
    drawing.add(elm.Button(nc=True).right().label("e-stop\ncontact 1 (NC)"))
    drawing.add(elm.Dot())
    drawing.push()
    drawing.add(elm.Capacitor(polar=True).down().label(bulk_capacitor, "bottom"))
    drawing.add(elm.Ground())
    drawing.pop()
    drawing.add(elm.Line().right().length(0.8))
    drawing.add(elm.Tag().right().label("VM", fontsize=SMALL_FONT_SIZE))
    drawing.add(elm.Ground().at(position))


def _add_estop(drawing: schemdraw.Drawing, position: tuple[float, float], pin: int) -> None:
    """Second contact of the e-stop, closed to ground when released."""
    drawing.add(elm.Tag().at(position).left().label(f"GP{pin}", fontsize=SMALL_FONT_SIZE))
    drawing.add(elm.Resistor().at(position).right().label("1 kΩ"))
    drawing.add(elm.Dot())
    drawing.push()
    drawing.add(elm.Capacitor().down().label("100 nF", "bottom"))
    drawing.add(elm.Ground())
    drawing.pop()
    drawing.add(elm.Button(nc=True).right().label("e-stop\ncontact 2 (NC)"))
    drawing.add(elm.Ground())


def _add_pull_down(drawing: schemdraw.Drawing, position: tuple[float, float], text: str) -> None:
    drawing.add(elm.Tag().at(position).left().label(text, fontsize=SMALL_FONT_SIZE))
    drawing.add(elm.Line().at(position).right().length(0.5))
    drawing.add(elm.Resistor().down().label("10 kΩ"))
    drawing.add(elm.Ground())


def _add_board(drawing: schemdraw.Drawing, pins: dict[str, int]) -> None:
    pico = drawing.add(_create_pico(pins).at((0, 0)))
    for name, pin in pins.items():
        _add_lead(drawing, getattr(pico, name), 0.6, f"GP{pin}  {name.replace('_', ' ')}")
    _add_lead(drawing, pico.USB, 0.6, "USB to the computer", "left")
    _add_lead(drawing, pico.VBUS, 0.6, "5 V", "left")
    _add_lead(drawing, getattr(pico, "3V3"), 0.6, "3V3", "left")
    drawing.add(elm.Line().at(pico.GND).left().length(0.6))
    drawing.add(elm.Ground())


def _add_current_sense(drawing: schemdraw.Drawing, driver: elm.Ic, pin: int) -> None:
    """Reference voltage of the driver, and its current output with filter."""
    drawing.add(elm.Line().at(driver.VREF).down().length(0.5))
    drawing.add(elm.Dot())
    drawing.push()
    drawing.add(elm.Resistor().right().label("10 kΩ"))
    drawing.add(elm.Tag().right().label("3V3", fontsize=SMALL_FONT_SIZE))
    drawing.pop()
    drawing.add(elm.Resistor().down().label("10 kΩ"))
    drawing.add(elm.Ground())
    drawing.add(elm.Line().at(driver.IPROPI).down().length(0.5))
    drawing.add(elm.Dot())
    drawing.push()
    drawing.add(elm.Resistor().left().label("1 kΩ"))
    drawing.add(elm.Dot())
    drawing.push()
    drawing.add(elm.Capacitor().down().label("1 µF", "bottom"))
    drawing.add(elm.Ground())
    drawing.pop()
    drawing.add(elm.Line().left().length(0.5))
    drawing.add(elm.Tag().left().label(f"GP{pin}", fontsize=SMALL_FONT_SIZE))
    drawing.pop()
    drawing.add(elm.Resistor().down().label("2.2 kΩ", "bottom"))
    drawing.add(elm.Ground())


def _add_encoder(drawing: schemdraw.Drawing, pins: dict[str, int]) -> None:
    """The encoder, and the buffer that shifts its levels."""
    buffer = elm.Ic(
        pins=[
            elm.IcPin(name="A", side="right", anchorname="inA"),
            elm.IcPin(name="B", side="right", anchorname="inB"),
            elm.IcPin(name="A'", side="left", anchorname="outA"),
            elm.IcPin(name="B'", side="left", anchorname="outB"),
        ],
        edgepadW=1.6,
        edgepadH=0.5,
        pinspacing=1.0,
    )
    buffer = drawing.add(buffer.at((13.0, -4.6)).right().label("74LVC2G17 at 3V3", "top"))
    encoder = elm.Ic(
        pins=[
            elm.IcPin(name="A", side="left", anchorname="A"),
            elm.IcPin(name="B", side="left", anchorname="B"),
            elm.IcPin(name="5 V", side="right", anchorname="V"),
            elm.IcPin(name="GND", side="right", anchorname="G"),
        ],
        edgepadW=1.4,
        edgepadH=0.5,
        pinspacing=1.0,
    )
    encoder = drawing.add(encoder.at((18.4, -4.6)).right().label("encoder, 4096 lines", "top"))
    _add_lead(drawing, buffer.outA, 0.6, f"GP{pins['encoder_a']}", "left")
    _add_lead(drawing, buffer.outB, 0.6, f"GP{pins['encoder_b']}", "left")
    for encoder_pin, buffer_pin in (("A", "inA"), ("B", "inB")):
        drawing.add(elm.Line().at(getattr(buffer, buffer_pin)).to(getattr(encoder, encoder_pin)))
    _add_lead(drawing, encoder.V, 0.6, "5 V")
    drawing.add(elm.Line().at(encoder.G).right().length(0.6))
    drawing.add(elm.Ground())


def draw_pendulum() -> schemdraw.Drawing:
    """Encoder, H-bridge with current sense, motor, e-stop."""
    pins = read_pins("pendulum")
    drawing = schemdraw.Drawing(show=False, fontsize=13, unit=2.4, bgcolor="white")
    _add_board(drawing, pins)
    _add_supply(drawing, (-3, 12), "2 A slow", "470 µF 35 V")
    _add_estop(drawing, (12.0, 14.4), pins["estop"])
    driver = _add_driver(drawing, (13.0, 3.0), "DRV8874, PMODE = 3V3")
    for pin, signal in (("IN1", "in1"), ("IN2", "in2"), ("nSLEEP", "enable")):
        _add_lead(drawing, getattr(driver, pin), 0.6, f"GP{pins[signal]}", "left")
    _add_load(drawing, driver, elm.Motor(), "motor")
    _add_current_sense(drawing, driver, pins["current"])
    _add_encoder(drawing, pins)
    for i, signal in enumerate(("in1", "in2", "enable")):
        _add_pull_down(drawing, (-2.6 + 3.0 * i, -3.2), f"GP{pins[signal]}")
    return drawing


def draw_magman() -> schemdraw.Drawing:
    """Position sensor, four coil drivers (one drawn), e-stop."""
    pins = read_pins("magman")
    drawing = schemdraw.Drawing(show=False, fontsize=13, unit=2.4, bgcolor="white")
    _add_board(drawing, pins)
    _add_supply(drawing, (-3, 12), "4 A slow", "1000 µF 35 V")
    _add_estop(drawing, (12.0, 14.4), pins["estop"])
    coils = [pins[f"coil_{i}"] for i in (1, 2, 3, 4)]
    driver = _add_driver(drawing, (13.0, 3.0), "DRV8874, PMODE = 3V3\none per coil: 1 of 4")
    _add_lead(drawing, driver.IN1, 0.6, f"GP{coils[0]} to GP{coils[-1]}", "left")
    drawing.add(elm.Line().at(driver.IN2).left().length(0.6))
    drawing.add(elm.Ground())
    _add_lead(drawing, driver.nSLEEP, 1.4, f"GP{pins['enable']}", "left")
    _add_load(drawing, driver, elm.Inductor2(), "coil\n10 Ω")
    drawing.add(elm.Line().at(driver.VREF).down().length(0.5))
    drawing.add(elm.Tag().down().label("3V3", fontsize=SMALL_FONT_SIZE))
    drawing.add(elm.Line().at(driver.IPROPI).down().length(0.5))
    drawing.add(elm.Resistor().down().label("9.1 kΩ", "top"))
    drawing.add(elm.Ground())
    sensor = elm.Ic(
        pins=[
            elm.IcPin(name="out 0 to 3 V", side="left", anchorname="out"),
            elm.IcPin(name="supply", side="right", anchorname="V"),
            elm.IcPin(name="GND", side="right", anchorname="G"),
        ],
        edgepadW=2.2,
        edgepadH=0.5,
        pinspacing=1.0,
    )
    sensor = drawing.add(sensor.at((16.5, -4.6)).right().label("distance sensor", "top"))
    drawing.add(elm.Resistor().at(sensor.out).left().label("100 Ω"))
    drawing.add(elm.Dot())
    drawing.push()
    drawing.add(elm.Capacitor().down().label("100 nF", "bottom"))
    drawing.add(elm.Ground())
    drawing.pop()
    drawing.add(elm.Line().left().length(0.5))
    drawing.add(elm.Tag().left().label(f"GP{pins['position']}", fontsize=SMALL_FONT_SIZE))
    _add_lead(drawing, sensor.V, 0.6, "its own supply")
    drawing.add(elm.Line().at(sensor.G).right().length(0.6))
    drawing.add(elm.Ground())
    for i, pin in enumerate((*coils, pins["enable"])):
        _add_pull_down(drawing, (-2.6 + 2.4 * i, -3.2), f"GP{pin}")
    return drawing


def main() -> None:
    """Write both schematics."""
    for name, drawing in (("pendulum", draw_pendulum()), ("magman", draw_magman())):
        drawing.save(str(FOLDER / f"{name}.svg"))


if __name__ == "__main__":
    main()
