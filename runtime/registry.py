"""What can be chosen by name: pieces that installed packages register as entry points, Onrig's own among them, and
pieces in files that a configuration names (``onrig.runtime.python_files``).

A registered object describes its piece: settings, needs, checks, memory, and where the code is, which is loaded when it
is used.  Names are known without an import.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from onrig.runtime import python_files
from onrig.runtime.files import read_file
from onrig.runtime.python_files import MAX_BYTES, PythonFile

ALGORITHMS: Final = "onrig.algorithms"
"""Classes of the ``learner`` section (``onrig.learner.algorithm_config.AlgorithmConfig``), by the algorithm's name."""
SAMPLERS: Final = "onrig.samplers"
"""Descriptions of samplings (``onrig.runtime.memory.strategy.Sampling``), by the name in the notation."""
RETENTIONS: Final = "onrig.retentions"
"""Keepers (``onrig.runtime.memory.keepers.keeper.Keeper``), by the name in the notation."""
PLANTS: Final = "onrig.plants"
"""Plants (``onrig.sim.plants.plant.Plant``), by their ``kind``."""
BOXES: Final = "onrig.boxes"
"""Families of plants that a prediction covers (``onrig.runtime.safety.plant_box.PlantBox``), by their ``kind``."""
DRAWINGS: Final = "onrig.drawings"
"""Pictures of a rig in a page or a terminal (``onrig.runtime.view.drawing.Drawing``), by their ``kind``."""
REWARDS: Final = "onrig.rewards"
"""Terms of a reward (``onrig.runtime.rewards.RewardTerm``), by their ``kind``."""
TERMINATIONS: Final = "onrig.terminations"
"""Conditions that end an episode (``onrig.runtime.terminations.Termination``), by their ``kind``."""
INPUT_TRANSFORMS: Final = "onrig.input_transforms"
"""Forms of what policies see (``onrig.runtime.inputs.InputTransform``), by their ``kind``."""
RESETS: Final = "onrig.resets"
"""Controllers that drive a rig to its start (``onrig.runtime.reset.schema.Reset``), by their ``kind``."""
EXPLORATIONS: Final = "onrig.explorations"
"""Exploration processes (``onrig.runtime.explore.settings.Watched``), by their ``process``."""
TRANSPORTS: Final = "onrig.transports"
"""Lines to a device (``onrig.hw.line.Line``), by their ``kind``."""
GROUPS: Final = (
    *(ALGORITHMS, SAMPLERS, RETENTIONS, PLANTS, BOXES, DRAWINGS),
    *(REWARDS, TERMINATIONS, INPUT_TRANSFORMS, RESETS, EXPLORATIONS, TRANSPORTS),
)
_FORMERLY: Final = {"onrig.plant_boxes": BOXES}
_OURS: Final = "onrig"
_NOT_BLAMED: Final = ("onrig", "numpy", "importlib")
"""Packages that foreign code calls, and is called by."""


class _Entry(NamedTuple):
    package: str
    point: importlib.metadata.EntryPoint


class Origin(NamedTuple):
    """Where a foreign piece comes from."""

    source: str
    """Name of its package, or path of its file."""
    version: str
    """Of the package; empty for a file."""
    sha256: str
    """Of the file, or of all Python files of the package's module."""


def key_of(group: str) -> str:
    """Name of a group in configurations: ``samplers``."""
    return group.removeprefix(f"{_OURS}.")


@cache
def _registered() -> list[_Entry]:
    """Entry points of all groups here, of every installed package."""
    # Not `entry_points`: of two distributions of one name it takes the first, such as leftovers of a build.
    found = []
    for distribution in importlib.metadata.distributions():
        points = [point for point in distribution.entry_points if point.group in (*GROUPS, *_FORMERLY)]
        if points:
            package = distribution.name  # parses the distribution's metadata with its README: once, not per entry
            found += [_Entry(package, point) for point in points]
    return found


@cache
def _entries(group: str) -> dict[str, _Entry]:
    """Entry points by name, Onrig's own first; raises ValueError where two packages register the same name."""
    found: dict[str, _Entry] = {}
    entries = [entry for entry in _registered() if _FORMERLY.get(entry.point.group, entry.point.group) == group]
    for entry in sorted(entries, key=lambda entry: entry.package != _OURS):
        first = found.setdefault(entry.point.name, entry)
        if first.package != entry.package:
            both = f"{first.package} and {entry.package}"
            raise ValueError(f"{both} both register '{entry.point.name}' in {group}: uninstall one of them")
    if not any(entry.package == _OURS for entry in entries):
        raise ValueError(f"the installation is older than its code and has no {group}: install it again (`make setup`)")
    return found


_files: Final[dict[str, dict[str, PythonFile]]] = {group: {} for group in GROUPS}
"""Pieces in files, by group and name, of the configurations that this process has read."""


def add_file(group: str, name: str, file: PythonFile) -> None:
    """Register a piece in a file; raises ValueError where its name is taken."""
    if name in _entries(group):
        raise ValueError(f"{_entries(group)[name].package} registers '{name}' in {group}: choose another name")
    before = _files[group].setdefault(name, file)
    if before.identity != file.identity:
        raise ValueError(f"'{name}' names {before} already: choose another name")


def names(group: str) -> tuple[str, ...]:
    """Names in a group."""
    return (*_entries(group), *_files[group])


def own_names(group: str) -> tuple[str, ...]:
    """Names of Onrig's own pieces."""
    return tuple(name for name, entry in _entries(group).items() if entry.package == _OURS)


def foreign_names(group: str) -> tuple[str, ...]:
    """Names of the pieces of other packages, and of those in files."""
    return tuple(name for name in names(group) if name not in own_names(group))


def loadable(group: str, chosen: Iterable[str] | None = None) -> dict[str, Any]:
    """The objects of a group by name, all of them or the chosen ones.

    Those of a package that does not load are left out: it is reported where it is used.  Raises ValueError for a broken
    file, which was named to be used.
    """
    found = {}
    for name in names(group) if chosen is None else chosen:
        try:
            found[name] = load(group, name)
        except ValueError:
            if name in _files[group]:
                raise
    return found


def load(group: str, name: str) -> Any:
    """The object that is registered under a name.

    Raises KeyError for an unknown name, and ValueError with the package or file where loading it fails.
    """
    file = _files[group].get(name)
    return _loaded(group, name) if file is None else _from_file(file, group, name)


@cache
def _loaded(group: str, name: str) -> Any:
    package, point = _entries(group)[name]
    try:
        return point.load()
    except Exception as error:
        raise ValueError(f"{package} registers '{name}' in {group}, which does not load: {blame(error)}") from error


def _from_file(file: PythonFile, group: str, name: str) -> Any:
    try:
        return getattr(python_files.module_of(file), file.attribute)
    except Exception as error:
        raise ValueError(f"'{name}' of {key_of(group)} does not load from {file}: {blame(error)}") from error


def home(description: object, place: str) -> Any:
    """The object at a place that a description names: ``MODULE:NAME``, or ``:NAME`` in the description's module."""
    module, _, name = place.partition(":")
    owner = description if isinstance(description, type) else type(description)
    return getattr(importlib.import_module(module or owner.__module__), name)


def is_foreign(piece: object) -> bool:
    """Whether a class, or an object's class, is another package's or a file's."""
    owner = piece if isinstance(piece, type) else type(piece)
    return owner.__module__.split(".")[0] != _OURS


def blame(error: BaseException) -> str:
    """Type, message and origin of an exception: the line of foreign code where one was involved, else its own."""
    steps = list(traceback.walk_tb(error.__traceback__))
    foreign = [at for at in steps if str(at[0].f_globals.get("__name__")).split(".")[0] not in _NOT_BLAMED]
    said = " ".join(str(error).split())
    frame, line = (foreign or steps)[-1]
    file = frame.f_code.co_filename
    told = isinstance(error, SyntaxError) or file.startswith("<")  # which tells its own, or has none
    return f"{type(error).__name__}{f': {said}' if said else ''}" + (f" ({file}, line {line})" if not told else "")


def origin_of(group: str, name: str) -> Origin | None:
    """Where a registered piece comes from; None for one of Onrig's own.  Raises KeyError for an unknown name."""
    file = _files[group].get(name)
    if file is not None:
        return Origin(str(file.path), "", file.sha256)
    package, point = _entries(group)[name]
    if package == _OURS:
        return None
    return Origin(package, importlib.metadata.version(package), _digest_of(point.module.split(".")[0]))


@cache
def _digest_of(module: str) -> str:
    """SHA-256 over the Python files of a module or package, by their names."""
    spec = importlib.util.find_spec(module)
    digest = hashlib.sha256()
    for root in () if spec is None else spec.submodule_search_locations or (spec.origin or "",):
        files = sorted(Path(root).rglob("*.py")) if Path(root).is_dir() else [Path(root)]
        for file in files:
            digest.update(f"{file.relative_to(Path(root).parent)}\0".encode() + read_file(file, MAX_BYTES) + b"\0")
    return digest.hexdigest()
