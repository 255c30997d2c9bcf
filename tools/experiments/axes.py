"""What the axes of a grid are called, and which values of a run's configuration each of them sets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.config.problem import NodePath, suggestion
from onrig.runtime.run_config import RunConfig

PLACEHOLDER: Final = "alpha"
"""The axis that fills ``{alpha}`` in a strategy and sets nothing of its own."""

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "strategy": ("selection.strategy",),
    PLACEHOLDER: (),
    "capacity": ("selection.capacity",),
    "write_probability": ("selection.write_probability",),
    "synthetic_states": ("selection.synthetic.states",),
    "synthetic_actions": ("selection.synthetic.actions",),
    "refresh": ("selection.synthetic.refresh",),
    "rate_hz": ("rate_hz",),
    "noise": ("device.twin.sensor_noise", "device.twin.actuator_noise"),
    "inertia": ("device.twin.plant.inertia",),
    "algorithm": ("learner.algorithm",),
    "network": ("learner.ddpg.network", "learner.dqn.network"),
    "gamma": ("learner.ddpg.gamma", "learner.dqn.gamma"),
    "per_alpha": ("learner.per_alpha",),
}
"""Short names, and the paths of the configuration that get an axis's value."""

_SHORT: Final = {paths[0]: name for name, paths in AXES.items() if len(paths) == 1}
_PATH: Final = re.compile(r"[A-Za-z_]\w*(\[\d{1,6}\])*(\.[A-Za-z_]\w*(\[\d{1,6}\])*)*")
_OURS: Final = {"seed": "first_seed", "episodes": "episodes"}
"""Paths that the spec has keys of its own for."""
_INERTIA: Final = {
    "paper": {"rig": "pendulum", "task": "swingup"},
    "hardware": {"rig": "pendulum-hardware", "task": "swingup-hardware"},
}


class Setting(NamedTuple):
    """One value of a run's configuration that a spec sets."""

    path: str
    value: object
    at: NodePath
    """Where in the spec it stands."""

    @property
    def assignment(self) -> str:
        """The same as ``onrig.runtime.config.document.override`` takes it: JSON is YAML."""
        return f"{self.path}={msgspec.json.encode(self.value).decode()}"


def short_name(name: str) -> str:
    """The one name of an axis that may also be written as the path it sets."""
    return _SHORT.get(name, name)


def name_problem(name: str) -> str | None:
    """What is wrong with the name of an axis or of a value to set; None where nothing is."""
    if name in _OURS:
        return f"'{name}' is set by the spec's own '{_OURS[name]}'"
    head = re.split(r"[.\[]", name, maxsplit=1)[0]
    fields = RunConfig.__struct_fields__
    if name in AXES or (_PATH.fullmatch(name) and head in fields):
        return None
    hint = suggestion(name, list(AXES))
    return f"unknown axis '{name}' ({hint if hint.startswith('did') else f'paths of the configuration, and {hint}'})"


def paths_of(name: str) -> tuple[str, ...]:
    """The paths of the configuration that a value under this name sets."""
    return AXES.get(name, (name,))


def settings_of(name: str, value: object, at: NodePath, base: RunConfig) -> Iterator[Setting]:
    """What a value under this name sets, around the run ``base``.

    The pendulum's inertia is a property of the plant, but the yardsticks that go with it are the task's (METHODS §1.1):
    between the two shipped presets rig and task change with it.
    """
    if name == "inertia" and base.rig.name in ("pendulum", "pendulum-hw") and base.task.name.startswith("swingup"):
        preset = _INERTIA.get(value) if isinstance(value, str) else None
        yield from (Setting(path, given, at) for path, given in (preset or {}).items())
    yield from (Setting(path, value, at) for path in paths_of(name))
