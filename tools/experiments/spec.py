"""What an experiment's YAML file says, before its grid is worked out (``onrig.tools.experiments.grid``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from onrig.runtime.config.conversion import convert_by_section
from onrig.runtime.config.document import Document, load_document, problem_at
from onrig.runtime.config.problem import ConfigError, Problem

MAX_TRIALS: Final = 100_000
_MAX_SEED: Final = (1 << 63) - 1
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All combinations of some axes, around one run's configuration."""

    config: str
    """Name of a shipped run, or a path (from the spec's folder on)."""
    set: dict[str, object] = {}
    """Axis or dotted path of the run's configuration to the value that it has in this block."""
    grid: dict[str, list[object]] = {}
    """Axis or dotted path to its values; without axes the block is a single cell."""


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One experiment: blocks of cells, each cell run as ``trials`` independent trials."""

    name: _Name
    title: str
    trials: int
    episodes: int
    blocks: tuple[Block, ...]
    figures: tuple[int | str, ...] = ()
    """What `onrig report` is to draw: figures of 000 by number, tables as ``table-6``."""
    first_seed: int = 0
    """Seeds of the trials are ``first_seed`` and those after it, the same in every cell: trials are paired."""
    set: dict[str, object] = {}
    """As in a block, for every cell; a block's own values come after it."""

    @property
    def seeds(self) -> range:
        """Seeds of the trials of every cell."""
        return range(self.first_seed, self.first_seed + self.trials)


class SpecFile(NamedTuple):
    """A spec, and where each of its values stands."""

    spec: Spec
    document: Document
    path: Path


def load_spec(path: Path) -> SpecFile:
    """Read a spec; raises ConfigError with every problem that can be told from it alone."""
    document = load_document(path)
    spec = convert_by_section(document, Spec)
    problems = list(_problems(spec, document))
    if problems:
        raise ConfigError(sorted(problems, key=lambda p: p.mark))
    return SpecFile(spec, document, path)


def _problems(spec: Spec, document: Document) -> list[Problem]:
    found = []
    if not 1 <= spec.trials <= MAX_TRIALS:
        found.append(problem_at(document, ("trials",), f"expected 1 to {MAX_TRIALS}, got {spec.trials} at trials"))
    if spec.episodes < 1:
        found.append(problem_at(document, ("episodes",), f"expected at least 1, got {spec.episodes} at episodes"))
    if not 0 <= spec.first_seed <= _MAX_SEED - MAX_TRIALS:
        message = f"expected 0 to 2^63 - {MAX_TRIALS + 1}, got {spec.first_seed} at first_seed"
        found.append(problem_at(document, ("first_seed",), message))
    if not spec.blocks:
        found.append(problem_at(document, ("blocks",), "expected at least one block at blocks"))
    for i, block in enumerate(spec.blocks):
        for axis, values in block.grid.items():
            if not values:
                found.append(problem_at(document, ("blocks", i, "grid", axis), f"axis '{axis}' has no values"))
    return found
