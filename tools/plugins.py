"""Third-party plugins chosen by a configuration, and their record in ``meta.json``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from onrig.learner.settings import learner_settings
from onrig.learner.trials.step_run import StepRun
from onrig.runtime import registry
from onrig.runtime.memory.strategy import parse_sampling, parse_strategy
from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.drawing import ViewOptions
from onrig.sim.twin.options import TwinOptions

META_KEY: Final = "pieces"
"""Key in ``meta.json``; absent if a run uses no third-party plugins."""
_N_HASH_DIGITS: Final = 12


class Plugin(msgspec.Struct, frozen=True):
    """A third-party plugin, with its origin and version."""

    group: str
    name: str
    source: str
    """Package name, or path of the file."""
    version: str
    """Version of the package; empty for a file."""
    sha256: str

    def __str__(self) -> str:
        return f"{self.source} {self.version}".rstrip() + f" (sha256 {self.sha256[:_N_HASH_DIGITS]})"


def chosen_plugins(config: RunConfig | StepRun) -> Iterator[tuple[str, str]]:
    """Yield the group and name of each registered plugin, built-in or not, that a valid configuration chooses."""
    strategy = parse_strategy(config.selection.strategy)
    yield registry.RETENTIONS, strategy.retention
    yield from ((registry.SAMPLERS, sampling.name) for sampling in parse_sampling(strategy.sampling).nested)
    sections: list[msgspec.Struct] = [config]
    if isinstance(config, RunConfig):
        yield registry.ALGORITHMS, learner_settings(config.learner).algorithm
        if config.device.twin is not None:
            sections.append(msgspec.convert(config.device.twin, TwinOptions))
        sections.append(msgspec.convert(config.view or {}, ViewOptions))
    else:
        yield registry.ALGORITHMS, config.learner.algorithm
    for section in sections:
        yield from _registered_choices(section)


def _registered_choices(value: object) -> Iterator[tuple[str, str]]:
    """Yield the group and kind of each registered struct within a section."""
    if isinstance(value, msgspec.Struct):
        kind = value.__struct_config__.tag
        for group in registry.GROUPS if isinstance(kind, str) else ():
            if kind in registry.names(group) and registry.load_available(group, [str(kind)]).get(str(kind)) is type(
                value
            ):
                yield group, str(kind)
        for name in value.__struct_fields__:
            yield from _registered_choices(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _registered_choices(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _registered_choices(item)


def third_party_plugins(*configs: RunConfig | StepRun) -> list[Plugin]:
    """Return the third-party plugins of configurations, sorted by group and name."""
    choices = {choice for config in configs for choice in chosen_plugins(config)}
    origins = ((group, name, registry.plugin_origin(group, name)) for group, name in sorted(choices))
    return [Plugin(group, name, *origin) for group, name, origin in origins if origin is not None]


def plugin_records(plugins: list[Plugin]) -> dict[str, object]:
    """Return the entry for plugins in ``meta.json``; empty if there are none."""
    return {META_KEY: msgspec.to_builtins(plugins)} if plugins else {}


def plugin_difference(
    meta: Mapping[str, object], plugins: list[Plugin], groups: Collection[str] = registry.GROUPS
) -> str | None:
    """Describe in one line the first difference between ``plugins`` and the plugins of some groups that a ``meta.json``
    records. Return None if they are equal or not recorded.
    """
    present_plugins = {(plugin.group, plugin.name): plugin for plugin in plugins}
    for old in msgspec.convert(meta.get(META_KEY, []), list[Plugin]):
        if old.group not in groups:
            continue
        new = present_plugins.get((old.group, old.name))
        if new is None or (old.version, old.sha256) != (new.version, new.sha256):
            current = "built-in" if new is None else str(new)
            plugin = f"'{old.name}' of {registry.group_key(old.group)}"
            return f"{plugin} was {old} and is {current} here: restore the run's version"
    return None
