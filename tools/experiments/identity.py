"""What makes two cells the same: their configurations, whatever version of Onrig resolved them."""

from __future__ import annotations

import hashlib

import msgspec

from onrig.learner.settings import LearnerSettings
from onrig.runtime.run_config import RunConfig
from onrig.sim.twin.options import TwinOptions


def cell_id(config: RunConfig) -> str:
    """Digest of a resolved configuration, the seed left out: 12 hexadecimal digits.

    Values that are the defaults do not count, so that an experiment can be resumed when a later version knows of more;
    `same` tells where a default has come to mean something else.
    """
    return hashlib.sha256(msgspec.json.encode(_told(config), order="sorted")).hexdigest()[:12]


def same(a: RunConfig, b: RunConfig) -> bool:
    """Whether two resolved configurations are equal in everything but the seed, defaults included."""
    return _parts(a) == _parts(b)


def _parts(config: RunConfig) -> tuple[RunConfig, LearnerSettings, TwinOptions | None]:
    twin, learner = config.device.twin, msgspec.convert(config.learner, LearnerSettings)
    device = msgspec.structs.replace(config.device, twin=None)
    bare = msgspec.structs.replace(config, seed=0, learner={}, device=device)
    return bare, learner, None if twin is None else msgspec.convert(twin, TwinOptions)


def _told(config: RunConfig) -> list[object]:
    return [_without_defaults(part) for part in _parts(config)]


def _without_defaults(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        kept = {
            f.encode_name: getattr(value, f.name) for f in msgspec.structs.fields(value) if not _is_default(value, f)
        }
        tag = value.__struct_config__.tag
        return {"": tag} | {name: _without_defaults(v) for name, v in kept.items()}
    if isinstance(value, dict):
        return {name: _without_defaults(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_defaults(v) for v in value]
    return value


def _is_default(struct: msgspec.Struct, field: msgspec.structs.FieldInfo) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(getattr(struct, field.name) == field.default_factory())
    return field.default is not msgspec.NODEFAULT and bool(getattr(struct, field.name) == field.default)
