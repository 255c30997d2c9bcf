"""Base class for the description of an algorithm: its settings, requirements, checks and memory use.

The description is also the type of the algorithm's configuration section.  It is registered under the algorithm's name
(``onrig.runtime.registry``); the module that implements the algorithm is imported only to build it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import msgspec

from onrig.hw.rig import values_per_image
from onrig.runtime import registry
from onrig.runtime.run_config import RunConfig

Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
LogStd = Annotated[float, msgspec.Meta(ge=-20.0, le=20.0)]
Hidden = Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=4096)], ...], msgspec.Meta(min_length=1, max_length=8)]
"""Number of units in each hidden layer."""
Side = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class Convolution(NamedTuple):
    """Convolutional layer of relu units, without padding."""

    channels: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    side: Side
    """Number of rows and columns of a filter."""
    stride: Side


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Image observations, and the convolutional layers that process them."""

    size: tuple[Side, Side]
    """Rows and columns of a frame."""
    frames: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4
    """Number of successive frames in an observation."""
    convolutions: Annotated[tuple[Convolution, ...], msgspec.Meta(max_length=8)] = ()
    """Channels, filter size and stride of each convolutional layer; the fully connected layers follow."""

    @property
    def packed_values(self) -> int:
        """Number of observations that the pixels of all frames take up on a rig."""
        return self.frames * values_per_image(math.prod(self.size))

    def problems(self) -> Iterator[tuple[str, str]]:
        """List filters that are larger than their inputs, as (path in the section, message)."""
        rows, columns = self.size
        for i, layer in enumerate(self.convolutions):
            if layer.side > min(rows, columns):
                yield f"convolutions.{i}", f"a filter of {layer.side} pixels exceeds its inputs of {rows} by {columns}"
                return
            rows, columns = ((size - layer.side) // layer.stride + 1 for size in (rows, columns))


class AlgorithmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of an algorithm; a subclass adds the settings as fields."""

    home: ClassVar[str]
    """Module and class of the algorithm, for example ``onrig.learner.algorithms.sac:Sac``."""
    on_rig: ClassVar[bool] = True
    """Whether a rig can run the algorithm's policies; trials on simulated plants can run every algorithm's policies."""
    stochastic: ClassVar[bool] = False
    """Whether policies are stochastic, so that they explore without added noise."""
    noisy_weights: ClassVar[bool] = False
    """Whether trials explore with noise in the network weights; a rig acts without this noise."""
    single_action: ClassVar[bool] = False
    """Whether the algorithm supports only one action dimension."""

    @property
    def successors(self) -> int:
        """Number of consecutive experiences used in an update, starting with the drawn one."""
        return 1

    @property
    def window(self) -> int:
        """Number of consecutive steps, ending with the drawn experience, that an update learns from; 1 for policies
        without memory."""
        return 1

    home_under_refer: ClassVar[str] = ""
    """Module and class of the algorithm's variant with ReF-ER; empty if it has none."""
    limits_policy_steps: ClassVar[bool] = False
    """Whether the algorithm itself limits the size of policy updates; ReF-ER then requires ``rules: none``."""
    needs_episodes: ClassVar[bool] = False
    """Whether the algorithm learns from sequences of experiences along stored episodes."""
    bit_identical_trials: ClassVar[bool] = True
    """Whether a trial gives bit-identical results when it runs alone and when it runs with other trials; if not,
    ``onrig check`` accepts a relative difference of 1e-3."""
    provides_targets: ClassVar[bool] = False
    """Whether the ``Signals`` of updates contain targets, which some samplers require."""

    @property
    def note_bytes(self) -> float:
        """Number of bytes that the algorithm's notes take per experience, excluding ReF-ER's notes
        (``ReferSettings``)."""
        return 0.0

    @property
    def needs_links(self) -> bool:
        """Whether the algorithm needs the successor of each experience."""
        return self.needs_episodes or self.successors > 1 or self.window > 1

    @property
    def batch_steps(self) -> int:
        """Number of experiences in an on-policy algorithm's batch, collected under one policy; 0 if off-policy."""
        return 0

    @property
    def parallel(self) -> int:
        """Number of parallel actors in a trial."""
        return 1

    @property
    def replays(self) -> int:
        """Mean number of updates in which an on-policy algorithm uses an experience."""
        return 1

    def home_of(self, *, with_refer: bool) -> str:
        """Return the module and class for these settings, with or without ReF-ER."""
        return self.home_under_refer if with_refer else self.home

    def problems(self) -> Iterator[tuple[str, str]]:
        """List contradictory settings, as (path in the section, message)."""
        return iter(())

    def rig_problems(self) -> Iterator[tuple[str, str]]:
        """List settings that have no effect on a rig, as (path in the section, message)."""
        return iter(())

    def run_problems(self, name: str, run: RunConfig, capacity: int) -> Iterator[tuple[str, str]]:
        """List the settings of a run on a rig that prevent the algorithm ``name`` from learning, as
        (path in the run, message).

        ``capacity``: number of experiences that the memory holds; 0 if the configured capacity is invalid.
        """
        return iter(())

    if TYPE_CHECKING:  # fields of every section; each section declares them in its own order
        batch: int
        gamma: float
        reward_scale: float
        """Factor applied to every reward before learning; 1e-3 for the pendulum, 0.1 for Magman."""

    @property
    def image(self) -> Image | None:
        """Format of image observations; None for vectors, and for algorithms that have no ``images`` setting."""
        images = getattr(self, "images", None)
        return images if isinstance(images, Image) else None

    @property
    def supports_images(self) -> bool:
        """Whether the algorithm has an ``images`` setting."""
        return "images" in self.__struct_fields__

    @property
    def size(self) -> str:
        """Size of the networks: a name (``network``), or units such as ``256-256`` (``hidden``)."""
        return getattr(self, "network", None) or "-".join(map(str, getattr(self, "hidden", ())))


def algorithm_names() -> tuple[str, ...]:
    """Return the names of all algorithms."""
    return registry.names(registry.ALGORITHMS)


def default_section(name: str) -> AlgorithmConfig:
    """Return an algorithm's section with its default settings; raise KeyError for an unknown name."""
    section: Callable[[], AlgorithmConfig] = registry.load(registry.ALGORITHMS, name)
    return section()


def format_algorithm_names(condition: Callable[[AlgorithmConfig], bool]) -> str:
    """Return the names of the algorithms whose sections satisfy a condition, separated by commas for use in a
    message."""
    sections: dict[str, Callable[[], AlgorithmConfig]] = registry.load_available(registry.ALGORITHMS)
    return ", ".join(name for name, section in sections.items() if condition(section()))
