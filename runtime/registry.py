"""Registry of plugins selected by name: entry points of installed packages, including Onrig, and plugins in files named
in a configuration (``onrig.runtime.python_files``).

A registered object describes its plugin: settings, requirements, checks, memory, and the location of its code, which is
loaded on use. Listing names imports nothing.
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
from onrig.runtime.python_files import PythonFile

ALGORITHMS: Final = "onrig.algorithms"
"""Classes of the ``learner`` section (``onrig.learner.algorithm_config.AlgorithmConfig``), keyed by the algorithm's
name."""
SAMPLERS: Final = "onrig.samplers"
"""Descriptions of samplings (``onrig.runtime.memory.strategy.Sampling``), keyed by the name in the notation."""
RETENTIONS: Final = "onrig.retentions"
"""Keepers (``onrig.runtime.memory.keepers.keeper.Keeper``), keyed by the name in the notation."""
PLANTS: Final = "onrig.plants"
"""Plants (``onrig.sim.plants.plant.Plant``), keyed by ``kind``."""
BOXES: Final = "onrig.boxes"
"""Families of plants covered by a prediction (``onrig.runtime.safety.plant_box.PlantBox``), keyed by ``kind``."""
DRAWINGS: Final = "onrig.drawings"
"""Drawings of a rig for pages and terminals (``onrig.runtime.view.drawing.Drawing``), keyed by ``kind``."""
REWARDS: Final = "onrig.rewards"
"""Terms of a reward (``onrig.runtime.rewards.RewardTerm``), keyed by ``kind``."""
TERMINATIONS: Final = "onrig.terminations"
"""Conditions that end an episode (``onrig.runtime.terminations.Termination``), keyed by ``kind``."""
TARGETS: Final = "onrig.targets"
"""Targets of a task (``onrig.runtime.targets.Target``), keyed by ``kind``."""
INPUT_TRANSFORMS: Final = "onrig.input_transforms"
"""Transforms of policy inputs (``onrig.runtime.inputs.InputTransform``), keyed by ``kind``."""
RESETS: Final = "onrig.resets"
"""Controllers that drive a rig to its start (``onrig.runtime.reset.schema.Reset``), keyed by ``kind``."""
EXPLORATIONS: Final = "onrig.explorations"
"""Exploration processes (``onrig.runtime.explore.settings.ExplorationProcess``), keyed by ``process``."""
TRANSPORTS: Final = "onrig.transports"
"""Connections to a device (``onrig.hw.line.Line``), keyed by ``kind``."""
DEVICES: Final = "onrig.devices"
"""Devices written in Python (``onrig.hw.device.driven.PythonDevice``), keyed by ``kind``."""
CAMERAS: Final = "onrig.cameras"
"""Cameras next to a device (``onrig.hw.cameras.driver.CameraDevice``), keyed by ``kind``."""
GROUPS: Final = (
    *(ALGORITHMS, SAMPLERS, RETENTIONS, PLANTS, BOXES, DRAWINGS),
    *(REWARDS, TERMINATIONS, TARGETS, INPUT_TRANSFORMS, RESETS, EXPLORATIONS, TRANSPORTS, DEVICES, CAMERAS),
)
_GROUPS_WITHOUT_BUILTINS: Final = frozenset({DEVICES})
"""Groups without built-in plugins."""
_FORMER_NAMES: Final = {"onrig.plant_boxes": BOXES}
_OWN_PACKAGE: Final = "onrig"
_MAX_MODULE_BYTES: Final = 1 << 30
"""Size limit of a package's file, which may be a compiled module."""
_SKIPPED_PACKAGES: Final = ("onrig", "numpy", "importlib")
"""Packages skipped in the search for an exception's origin: they call third-party code or are called by it."""


class _Entry(NamedTuple):
    package: str
    entry_point: importlib.metadata.EntryPoint


class Origin(NamedTuple):
    """Origin of a third-party plugin."""

    source: str
    """Name of its package, or path of its file."""
    version: str
    """Version of the package; empty for a file."""
    sha256: str
    """Digest of the file, or of all Python files of the package's module."""


def group_key(group: str) -> str:
    """Return the key of a group in configurations, such as ``samplers``."""
    return group.removeprefix(f"{_OWN_PACKAGE}.")


@cache
def _entry_points() -> list[_Entry]:
    """Return the entry points of all groups, from every installed package."""
    # Not `entry_points`, which keeps only the first of two distributions with the same name (left over from a build).
    entries = []
    for distribution in importlib.metadata.distributions():
        if f"{_OWN_PACKAGE}." not in (distribution.read_text("entry_points.txt") or ""):
            continue  # parsing the entry points of all packages takes longer than reading them
        points = [
            entry_point for entry_point in distribution.entry_points if entry_point.group in (*GROUPS, *_FORMER_NAMES)
        ]
        if points:
            package = distribution.name  # parses all metadata, even the README, so not per entry
            entries += [_Entry(package, entry_point) for entry_point in points]
    return entries


@cache
def _entries(group: str) -> dict[str, _Entry]:
    """Return entry points by name, built-in ones first; raises ValueError if two packages register the same name."""
    by_name: dict[str, _Entry] = {}
    entries = [
        entry
        for entry in _entry_points()
        if _FORMER_NAMES.get(entry.entry_point.group, entry.entry_point.group) == group
    ]
    for entry in sorted(entries, key=lambda entry: entry.package != _OWN_PACKAGE):
        first_entry = by_name.setdefault(entry.entry_point.name, entry)
        if first_entry.package != entry.package:
            packages = f"{first_entry.package} and {entry.package}"
            raise ValueError(f"{packages} both register '{entry.entry_point.name}' in {group}: uninstall one of them")
    if group not in _GROUPS_WITHOUT_BUILTINS and not any(entry.package == _OWN_PACKAGE for entry in entries):
        raise ValueError(f"the installation is older than the code and has no {group}; reinstall it (`make setup`)")
    return by_name


_plugin_files: Final[dict[str, dict[str, PythonFile]]] = {group: {} for group in GROUPS}
"""Plugins in files by group and name, from the configurations read by this process."""


def add_file(group: str, name: str, file: PythonFile) -> None:
    """Register a plugin in a file; raises ValueError if its name is taken."""
    if name in _entries(group):
        raise ValueError(f"{_entries(group)[name].package} registers '{name}' in {group}: choose another name")
    previous = _plugin_files[group].setdefault(name, file)
    if previous.identity != file.identity:
        raise ValueError(f"'{name}' is already the name of {previous}: choose another name")


def names(group: str) -> tuple[str, ...]:
    """Return the names in a group."""
    return (*_entries(group), *_plugin_files[group])


def builtin_names(group: str) -> tuple[str, ...]:
    """Return the names of the built-in plugins."""
    return tuple(name for name, entry in _entries(group).items() if entry.package == _OWN_PACKAGE)


def third_party_names(group: str) -> tuple[str, ...]:
    """Return the names of plugins from other packages and from files."""
    return tuple(name for name in names(group) if name not in builtin_names(group))


def load_available(group: str, selected_names: Iterable[str] | None = None) -> dict[str, Any]:
    """Load a group's objects by name: all of them, or only ``selected_names``.

    Plugins of packages that fail to load are skipped; the failure is reported when they are used. Raises ValueError if
    a plugin file fails to load, since a configuration names a file only in order to use it.
    """
    objects = {}
    for name in names(group) if selected_names is None else selected_names:
        try:
            objects[name] = load(group, name)
        except ValueError:
            if name in _plugin_files[group]:
                raise
    return objects


def load(group: str, name: str) -> Any:
    """Load the object registered under a name. Raises KeyError if the name is unknown, and a ValueError that names the
    package or file if loading fails."""
    file = _plugin_files[group].get(name)
    return _load_cached(group, name) if file is None else _load_from_file(file, group, name)


@cache
def _load_cached(group: str, name: str) -> Any:
    package, entry_point = _entries(group)[name]
    try:
        return entry_point.load()
    except Exception as error:
        raise ValueError(
            f"{package} registers '{name}' in {group}, which does not load: {describe_exception(error)}"
        ) from error


def _load_from_file(file: PythonFile, group: str, name: str) -> Any:
    try:
        return getattr(python_files.import_file(file), file.attribute)
    except Exception as error:
        raise ValueError(
            f"'{name}' of {group_key(group)} does not load from {file}: {describe_exception(error)}"
        ) from error


def import_home(description: object, location: str) -> Any:
    """Import an object named in a description: ``MODULE:NAME``, or ``:NAME`` in the description's module."""
    module, _, name = location.partition(":")
    owner = description if isinstance(description, type) else type(description)
    return getattr(importlib.import_module(module or owner.__module__), name)


def is_third_party(plugin: object) -> bool:
    """Return whether a class, or an object's class, comes from another package or a file."""
    owner = plugin if isinstance(plugin, type) else type(plugin)
    return owner.__module__.split(".")[0] != _OWN_PACKAGE


def describe_exception(error: BaseException) -> str:
    """Format an exception: its type, its message, and the line of third-party code involved, or else the raising
    line."""
    frames = list(traceback.walk_tb(error.__traceback__))
    third_party_frames = [
        step for step in frames if str(step[0].f_globals.get("__name__")).split(".")[0] not in _SKIPPED_PACKAGES
    ]
    text = " ".join(str(error).split())
    frame, line = (third_party_frames or frames)[-1]
    file = frame.f_code.co_filename
    has_location = isinstance(error, SyntaxError) or file.startswith("<")  # its message contains the location, if any
    return f"{type(error).__name__}{f': {text}' if text else ''}" + (
        f" ({file}, line {line})" if not has_location else ""
    )


def plugin_origin(group: str, name: str) -> Origin | None:
    """Return the origin of a third-party plugin; None for a built-in one. Raises KeyError if the name is unknown."""
    file = _plugin_files[group].get(name)
    if file is not None:
        return Origin(str(file.path), "", file.sha256)
    package, entry_point = _entries(group)[name]
    if package == _OWN_PACKAGE:
        return None
    return Origin(package, importlib.metadata.version(package), _package_digest(entry_point.module.split(".")[0]))


@cache
def _package_digest(module: str) -> str:
    """Return the SHA-256 of the Python files of a module or package, taken in the order of their names."""
    spec = importlib.util.find_spec(module)
    digest = hashlib.sha256()
    for root in () if spec is None else spec.submodule_search_locations or (spec.origin or "",):
        files = sorted(Path(root).rglob("*.py")) if Path(root).is_dir() else [Path(root)]
        for file in filter(Path.is_file, files):  # an editor's lock may be a dangling link
            content = read_file(file, _MAX_MODULE_BYTES)
            digest.update(f"{file.relative_to(Path(root).parent)}\0".encode() + content + b"\0")
    return digest.hexdigest()
