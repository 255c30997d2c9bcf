"""Section ``selection`` of a run: which experiences to keep and to replay."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from onrig.hw.bounds import PositiveShare, Share
from onrig.runtime.config.problem import Finding
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.strategy import capacity_within, parse_strategy

DEFAULT_CAPACITY: Final = 10_000
"""Default capacity, from de Bruin et al. 2018, §4."""
MAX_CAPACITY: Final = 0xFFFFFFFF
"""Maximum capacity, because slots are numbered in 32 bits (``onrig.runtime.memory.storage``)."""


class Synthetic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replacement of experiences by ones recomputed with the twin's plant, for more diversity (de Bruin et al. 2018,
    §6.2.1, §6.3.1).

    See ``onrig.sim.synthetic`` for the algorithm.
    """

    states: Share = 0.0
    """Fraction of the memory whose states are redrawn; the actions are the policy's, including exploration."""
    actions: Share = 0.0
    """Fraction of the memory whose actions are redrawn."""
    refresh: Share = 1.0
    """Probability that a synthetic experience is overwritten when its slot is due; otherwise it is kept."""


class Weighted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weight of experiences relative to all others."""

    weight: Share
    """Weight of the experience in the critic's loss."""


class SeedFrom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Experiences that a memory begins with: the newest ones measured by an earlier run."""

    path: str
    """Folder of the run, or of its export as Parquet or Minari."""
    most: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET
    """Maximum number of experiences (default: as many as the memory holds; for FULL, all). The configuration in a run
    folder holds the actual number."""
    sha256: str | msgspec.UnsetType = msgspec.UNSET
    """Checksum of the experiences; experiences with a different checksum are refused. The configuration in a run folder
    always has it."""


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Experiences to keep and to replay, in the notation of de Bruin et al. 2018, §5.2."""

    strategy: str = "FIFO[Uniform]"
    """``RETENTION[SAMPLING]``, such as ``Expl(1.0)[PER+IS]`` (docs/methods.md)."""
    capacity: Annotated[int, msgspec.Meta(ge=1, le=MAX_CAPACITY)] | None = None
    """Capacity in experiences; default 10 000 (de Bruin et al. 2018, §4), or the entire run for FULL."""
    capacity_bytes: int | None = None
    """Memory in bytes, including the keeper's structures; replaces ``capacity``."""
    write_probability: PositiveShare = 1.0
    """Probability that an experience is offered to the memory ([DE] of de Bruin et al. 2018, §6.4: 50 Hz
    divided by the rate)."""
    synthetic: Synthetic | None = None
    intervened: Literal["keep", "drop"] | Weighted = "keep"
    """What to do with experiences in which the shield acted: keep them, exclude them from the memory, or keep them with
    this weight in the critic's loss.  In any case their action is the one that was executed."""
    seed_from: str | SeedFrom | msgspec.UnsetType = msgspec.UNSET
    """Run, or its export as Parquet or Minari, whose experiences fill the memory at the start (docs/data.md)."""

    @property
    def seeds(self) -> SeedFrom | None:
        """``seed_from`` in its full form; None if the memory starts empty."""
        if self.seed_from is msgspec.UNSET:
            return None
        return SeedFrom(self.seed_from) if isinstance(self.seed_from, str) else self.seed_from

    @property
    def reserved(self) -> int:
        """Number of experiences of an earlier run that are never overwritten; 0 while it is unknown."""
        seeds = self.seeds
        if seeds is None or seeds.most is msgspec.UNSET or not parse_strategy(self.strategy).keeps_seeds:
            return 0
        return seeds.most


def machine_bytes() -> float:
    """Return the memory of this machine in bytes; infinite if the system does not report it."""
    sysconf = getattr(os, "sysconf", None)
    return math.inf if sysconf is None else sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")


def selection_findings(selection: Selection, layout: Layout, *, run_length: int) -> Iterator[Finding]:
    """Yield (path, message) for each inconsistent value; ``run_length`` is in experiences."""
    for name, message in _findings(selection, layout, run_length):
        yield ("selection", name), f"{message} at selection.{name}"


def capacity_for(selection: Selection, layout: Layout, *, run_length: int) -> int:
    """Return the capacity in experiences; by default FULL holds its seeds and the entire run of ``run_length``.

    Raises ValueError if the configured bytes cannot hold a single experience.
    """
    if selection.capacity is not None:
        return selection.capacity
    keeps_all = parse_strategy(selection.strategy).keeper.keeps_all
    if selection.capacity_bytes is not None:
        fitting_capacity = _fitting_capacity(selection, selection.capacity_bytes, layout)
        return min(fitting_capacity, run_length) if keeps_all else fitting_capacity
    if not keeps_all:
        return DEFAULT_CAPACITY
    seeds = selection.seeds
    return run_length + (seeds.most if seeds is not None and seeds.most is not msgspec.UNSET else 0)


def _fitting_capacity(selection: Selection, budget_bytes: int, layout: Layout) -> int:
    strategy, is_thinned = parse_strategy(selection.strategy), selection.write_probability < 1
    return capacity_within(strategy, budget_bytes, layout, is_thinned=is_thinned)


def _findings(selection: Selection, layout: Layout, run_length: int) -> Iterator[tuple[str, str]]:
    synthetic = selection.synthetic
    if synthetic is not None and synthetic.states + synthetic.actions > 1:
        fractions = f"got {synthetic.states:g} and {synthetic.actions:g}"
        yield "synthetic", f"expected states + actions of at most 1, {fractions}"
    capacity, budget_bytes = selection.capacity, selection.capacity_bytes
    if capacity is not None and budget_bytes is not None:
        yield "capacity_bytes", "expected either 'capacity' or 'capacity_bytes'"
        return
    try:
        keeps_all = parse_strategy(selection.strategy).keeper.keeps_all
    except ValueError as error:
        yield "strategy", str(error)
        return
    requirement = f"FULL keeps all {run_length} experiences of the run"
    if budget_bytes is not None:
        try:
            fitting_capacity = _fitting_capacity(selection, budget_bytes, layout)
        except ValueError as error:
            yield "capacity_bytes", str(error)
            return
        if keeps_all and fitting_capacity < run_length:
            yield "capacity_bytes", f"{requirement}, but {budget_bytes} bytes hold only {fitting_capacity}"
        elif fitting_capacity > MAX_CAPACITY and not keeps_all:
            yield (
                "capacity_bytes",
                f"{budget_bytes} bytes hold {fitting_capacity} experiences; the maximum is {MAX_CAPACITY}",
            )
    elif keeps_all and capacity is None and run_length > MAX_CAPACITY:
        yield "strategy", f"{requirement}, but the maximum is {MAX_CAPACITY}"
    elif keeps_all and capacity is not None and capacity < run_length:
        yield "capacity", f"{requirement}; {capacity} are too few"
