"""Recordings of twins under given commands, in device time and without a session."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onrig.hw import messages as m
from onrig.hw.messages import Op
from onrig.hw.rig import Actuator, Observation, Rig, Sensor
from onrig.sim.identification.recording import Stretch
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions
from tests.sim.twin.bench import PERIOD_US, RIG

PERIOD_S = PERIOD_US * 1e-6
LINE = Rig(
    name="line",
    sensors=(
        Sensor(name="position", unit="m", resolution=1e-5),
        Sensor(name="velocity", unit="m/s", resolution=1e-4),
    ),
    actuators=(Actuator(name="voltage", unit="V", resolution=1e-3, low=-5.0, high=5.0),),
    observations=(
        Observation(name="position", unit="m", low=-0.5, high=0.5),
        Observation(name="velocity", unit="m/s", low=-2.0, high=2.0),
    ),
)

Commands = Callable[[int], tuple[float, ...]]


def chirped(share: float = 1.0, reach: float = 3.0) -> Commands:
    """A sine of rising frequency."""
    return lambda k: (share * reach * float(np.sin(2e-3 * k * (k * PERIOD_S))),)


def record(
    options: TwinOptions, periods: int, commands: Commands, rig: Rig = RIG, late_us: int | None = None
) -> Stretch:
    """Drive a twin; with ``late_us`` each command arrives that late in its period, otherwise at once (lockstep)."""
    start = dict.fromkeys(options.plant.state_names, 0.0)
    device = TwinDevice(rig, options, start, time_scale=0.0 if late_us is None else 1.0)
    states, layout = m.StateLayout(len(rig.sensors), len(rig.actuators)), m.CommandLayout(len(rig.actuators))
    for i, (op, payload) in enumerate(((Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(PERIOD_US, 5)), (Op.ARM, b"")), 1):
        device.handle(m.encode_request(m.Request(i, op, payload)))
    frames = []
    for k in range(periods + 1):
        frames.append(states.decode(device.sample()))
        counts = tuple(round(c / a.resolution) for c, a in zip(commands(k), rig.actuators, strict=True))
        device.handle(layout.encode(device.frame, counts), late_us or 0)
    return _stretch(frames, rig)


def _stretch(frames: list[m.State], rig: Rig) -> Stretch:
    resolutions = np.array([a.resolution for a in rig.actuators])
    readings = np.array([f.sensors for f in frames], np.float64) * [s.resolution for s in rig.sensors]
    for i, sensor in enumerate(rig.sensors):
        if sensor.wrap:
            readings[:, i] = np.unwrap(readings[:, i])

    def put_out(field: str) -> Array:
        return np.asarray(np.array([getattr(f, field) for f in frames[1:]], np.float64) * resolutions)

    tau_s = np.array([f.tau_us for f in frames[1:]], np.float64) * 1e-6
    return Stretch(PERIOD_S, readings, put_out("u_start"), put_out("u_end"), tau_s)
