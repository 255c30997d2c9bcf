"""Observations computed from sensor counts (SI units, wrapped angles, estimated velocities), and the policy inputs
derived from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi
from typing import Final

from onrig.hw.intake import frames_between
from onrig.hw.messages import State
from onrig.hw.rig import Rig, targets_of
from onrig.runtime.images import ImageValues
from onrig.runtime.inputs import TransformGuard, build_composition, build_image_composition
from onrig.runtime.record import Kind
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.images import BlankImages, ImageSource
from onrig.runtime.tracking import EpisodeTargets

CountsToSi = Callable[[Sequence[int]], tuple[float, ...]]
_TWO_PI: Final = 2 * pi


def wrap_angle(angle: float) -> float:
    """Wrap an angle in rad into [-pi, pi)."""
    return (angle + pi) % _TWO_PI - pi


class _Derivative:
    """Difference quotient of one sensor through a first-order low-pass."""

    def __init__(self, sensor: int, wrap: bool, period_s: float, cutoff_hz: float) -> None:
        self.sensor, self.wrap, self.period_s = sensor, wrap, period_s
        # Exact discretisation for an input that is constant over each period; a gain of 1 means no filtering.
        self.gain = 1.0 if cutoff_hz <= 0 else 1.0 - 2.718281828459045 ** (-_TWO_PI * cutoff_hz * period_s)
        self.reset()

    def reset(self) -> None:
        self.previous_reading: float | None = None
        self.value = 0.0

    def update(self, reading: float, periods: int) -> float:
        if self.previous_reading is not None:
            change = reading - self.previous_reading
            if self.wrap:
                change = wrap_angle(change)
            quotient = change / (self.period_s * periods)
            # After lost frames, the filter must advance by more than one period.
            gain = self.gain if periods == 1 else 1.0 - (1.0 - self.gain) ** periods
            self.value += gain * (quotient - self.value)
        self.previous_reading = reading
        return self.value


class Observer:
    """Deterministic conversion of the sensor counts of consecutive frames to observations."""

    def __init__(self, rig: Rig, period_s: float) -> None:
        index = {s.name: i for i, s in enumerate(rig.sensors)}
        self._scales = tuple((s.resolution, s.wrap) for s in rig.sensors)
        self._direct_indices: list[int] = []
        self._derivatives: list[_Derivative | None] = []
        for o in rig.observations:
            source = index[o.derivative_of or o.sensor or o.name]
            self._direct_indices.append(source)
            wrap = rig.sensors[source].wrap
            self._derivatives.append(
                _Derivative(source, wrap, period_s, o.cutoff_hz) if o.derivative_of is not None else None
            )
        self._sources = tuple(zip(self._direct_indices, self._derivatives, strict=True))
        self._has_no_derivatives = not any(self._derivatives)

    def reset(self) -> None:
        """Discard past samples at the start of an episode: estimated velocities start at 0."""
        for d in self._derivatives:
            if d is not None:
                d.reset()

    def observe(self, counts: Sequence[int], periods: int = 1) -> tuple[float, ...]:
        """Return the observation (n,), in SI units, for one frame.

        ``periods``: number of periods since the previously observed frame.
        """
        readings = []
        for count, (resolution, wrap) in zip(counts, self._scales, strict=True):
            reading = count * resolution
            readings.append((reading + pi) % _TWO_PI - pi if wrap else reading)
        if self._has_no_derivatives:
            return tuple([readings[i] for i in self._direct_indices])
        values = []
        for source, derivative in self._sources:
            reading = readings[source]
            values.append(reading if derivative is None else derivative.update(reading, periods))
        return tuple(values)


class ExtraSignals:
    """Signals appended to the rig's observations: the command in force, if configured, and the task's targets."""

    def __init__(self, config: RunConfig, steps: int, to_si: CountsToSi) -> None:
        """``steps``: number of steps per episode; ``to_si``: conversion of actuator counts to SI units."""
        rig = config.rig
        self._targets: Final = EpisodeTargets(config.task, rig, config.period_us, steps)
        self._seed, self._episode_offset = config.seed, 0
        self._to_si = to_si if rig.previous_command else None
        self.begin(Kind.RESET, 0)

    def set_seed(self, seed: int, episode_offset: int) -> None:
        """Draw targets with this seed from now on, counting episode ``episode_offset`` + 1 as the first."""
        self._seed, self._episode_offset = seed, episode_offset

    def prepare(self, kind: Kind, episode: int) -> None:
        """Draw the targets of an episode in advance, so that ``begin`` takes no time."""
        self._targets.values_for_kind(self._seed, kind, episode - self._episode_offset)

    def begin(self, kind: Kind, episode: int) -> None:
        """Start an episode."""
        self._target_values = self._targets.values_for_kind(self._seed, kind, episode - self._episode_offset)
        self._sample: int | None = None

    def next(self, in_force: Sequence[int], periods: int) -> tuple[float, ...]:
        """Return the values (k,), in SI units, ``periods`` after the previous sample.

        ``in_force``: command in force, in counts.
        """
        if self._target_values.shape[1] == 0:  # without targets
            return self._to_si(in_force) if self._to_si is not None else ()
        self._sample = 0 if self._sample is None else self._sample + max(periods, 1)
        targets = self._target_values[min(self._sample, len(self._target_values) - 1)].tolist()
        return tuple(targets) if self._to_si is None else (*self._to_si(in_force), *targets)


def make_extra_signals(config: RunConfig, steps: int, to_si: CountsToSi) -> ExtraSignals | None:
    """Return the signals that a run appends; None if it appends none, so that no tick spends time on them."""
    has_extra_signals = config.rig.previous_command or targets_of(config.rig)
    return ExtraSignals(config, steps, to_si) if has_extra_signals else None


class EpisodeObserver:
    """Observation and policy input of each frame of an episode, in order."""

    def __init__(
        self,
        config: RunConfig,
        steps: int,
        to_si: CountsToSi,
        guard: TransformGuard,
        images: ImageSource | None = None,
    ) -> None:
        """``steps``: number of steps per episode; ``to_si``: conversion of actuator counts to SI units; ``guard``:
        wrapper for third-party transforms; ``images``: source of the camera images, black by default."""
        self._sensors: Final = Observer(config.rig, config.period_us * 1e-6)
        self._extra_signals: Final = make_extra_signals(config, steps, to_si)
        inputs, rig = config.task.inputs, config.rig
        self._image_composition: Final = build_image_composition(inputs, rig, guard)
        self._composition: Final = None if self._image_composition else build_composition(inputs, rig, guard)
        self._images: Final = images or BlankImages(config.cameras)
        self.begin(Kind.RESET, 0)

    def set_seed(self, seed: int, episode_offset: int) -> None:
        """Draw targets with this seed from now on, counting episode ``episode_offset`` + 1 as the first."""
        if self._extra_signals is not None:
            self._extra_signals.set_seed(seed, episode_offset)

    def prepare(self, kind: Kind, episode: int) -> None:
        """Draw the targets of an episode in advance, so that ``begin`` takes no time."""
        if self._extra_signals is not None:
            self._extra_signals.prepare(kind, episode)

    def begin(self, kind: Kind, episode: int) -> None:
        """Start an episode."""
        self._sensors.reset()
        if self._extra_signals is not None:
            self._extra_signals.begin(kind, episode)
        self._recent_observations: list[tuple[float, ...]] = []
        self._recent_images: list[tuple[ImageValues, ...]] = []
        self.last_frame = 0
        """Number of the latest frame; 0 before the first."""
        self.input: tuple[float, ...] = ()
        """Policy input (k,) at the latest frame, in SI units; () if the input is the observation itself."""

    def observe(self, state: State) -> tuple[float, ...]:
        """Return the observation (n,), in SI units, for the next frame."""
        periods = frames_between(state.frame, self.last_frame) if self.last_frame else 1
        self.last_frame = state.frame
        observation = self._sensors.observe(state.sensors, max(periods, 1))
        if self._extra_signals is not None:
            observation = (*observation, *self._extra_signals.next(state.u_end, periods))
        if self._composition is not None:
            self._recent_observations = [observation, *self._recent_observations[: self._composition.history]]
            self.input = self._composition(self._recent_observations)
        elif self._image_composition is not None:
            n_previous = self._image_composition.history
            self._recent_observations = [observation, *self._recent_observations[:n_previous]]
            self._recent_images = [self._images.read(), *self._recent_images[:n_previous]]
            self.input = self._image_composition(self._recent_observations, self._recent_images)
        return observation

    @property
    def image_failure(self) -> str:
        """Reason the images of the latest frame must not be used; empty if they may be."""
        return self._images.failure
