"""Policy inputs: all observations of a rig, or values composed of current and past observations and camera images.

Shared by the tick, trials and environments. The shield, the reward and resets always use the rig's observations, never
an image; records hold both the observations and the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isfinite
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import MAX_OBSERVATIONS, Camera, Observation, Rig, cameras_of, is_valid_name
from onrig.runtime import registry
from onrig.runtime.config.problem import collect_problems, describe_unknown_name
from onrig.runtime.config.registered import WithRegistered, build_registered
from onrig.runtime.images import ImageValues, image_signals
from onrig.runtime.input_transforms import AnyTransform, InputTransform, ScalarFunction

MAX_LAG: Final = 15


class PolicyInput(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One component of a policy's input."""

    observation: str
    """Name of an observation or camera of the rig; ``previous_NAME`` for an actuator's command in force, if the rig
    adds it."""
    form: AnyTransform = "value"
    """Transform of the observation: ``value``, ``cos`` or ``sin`` (for angles), or a mapping with the ``kind`` of any
    other transform."""
    lag: Annotated[int, msgspec.Meta(ge=0, le=MAX_LAG)] = 0
    """Age in device frames; an episode's first frame or image replaces earlier ones that do not exist."""

    def __post_init__(self) -> None:
        """Check the transform against the registry; raises ValueError."""
        if isinstance(self.form, str):
            transform = _transform_by_name(self.form)
            if registry.is_third_party(transform):  # record its settings, because their defaults may change
                msgspec.structs.force_setattr(self, "form", transform)
        else:
            super().__post_init__()

    @property
    def transform(self) -> InputTransform:
        """Transform with its settings."""
        return _transform_by_name(self.form) if isinstance(self.form, str) else self.form


def _transform_by_name(form: str) -> InputTransform:
    """Return a transform with default settings; raises ValueError in the format of msgspec's errors."""
    try:
        transform: InputTransform = build_registered(registry.INPUT_TRANSFORMS, {"kind": form}, "$.form")
    except ValueError as error:
        raise ValueError(str(error).replace("$.form.kind", "$.form")) from None
    return transform


Inputs = Sequence[PolicyInput] | msgspec.UnsetType


def policy_signals(inputs: Inputs, rig: Rig) -> tuple[Observation, ...]:
    """Return the signal of each component of the policy's input, in order; [low, high] maps to [-1, 1].

    Expects inputs for which :func:`input_problems` returns an empty list.
    """
    if inputs is msgspec.UNSET:
        return rig.signals
    signals: list[Observation] = []
    observation_by_name, camera_by_name = {o.name: o for o in rig.signals}, {c.name: c for c in cameras_of(rig)}
    for term in inputs:
        if term.observation in observation_by_name:
            signals.append(_input_signal(term, observation_by_name[term.observation]))
        elif term.observation in camera_by_name:
            values = image_signals(camera_by_name[term.observation])
            signals += [msgspec.structs.replace(s, name=_lagged_name(s, term)) for s in values]
    return tuple(signals)


def cameras_in_use(inputs: Inputs, rig: Rig) -> tuple[Camera, ...]:
    """Return the cameras whose images a policy receives, in the rig's order."""
    names = set() if inputs is msgspec.UNSET else {term.observation for term in inputs}
    return tuple(camera for camera in cameras_of(rig) if camera.name in names)


def _lagged_name(signal: Observation, term: PolicyInput) -> str:
    return f"{signal.name}-{term.lag}" if term.lag else signal.name


def _input_signal(term: PolicyInput, observation: Observation) -> Observation:
    try:
        signal = term.transform.signal(observation)
    except Exception:  # ``input_problems`` reports errors in third-party code
        signal = observation
    return msgspec.structs.replace(signal, name=_lagged_name(signal, term))


TransformGuard = Callable[[str, ScalarFunction], ScalarFunction]
"""Function that takes the name and the function of a third-party transform and returns the function wrapped in a
guard."""


class InputComposition:
    """Policy inputs composed of the rig's observations; `ImageComposition` adds images."""

    def __init__(self, inputs: Sequence[PolicyInput], rig: Rig, guard: TransformGuard | None = None) -> None:
        """``guard`` wraps third-party transforms."""
        index_of = {o.name: i for i, o in enumerate(rig.signals)}
        self._scalar_functions: Final = tuple(
            (term.lag, _compile_input(term, index_of[term.observation], rig, guard)) for term in inputs
        )
        self._batch_functions: Final = tuple(
            (term.lag, term.transform.build(index_of[term.observation], rig)) for term in inputs
        )
        self.history: Final = max(term.lag for term in inputs)
        """Number of previous observations needed."""

    def __call__(self, observations: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """Compose the inputs (k,) from observations (n,) in SI units, newest first.

        The oldest observation is repeated until ``history`` previous ones are available.
        """
        oldest = len(observations) - 1
        return tuple(
            [function(observations[lag if lag < oldest else oldest]) for lag, function in self._scalar_functions]
        )

    def batch(self, observations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compose a batch of inputs (..., k) from observations (r, ..., n), newest first; equal to single calls up to
        rounding."""
        oldest = len(observations) - 1
        return np.stack([function(observations[min(lag, oldest)]) for lag, function in self._batch_functions], axis=-1)


class ImageComposition:
    """Policy inputs composed of the rig's observations and camera images."""

    def __init__(self, inputs: Sequence[PolicyInput], rig: Rig, guard: TransformGuard | None = None) -> None:
        """``guard`` wraps third-party transforms."""
        self.cameras: Final = cameras_in_use(inputs, rig)
        camera_index = {camera.name: i for i, camera in enumerate(self.cameras)}
        composed_inputs = [term for term in inputs if term.observation not in camera_index]
        self._composition: Final = InputComposition(composed_inputs, rig, guard) if composed_inputs else None
        self._plan: Final = tuple((term.lag, camera_index.get(term.observation)) for term in inputs)
        """Lag and camera index of each input; the index is None for a value from ``_composition``."""
        self.history: Final = max(term.lag for term in inputs)
        """Number of previous observations and images needed."""

    def __call__(
        self, observations: Sequence[Sequence[float]], images: Sequence[Sequence[ImageValues]]
    ) -> tuple[float, ...]:
        """Compose the inputs (k,) from observations (n,) in SI units and the images of the ``cameras``, newest first.

        The oldest ones are repeated until ``history`` previous ones are available.
        """
        composed_values = iter(() if self._composition is None else self._composition(observations))
        oldest, values = len(images) - 1, list[float]()
        for lag, camera in self._plan:
            if camera is None:
                values.append(next(composed_values))
            else:
                values += images[min(lag, oldest)][camera]
        return tuple(values)


def image_columns(inputs: Inputs, rig: Rig) -> dict[Camera, slice]:
    """Return the columns of the newest image of each camera in use among the policy inputs, in the rig's order."""
    columns, camera_by_name, start = dict[str, slice](), {c.name: c for c in cameras_in_use(inputs, rig)}, 0
    for term in inputs if inputs is not msgspec.UNSET else ():
        camera = camera_by_name.get(term.observation)
        width = 1 if camera is None else camera.values
        if camera is not None and term.lag == 0:
            columns[camera.name] = slice(start, start + width)
        start += width
    return {camera: columns[name] for name, camera in camera_by_name.items()}


def _compile_input(term: PolicyInput, index: int, rig: Rig, guard: TransformGuard | None) -> ScalarFunction:
    function = term.transform.build_scalar(index, rig)
    if guard is None or not registry.is_third_party(term.transform):
        return function

    def checked_function(observation: Sequence[float]) -> float:
        value = function(observation)
        if not isfinite(value):
            raise ValueError(f"non-finite result {value} for the observation {tuple(observation)}")
        return value

    return guard(f"the input '{term.transform.signal(rig.signals[index]).name}'", checked_function)


def build_composition(inputs: Inputs, rig: Rig, guard: TransformGuard | None = None) -> InputComposition | None:
    """Return the composition of policy inputs without images; None if the inputs are simply the rig's observations."""
    return None if inputs is msgspec.UNSET else InputComposition(inputs, rig, guard)


def build_image_composition(inputs: Inputs, rig: Rig, guard: TransformGuard | None = None) -> ImageComposition | None:
    """Return the composition of policy inputs with images; None without images."""
    if inputs is msgspec.UNSET or not cameras_in_use(inputs, rig):
        return None
    return ImageComposition(inputs, rig, guard)


def input_problems(inputs: Inputs, rig: Rig) -> list[tuple[str, str]]:
    """List problems of a task's inputs on a rig as (path, message) pairs; empty if valid."""
    if inputs is msgspec.UNSET:
        return []
    if not 0 < len(inputs) <= MAX_OBSERVATIONS:
        return [("inputs", f"expected 1 to {MAX_OBSERVATIONS}, got {len(inputs)}; remove it to use all observations")]
    observation_by_name, camera_names = {o.name: o for o in rig.signals}, [c.name for c in cameras_of(rig)]
    problems = _camera_problems(inputs, rig)
    for i, term in enumerate(inputs):
        if term.observation in camera_names:
            continue
        if term.observation not in observation_by_name:
            message = describe_unknown_name(
                f"rig '{rig.name}'", "observation", term.observation, [*observation_by_name, *camera_names]
            )
            problems.append((f"inputs[{i}].observation", message))
            continue
        location = f"inputs[{i}].form"
        transform, observation = term.transform, observation_by_name[term.observation]
        transform_problems = collect_problems(partial(_transform_problems, transform, observation), "the input")
        problems += [(f"{location}.{path}" if path else location, message) for path, message in transform_problems]
        if not transform_problems and term in inputs[:i]:
            problems.append((f"inputs[{i}]", "is a duplicate"))
    counts = Counter(s.name for s in policy_signals(inputs, rig))  # an image has thousands of signals
    if not problems and (duplicate := next((name for name, count in counts.items() if count > 1), None)):
        problems.append(("inputs", f"the name '{duplicate}' is used twice: remove one"))
    return problems


def _camera_problems(inputs: Sequence[PolicyInput], rig: Rig) -> list[tuple[str, str]]:
    problems = []
    for camera in cameras_in_use(inputs, rig):
        terms = [(i, term) for i, term in enumerate(inputs) if term.observation == camera.name]
        for i, term in terms:
            if term.form != "value":
                problems.append((f"inputs[{i}].form", f"'{camera.name}' is a camera, whose images are not transformed"))
            elif term in inputs[:i]:
                problems.append((f"inputs[{i}]", "is a duplicate"))
        if all(term.lag for _, term in terms):
            problems.append(
                (f"inputs[{terms[0][0]}].lag", f"the newest image of '{camera.name}' is missing: add lag 0")
            )
    return problems


def _transform_problems(transform: InputTransform, observation: Observation) -> Iterator[tuple[str, str]]:
    yield from transform.problems(observation)
    signal = transform.signal(observation)
    if not is_valid_name(signal.name):
        yield "", f"expected a plain word as the name of its result, got {signal.name!r}"
