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

HERE: Final = Path(__file__).parent
RIGS: Final = HERE.parents[1] / "hw" / "firmware" / "rigs"
_PIN: Final = re.compile(r"^#define \w+?_PIN_(\w+) (\d+)$", re.MULTILINE)
SMALL: Final = 11.0


def pins_of(rig: str) -> dict[str, int]:
    """GPIO number of each signal of a rig's header, by name in lower case."""
    return {name.lower(): int(pin) for name, pin in _PIN.findall((RIGS / f"{rig}.h").read_text(encoding="utf-8"))}


def _pico(pins: dict[str, int]) -> elm.Ic:
    """The board: signals on the right, USB and supplies on the left."""
    signals = [elm.IcPin(name=f"GP{pin}", side="right", anchorname=name) for name, pin in reversed(pins.items())]
    left = [elm.IcPin(name=n, side="left", anchorname=n) for n in ("GND", "3V3", "VBUS", "USB")]
    ic = elm.Ic(pins=[*left, *signals], edgepadW=1.6, pinspacing=1.3)
    ic.right().label("Raspberry Pi Pico", "top")
    return ic


def _driver(d: schemdraw.Drawing, at: tuple[float, float], name: str) -> elm.Ic:
    """A DRV8874 in PWM mode (PMODE to 3V3)."""
    inputs = [elm.IcPin(name=n, side="left", anchorname=n) for n in ("nSLEEP", "IN2", "IN1")]
    outputs = [elm.IcPin(name=n, side="right", anchorname=n) for n in ("GND", "OUT2", "OUT1", "VM")]
    below = [elm.IcPin(name=n, side="bottom", anchorname=n, slot=at) for n, at in (("IPROPI", "1/3"), ("VREF", "3/3"))]
    ic = elm.Ic(pins=[*inputs, *outputs, *below], size=(5.4, 7.0), edgepadH=1.2, pinspacing=1.5)
    d.add(ic.at(at).right().label(name, "top"))
    return ic


def _load(d: schemdraw.Drawing, ic: elm.Ic, load: elm.Element2Term, name: str) -> None:
    """A driver's supply, and what it drives."""
    _to(d, ic.VM, 0.6, "VM")
    d.add(elm.Line().at(ic.GND).right().length(0.6))
    d.add(elm.Ground())
    d.add(elm.Line().at(ic.OUT1).right().length(2.2))
    d.add(load.down().toy(ic.OUT2).label(name, "bottom"))
    d.add(elm.Line().left().tox(ic.OUT2))


def _to(d: schemdraw.Drawing, start: Point, length: float, text: str, side: str = "right") -> None:
    """A short lead from a pin that ends in a net's name."""
    line, tag = elm.Line().at(start).length(length), elm.Tag(width=0.9 + 0.19 * len(text)).label(text, fontsize=SMALL)
    for element in (line, tag):
        d.add(element.right() if side == "right" else element.left())


def _supply(d: schemdraw.Drawing, at: tuple[float, float], fuse: str, bulk: str) -> None:
    """Bench supply, fuse, first contact of the e-stop, bulk capacitor: the net VM."""
    d.add(elm.SourceV().at(at).up().label("12 V\ncurrent\nlimited"))
    d.add(elm.Fuse().right().label(f"F1 {fuse}"))
    d.add(elm.Line().right().length(0.6))
    d.add(elm.Button(nc=True).right().label("e-stop\ncontact 1 (NC)"))
    d.add(elm.Dot())
    d.push()
    d.add(elm.Capacitor(polar=True).down().label(bulk, "bottom"))
    d.add(elm.Ground())
    d.pop()
    d.add(elm.Line().right().length(0.8))
    d.add(elm.Tag().right().label("VM", fontsize=SMALL))
    d.add(elm.Ground().at(at))


def _estop(d: schemdraw.Drawing, at: tuple[float, float], pin: int) -> None:
    """Second contact of the e-stop, closed to ground when released."""
    d.add(elm.Tag().at(at).left().label(f"GP{pin}", fontsize=SMALL))
    d.add(elm.Resistor().at(at).right().label("1 kΩ"))
    d.add(elm.Dot())
    d.push()
    d.add(elm.Capacitor().down().label("100 nF", "bottom"))
    d.add(elm.Ground())
    d.pop()
    d.add(elm.Button(nc=True).right().label("e-stop\ncontact 2 (NC)"))
    d.add(elm.Ground())


def _pull_down(d: schemdraw.Drawing, at: tuple[float, float], text: str) -> None:
    d.add(elm.Tag().at(at).left().label(text, fontsize=SMALL))
    d.add(elm.Line().at(at).right().length(0.5))
    d.add(elm.Resistor().down().label("10 kΩ"))
    d.add(elm.Ground())


def _board(d: schemdraw.Drawing, pins: dict[str, int]) -> None:
    pico = d.add(_pico(pins).at((0, 0)))
    for name, pin in pins.items():
        _to(d, getattr(pico, name), 0.6, f"GP{pin}  {name.replace('_', ' ')}")
    _to(d, pico.USB, 0.6, "USB to the computer", "left")
    _to(d, pico.VBUS, 0.6, "5 V", "left")
    _to(d, getattr(pico, "3V3"), 0.6, "3V3", "left")
    d.add(elm.Line().at(pico.GND).left().length(0.6))
    d.add(elm.Ground())


def pendulum() -> schemdraw.Drawing:
    """Encoder, H-bridge with current sense, motor, e-stop."""
    pins = pins_of("pendulum")
    d = schemdraw.Drawing(show=False, fontsize=13, unit=2.4, bgcolor="white")
    _board(d, pins)
    _supply(d, (-3, 12), "2 A slow", "470 µF 35 V")
    _estop(d, (12.0, 14.4), pins["estop"])
    ic = _driver(d, (13.0, 3.0), "DRV8874, PMODE = 3V3")
    for pin, signal in (("IN1", "in1"), ("IN2", "in2"), ("nSLEEP", "enable")):
        _to(d, getattr(ic, pin), 0.6, f"GP{pins[signal]}", "left")
    _load(d, ic, elm.Motor(), "motor")
    d.add(elm.Line().at(ic.VREF).down().length(0.5))
    d.add(elm.Dot())
    d.push()
    d.add(elm.Resistor().right().label("10 kΩ"))
    d.add(elm.Tag().right().label("3V3", fontsize=SMALL))
    d.pop()
    d.add(elm.Resistor().down().label("10 kΩ"))
    d.add(elm.Ground())
    d.add(elm.Line().at(ic.IPROPI).down().length(0.5))
    d.add(elm.Dot())
    d.push()
    d.add(elm.Resistor().left().label("1 kΩ"))
    d.add(elm.Dot())
    d.push()
    d.add(elm.Capacitor().down().label("1 µF", "bottom"))
    d.add(elm.Ground())
    d.pop()
    d.add(elm.Line().left().length(0.5))
    d.add(elm.Tag().left().label(f"GP{pins['current']}", fontsize=SMALL))
    d.pop()
    d.add(elm.Resistor().down().label("2.2 kΩ", "bottom"))
    d.add(elm.Ground())
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
    b = d.add(buffer.at((13.0, -4.6)).right().label("74LVC2G17 at 3V3", "top"))
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
    e = d.add(encoder.at((18.4, -4.6)).right().label("encoder, 4096 lines", "top"))
    _to(d, b.outA, 0.6, f"GP{pins['encoder_a']}", "left")
    _to(d, b.outB, 0.6, f"GP{pins['encoder_b']}", "left")
    for end, begin in (("A", "inA"), ("B", "inB")):
        d.add(elm.Line().at(getattr(b, begin)).to(getattr(e, end)))
    _to(d, e.V, 0.6, "5 V")
    d.add(elm.Line().at(e.G).right().length(0.6))
    d.add(elm.Ground())
    for i, signal in enumerate(("in1", "in2", "enable")):
        _pull_down(d, (-2.6 + 3.0 * i, -3.2), f"GP{pins[signal]}")
    return d


def magman() -> schemdraw.Drawing:
    """Position sensor, four coil drivers (one drawn), e-stop."""
    pins = pins_of("magman")
    d = schemdraw.Drawing(show=False, fontsize=13, unit=2.4, bgcolor="white")
    _board(d, pins)
    _supply(d, (-3, 12), "4 A slow", "1000 µF 35 V")
    _estop(d, (12.0, 14.4), pins["estop"])
    coils = [pins[f"coil_{i}"] for i in (1, 2, 3, 4)]
    ic = _driver(d, (13.0, 3.0), "DRV8874, PMODE = 3V3\none per coil: 1 of 4")
    _to(d, ic.IN1, 0.6, f"GP{coils[0]} to GP{coils[-1]}", "left")
    d.add(elm.Line().at(ic.IN2).left().length(0.6))
    d.add(elm.Ground())
    _to(d, ic.nSLEEP, 1.4, f"GP{pins['enable']}", "left")
    _load(d, ic, elm.Inductor2(), "coil\n10 Ω")
    d.add(elm.Line().at(ic.VREF).down().length(0.5))
    d.add(elm.Tag().down().label("3V3", fontsize=SMALL))
    d.add(elm.Line().at(ic.IPROPI).down().length(0.5))
    d.add(elm.Resistor().down().label("9.1 kΩ", "top"))
    d.add(elm.Ground())
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
    s = d.add(sensor.at((16.5, -4.6)).right().label("distance sensor", "top"))
    d.add(elm.Resistor().at(s.out).left().label("100 Ω"))
    d.add(elm.Dot())
    d.push()
    d.add(elm.Capacitor().down().label("100 nF", "bottom"))
    d.add(elm.Ground())
    d.pop()
    d.add(elm.Line().left().length(0.5))
    d.add(elm.Tag().left().label(f"GP{pins['position']}", fontsize=SMALL))
    _to(d, s.V, 0.6, "its own supply")
    d.add(elm.Line().at(s.G).right().length(0.6))
    d.add(elm.Ground())
    for i, pin in enumerate((*coils, pins["enable"])):
        _pull_down(d, (-2.6 + 2.4 * i, -3.2), f"GP{pin}")
    return d


def main() -> None:
    """Write both schematics."""
    for name, drawing in (("pendulum", pendulum()), ("magman", magman())):
        drawing.save(str(HERE / f"{name}.svg"))


if __name__ == "__main__":
    main()
