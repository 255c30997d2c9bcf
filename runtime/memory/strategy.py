"""Strategies, written ``RETENTION[SAMPLING]`` as in de Bruin et al. 2018, such as ``Expl(1.0)[PER]``: notation,
keepers, memory use.

Both parts are registered under their names in the notation (``onrig.runtime.registry``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime import registry
from onrig.runtime.config.problem import hint
from onrig.runtime.memory.keepers.by_chance import ThinnedKeeper
from onrig.runtime.memory.keepers.keeper import Keeper, Parameter, Signal
from onrig.runtime.memory.keepers.reserved import ReservedKeeper
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.order.uniforms import UNIFORMS_BYTES
from onrig.runtime.memory.storage import N_RECENT_WRITES, NUMBER_BYTES, max_transitions


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a sampler of minibatches; a subclass adds its options as fields.

    It is registered under its name in the notation (``onrig.runtime.registry``).  Only the learner draws; a rig
    merely reads the notation.
    """

    home: ClassVar[str]
    """Module and class of the sampler, as in ``onrig.learner.samplers.uniform:Uniform``."""
    trials_home: ClassVar[str] = ""
    """Module and function that build it for many trials at once, if that is much faster than building one per trial."""
    section: ClassVar[str] = ""
    """Name of its options in the ``learner`` section; empty if it has none there."""
    corrections: ClassVar[tuple[str, ...]] = ()
    """Suffixes allowed after a plus sign: IS, FIS (importance sampling, full importance sampling; §3.3.2, §7.2)."""
    parameter: ClassVar[Parameter | None] = None
    """The number in parentheses after its name; None if it takes none."""
    required_signals: ClassVar[frozenset[Signal]] = frozenset()
    """Signals required of the learner's algorithm in addition to the TD error."""
    bytes_per_slot: ClassVar[float] = 0.0
    """Maximum bytes that the learner needs for it per experience, apart from a fixed overhead."""
    contains_sampling: ClassVar[bool] = False
    """Whether it contains another sampling, in brackets after its name."""
    can_be_contained: ClassVar[bool] = True
    """Whether another sampling can contain it: its draws can have any size, and do not depend on the policy."""
    keeps_seeds: ClassVar[bool] = False
    """Whether the experiences that a run begins with (``selection.seed_from``) are never overwritten."""


def keeper_class(name: str) -> type[Keeper]:
    """Return the class of a retention's keeper; raises KeyError if the name is unknown, ValueError if it is broken."""
    keeper: type[Keeper] = registry.load(registry.RETENTIONS, name)
    if getattr(keeper, "name", None) != name:
        raise ValueError(f"the retention registered as '{name}' has the name {getattr(keeper, 'name', None)!r}")
    return keeper


def sampling_class(name: str) -> type[Sampling]:
    """Return a sampling's description, given its name without number or correction; raises KeyError if unknown."""
    sampling: type[Sampling] = registry.load(registry.SAMPLERS, name)
    return sampling


CORRECTION_BYTES: Final = {"": 0.0, "IS": 0.0, "FIS": 8.0}
"""Bytes per experience that a correction needs, by its suffix."""


class SamplingParts(NamedTuple):
    """Parts of a sampling strategy."""

    name: str
    """Name under which it is registered."""
    correction: str = ""
    argument: float | None = None
    contained: str = ""
    """Inner sampling; empty for most."""

    @property
    def nested(self) -> Iterator[SamplingParts]:
        """This sampling, and all samplings nested in it."""
        yield self
        if self.contained:
            yield from parse_sampling(self.contained).nested

    @property
    def bytes_per_slot(self) -> float:
        """Maximum bytes that the learner needs for it per experience."""
        return sum(sampling_class(p.name).bytes_per_slot + CORRECTION_BYTES[p.correction] for p in self.nested)

    def __str__(self) -> str:
        parameter = sampling_class(self.name).parameter
        argument = "" if parameter is None or self.argument is None else f"({parameter.format_value(self.argument)})"
        contained = f"[{self.contained}]" if self.contained else ""
        return f"{self.name}{argument}{self.correction and '+'}{self.correction}{contained}"


def sampling_names() -> tuple[str, ...]:
    """Return all samplings in the notation, with an example of a number for those that take one."""
    samplings: dict[str, type[Sampling]] = registry.load_available(registry.SAMPLERS)
    return tuple(
        str(
            SamplingParts(
                name,
                correction,
                sampling.parameter and sampling.parameter.example,
                "Uniform" if sampling.contains_sampling else "",
            )
        )
        for name, sampling in samplings.items()
        for correction in ("", *sampling.corrections)
    )


_SAMPLING: Final = re.compile(r"([A-Za-z]+)\s*(?:\(\s*([^()]*?)\s*\))?(?:\+([A-Za-z]+))?\s*(?:\[\s*([^\[\]]*?)\s*\])?")
_NOTATION: Final = re.compile(
    r"\s*([A-Za-z]+)\s*(?:\(\s*([^()\[\]]*?)\s*\))?\s*\[\s*([^\[\]]*?(?:\[[^\[\]]*\])?)\s*\]\s*"
)


class Strategy(msgspec.Struct, frozen=True):
    """A retention strategy and a sampling strategy."""

    retention: str
    sampling: str
    alpha: float | None = None
    """The retention's parameter; None if it has none."""

    def __str__(self) -> str:
        alpha = "" if self.alpha is None else f"({self.alpha!r})"
        return f"{self.retention}{alpha}[{self.sampling}]"

    @property
    def keeps_seeds(self) -> bool:
        """Whether the experiences that a run begins with are never overwritten."""
        return sampling_class(parse_sampling(self.sampling).name).keeps_seeds

    @property
    def keeper(self) -> type[Keeper]:
        """Class of the keeper; raises ValueError if the retention is unknown."""
        is_known = self.retention in registry.names(registry.RETENTIONS)
        keeper = keeper_class(self.retention) if is_known else None
        if keeper is None or (keeper.parameter is None) != (self.alpha is None):
            raise ValueError(f"unknown retention '{self.retention}' with exponent {self.alpha}")
        return keeper


def parse_strategy(text: str) -> Strategy:
    """Parse ``RETENTION[SAMPLING]``; raises ValueError with the reason and the known names."""
    match = _NOTATION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not of the form RETENTION[SAMPLING], such as FIFO[Uniform]; {_known_names()}")
    retention, number, sampling = match.groups()
    if retention not in registry.names(registry.RETENTIONS):
        suggestion = hint(retention, registry.names(registry.RETENTIONS))
        raise ValueError(f"unknown retention '{retention}'{suggestion}; {_known_names()}")
    sampling_parts = parse_sampling(sampling)
    parameter = keeper_class(retention).parameter
    if parameter is not None:
        return Strategy(retention, str(sampling_parts), parameter.value(retention, number))
    if number is not None:
        raise ValueError(f"{retention} takes no exponent, got '({number})'")
    return Strategy(retention, str(sampling_parts))


def parse_sampling(sampling: str) -> SamplingParts:
    """Split a sampling into its parts; raises ValueError with the reason and the known names."""
    match = _SAMPLING.fullmatch(sampling)
    name, number, correction, contained = match.groups() if match else (sampling, None, None, None)
    sampling_type = sampling_class(name) if name in registry.names(registry.SAMPLERS) else None
    if sampling_type is None or (correction is not None and correction not in sampling_type.corrections):
        raise ValueError(f"unknown sampling '{sampling}'{hint(sampling, sampling_names())}; {_known_names()}")
    value = None
    if sampling_type.parameter is not None:
        value = sampling_type.parameter.value(name, number)
    elif number is not None:
        raise ValueError(f"{name} takes no number, got '({number})'")
    return SamplingParts(name, correction or "", value, _parse_contained(name, sampling_type, contained))


def _parse_contained(name: str, sampling_type: type[Sampling], text: str | None) -> str:
    """Return the inner sampling; raises ValueError."""
    if not sampling_type.contains_sampling:
        if text is not None:
            raise ValueError(f"{name} takes no inner sampling, got '[{text}]'")
        return ""
    if text is None:
        raise ValueError(f"{name} needs an inner sampling in brackets, such as {name}(0.5)[Uniform]")
    parts = parse_sampling(text)
    if not sampling_class(parts.name).can_be_contained:
        raise ValueError(
            f"{name} cannot contain {parts.name}, which only draws complete minibatches: use another sampling"
        )
    return str(parts)


def _known_names() -> str:
    keepers: dict[str, type[Keeper]] = registry.load_available(registry.RETENTIONS)
    retentions = [name if k.parameter is None else f"{name}({k.parameter.symbol})" for name, k in keepers.items()]
    return f"known retentions: {', '.join(retentions)}; known samplings: {', '.join(sampling_names())}"


def build_keeper(
    strategy: Strategy, capacity: int, rng: np.random.Generator, *, write_probability: float = 1.0, reserved: int = 0
) -> Keeper:
    """Build the keeper of ``strategy``; it takes over ``rng`` (PCG64), which must not be used elsewhere.

    If ``write_probability`` is below 1, experiences are dropped at random before they are offered (§6.4, [DE]).  The
    first ``reserved`` experiences are neither dropped nor overwritten.  Raises ValueError if the retention is unknown,
    or the probability lies outside (0, 1].
    """
    keeper = strategy.keeper(capacity - reserved, rng, *(() if strategy.alpha is None else (strategy.alpha,)))
    if write_probability < 1.0:
        keeper = ThinnedKeeper(keeper, write_probability, rng.spawn(1)[0])
    return ReservedKeeper(keeper, reserved, rng) if reserved else keeper


def overhead_bytes(strategy: Strategy) -> float:
    """Return the maximum bytes per experience of storage, keeper and checkpoints beyond ``Layout.row_bytes``."""
    keeper = strategy.keeper
    number_bytes = 0 if keeper.cyclic and not strategy.keeps_seeds else NUMBER_BYTES
    return number_bytes + keeper.bytes_per_slot + keeper.checkpoint_bytes_per_slot


def fixed_bytes(strategy: Strategy, *, is_thinned: bool = False) -> int:
    """Return the maximum bytes that a memory needs whatever its capacity.

    ``is_thinned``: whether experiences are dropped at random.
    """
    keeper = strategy.keeper
    recent_bytes = 0 if keeper.cyclic and not strategy.keeps_seeds else NUMBER_BYTES * N_RECENT_WRITES
    return keeper.fixed_bytes + recent_bytes + (UNIFORMS_BYTES if is_thinned else 0)


def required_bytes(strategy: Strategy, capacity: int, layout: Layout, *, is_thinned: bool = False) -> float:
    """Return the maximum bytes of storage, keeper and checkpoints for ``capacity`` experiences."""
    bytes_per_experience = layout.row_bytes + overhead_bytes(strategy)
    return fixed_bytes(strategy, is_thinned=is_thinned) + capacity * bytes_per_experience


def capacity_within(strategy: Strategy, budget_bytes: int, layout: Layout, *, is_thinned: bool = False) -> int:
    """Return the largest capacity whose storage, keeper and checkpoints stay within ``budget_bytes``.

    Raises ValueError if no experience fits.
    """
    fixed_size = fixed_bytes(strategy, is_thinned=is_thinned)
    if fixed_size >= budget_bytes:
        raise ValueError(f"{budget_bytes} bytes are too few: {strategy} needs {fixed_size} without any experience")
    return max_transitions(budget_bytes - fixed_size, layout, overhead_bytes(strategy))
