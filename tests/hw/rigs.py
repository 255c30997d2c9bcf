"""Rigs for the tests of this package."""

from onrig.hw.rig import Actuator, Observation, Rig, Sensor

PENDULUM = Rig(
    name="pendulum",
    sensors=(Sensor("angle", "rad", 3.8e-4, wrap=True), Sensor("velocity", "rad/s", 1e-3)),
    actuators=(Actuator("voltage", "V", 1e-4, -3.0, 3.0),),
    observations=(Observation("angle", "rad", -3.15, 3.15), Observation("velocity", "rad/s", -30.0, 30.0)),
)
