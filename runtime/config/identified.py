"""``identified: FILE``: overrides a configuration's plants with the result of `onrig identify`.

The file's ``twin`` overrides ``device.twin`` and its ``predicted`` overrides ``limits.predicted``, provided that the
configuration has that section; error bounds of other sensors are kept.  The key then holds the file's hash, which is
recorded with the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from onrig.hw.rig import Rig
from onrig.runtime.config.document import MAX_BYTES, Document, find_config, load_document, override, problem_at
from onrig.runtime.config.problem import ConfigError, NodePath
from onrig.runtime.config.yaml_nodes import Data, value_at
from onrig.runtime.files import read_file

KEY: Final = "identified"
FILE_NAME: Final = "identified.yaml"
"""Name of a result file, and of its copy in the folder of a run that uses it."""
HASH_PREFIX: Final = "sha256:"
_SENSOR_ERROR_KEY: Final = "sensor_error"
_OVERRIDES: Final[tuple[tuple[str, NodePath], ...]] = (
    ("twin", ("device", "twin")),
    ("predicted", ("limits", "predicted")),
)


def with_identified(document: Document, base: Path, rig: object) -> tuple[Document, Document | None]:
    """Apply the overrides from the named file; return the new document, and the file's own document for
    :func:`check_identified_channels`.

    A document that names no file, or already holds a hash, is returned unchanged, with None. ``base`` is the
    configuration's folder, ``rig`` the name of its rig, on which the plant must have been identified. Raises
    ConfigError.
    """
    path = identified_file(document, base)
    if path is None:
        return document, None
    result = load_document(path)
    if not isinstance(result.data, dict) or not all(
        isinstance(result.data.get(section), dict) for section, _ in _OVERRIDES
    ):
        raise ConfigError(
            [problem_at(result, (), "expected the keys twin and predicted, as written by `onrig identify`")]
        )
    if result.data.get("rig") != rig:
        message = f"{path} was identified on rig '{result.data.get('rig')}', not '{rig}', at {KEY}"
        raise ConfigError([problem_at(document, (KEY,), message)])
    for section, target in _OVERRIDES:
        values = result.data[section]
        if _is_mapping(document.data, target) and isinstance(values, dict):
            for field, value in values.items():
                names = [*target, field]
                overrides = {".".join(map(str, names)): value}
                if field == _SENSOR_ERROR_KEY and isinstance(value, dict) and _is_mapping(document.data, tuple(names)):
                    overrides = {".".join(map(str, (*names, name))): error for name, error in value.items()}
                for key, setting in overrides.items():
                    document = override(document, f"{key}={msgspec.json.encode(setting).decode()}", origin=str(path))
    document = override(document, f'{KEY}="{identification_hash(read_file(path, MAX_BYTES))}"', origin=str(path))
    return document, result


def check_identified_channels(result: Document | None, rig: Rig, document: Document) -> None:
    """Raise ConfigError if a sensor or actuator of the rig differs from the one with which the plant was identified.

    A plant identified in different units, or with a different resolution, is a different plant.  ``document`` is the
    configuration in which the problem is located.  A result without channels, from an earlier version, is accepted.
    """
    channels = result.data.get("channels") if result is not None and isinstance(result.data, dict) else None
    if result is None or not isinstance(channels, dict) or not channels:
        return
    for channel in rig.channels:
        known, here = channels.get(channel.name), {"unit": channel.unit, "resolution": channel.resolution}
        if known == here:
            continue
        before = _scale(known) if isinstance(known, dict) else f"without '{channel.name}'"
        message = f"{result.file} was identified {before}; the rig has {channel.name} {_scale(here)}: identify it again"
        raise ConfigError([problem_at(document, (KEY,), f"{message}, at {KEY}")])


def _scale(channel: Mapping[str, Any]) -> str:
    return f"in {channel.get('unit')} with a resolution of {channel.get('resolution')}"


def identification_hash(data: bytes) -> str:
    """Return the value that the key holds once a file with this content has been applied."""
    return HASH_PREFIX + hashlib.sha256(data).hexdigest()


def identified_file(document: Document, base: Path) -> Path | None:
    """Return the file named in a configuration in the folder ``base``; None if the key is unset or holds a hash.

    Raises ConfigError if it is missing.
    """
    name = document.data.get(KEY) if isinstance(document.data, dict) else None
    if not isinstance(name, str) or name.startswith(HASH_PREFIX):
        return None
    base = Path() if (KEY,) in document.overrides else base  # relative to the working directory
    try:
        return find_config(name if Path(name).suffix else f"{name}.yaml", base=base)
    except FileNotFoundError as error:
        raise ConfigError([problem_at(document, (KEY,), f"{error} at {KEY}")]) from None


def _is_mapping(data: Data, node_path: NodePath) -> bool:
    try:
        return isinstance(value_at(data, node_path), dict)
    except KeyError:
        return False
