"""The twin: a simulated plant beneath the protocol layer of a device, in device time, without clock or I/O.

The shell around it (``onrig.sim.twin.main``) owns the connection and the pacing.  The rules are those of
``onrig.hw.device`` and the *lockstep rule* (docs/architecture.md).
"""

from __future__ import annotations

import math

import msgspec

from onrig.hw.device.output import Counts
from onrig.hw.device.protocol import Offer, ProtocolDevice
from onrig.hw.rig import Rig
from onrig.runtime.starts import Starts, are_starts_random, draw_start, start_list
from onrig.sim.plants.integrate import SCALAR, advance, apply_backlash
from onrig.sim.plants.trial import PlantFailure
from onrig.sim.twin.channels import DelayLine, Sensing
from onrig.sim.twin.options import TwinOptions, draw_options, twin_problems
from onrig.sim.twin.rendering import TwinCameras


class TwinDevice(ProtocolDevice):
    """One simulated device.

    ``start`` is the plant's state at power-on and after each reset, by name (SI units); if it is an interval or a list,
    the state is drawn with the reset's seed.  ``time_scale`` is announced in the hello; 0 means lockstep: a command
    then acts for the complete period, whatever its offset.  Raises ValueError if plant, rig and start do not match.
    """

    def __init__(self, rig: Rig, options: TwinOptions, start: Starts, *, time_scale: float = 1.0) -> None:
        problems = [problem for row in start_list(start) for problem in twin_problems(options, rig, row)]
        if problems:
            raise ValueError("; ".join(f"{path}: {message}" for path, message in problems))
        self._configured_options = options
        self._apply_options(options, rig)
        self.are_sensors_stuck = False
        """Whether the sensors repeat their last reading (injected fault)."""
        self.are_sensors_dead = False
        """Whether no sensor can be read (injected fault)."""
        self._starts = start
        self._start_state = self._draw_start(0)
        self._resolutions = tuple(a.resolution for a in rig.actuators)
        self.plant_state = self._start_state
        """State of the plant at the last sample, without noise (SI units)."""
        offer = Offer(
            options.boot_id, options.period_min_us, options.period_max_us, options.lease_max, options.reset, time_scale
        )
        super().__init__(rig, offer, options.latency_us)
        self._backlash_output: tuple[float, ...] = ()
        """Action after the plant's backlash."""
        self._reset_actuators()

    def _apply_options(self, options: TwinOptions, rig: Rig) -> None:
        self.options: TwinOptions = options
        """Options of this episode."""
        self._sensing = Sensing(rig, options)
        self._released_plant = options.plant.released()

    def _draw_start(self, seed: int) -> tuple[float, ...]:
        start = draw_start(self._starts, seed)
        return tuple(float(start[name]) for name in self.options.plant.state_names)

    def _boot(self) -> None:
        super()._boot()
        self._last_reading: Counts | None = None

    def sample(self) -> bytes:
        """Sample like ``ProtocolDevice.sample``; also raises PlantFailure."""
        return super().sample()

    def show(self, cameras: TwinCameras, t_mono_ns: int) -> None:
        """Show the plant at the last sample to the cameras.  Raises PlantFailure."""
        try:
            cameras.publish(self.options.plant, self.plant_state, t_mono_ns)
        except Exception as error:
            raise PlantFailure(self.options.plant, error) from error

    def _measure(self, *, first: bool) -> Counts | None:
        if first:
            self.plant_state = self._start_state
        else:
            self._move_plant(self.period_us)
            try:
                self.plant_state = self.options.plant.constrain(SCALAR, self.plant_state)
            except Exception as error:
                raise PlantFailure(self.options.plant, error) from error
        sensors = None if self.are_sensors_dead else self._sensing.read(self.plant_state)
        if self.are_sensors_stuck and self._last_reading is not None:
            sensors = self._last_reading
        self._last_reading = sensors
        return sensors

    def _cut_period(self, offset_us: int) -> None:
        self._move_plant(offset_us)

    def _reset_plant(self, seed: int) -> None:
        if self._configured_options.samples is not msgspec.UNSET:
            self._apply_options(draw_options(self._configured_options, seed), self.rig)
        self._sensing.reseed(seed)
        if are_starts_random(self._starts):
            self._start_state = self._draw_start(seed)
        self._reset_actuators()

    def _actual_period_us(self, period_us: int) -> int:
        rate_factor = 1.0 if self.options.faults.rate is msgspec.UNSET else self.options.faults.rate
        return max(round(period_us / rate_factor), 1)

    def _move_plant(self, until_us: int) -> None:
        offsets = self._sensing.actuator_offsets()
        pieces = self._output.intervals(until_us)
        for duration_us, counts in pieces if self._delay is None else self._delay.shift(pieces):
            if counts is None:
                plant, action = self._released_plant, (0.0,) * len(offsets)
            else:
                plant = self.options.plant
                action = tuple([c * r + o for c, r, o in zip(counts, self._resolutions, offsets, strict=True)])
                if plant.backlash is not msgspec.UNSET:
                    action = self._backlash_output = apply_backlash(
                        SCALAR, plant.backlash, self._backlash_output, action
                    )
            substeps = math.ceil(self.options.substeps * duration_us / self.period_us)
            try:
                self.plant_state = advance(plant, self.plant_state, action, duration_us * 1e-6, substeps)
            except OverflowError:
                # The plant is too stiff for the step and has diverged, which is reported as a sensor fault.
                self.plant_state = (math.nan,) * len(self.plant_state)
            except Exception as error:
                raise PlantFailure(plant, error) from error

    def _reset_actuators(self) -> None:
        """Initialise the plant's delay and backlash to their state after a long time under the safe output."""
        delay_us = round((self.options.plant.delay_s or 0.0) * 1e6)
        self._delay = DelayLine(delay_us, self._output.safe) if delay_us else None
        pairs = zip(self._output.safe, self._resolutions, strict=True)
        self._backlash_output = tuple([count * resolution for count, resolution in pairs])
