"""Reasons to refuse an identified result: reversed channels, and conflicts with the configuration."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from onrig.hw.rig import Rig
from onrig.runtime.run_checks import findings
from onrig.runtime.run_config import RunConfig
from onrig.sim.identification.connections import Connection
from onrig.sim.identification.result import Result
from onrig.tools.load import rig_findings

_TABLE: Final = ("limits", "predicted", "table")
"""A table that must be computed again for the result."""


def reversed_channels(connection: Connection, rig: Rig) -> list[str]:
    """Return a message that names the certainly reversed channels; with these the fallback would destabilise it."""
    names = [*(s.name for s in rig.sensors), *(a.name for a in rig.actuators)]
    signs = (*connection.signs.sensors, *connection.signs.actuators)
    inverted = [name for name, sign in zip(names, signs, strict=True) if sign < 0]
    if not connection.certain or not inverted:
        return []
    return [f"{', '.join(inverted)} reversed with respect to the other channels; fix the connection and start again"]


class Conflicts(NamedTuple):
    """Reasons why a run of a configuration would refuse a result; both empty if it would not."""

    unpredictable: list[str]
    """Reasons that no setting can resolve: the shield cannot predict this plant."""
    settings: list[str]
    """Settings that must be changed first."""


def conflicts_of(config: RunConfig, result: Result) -> Conflicts:
    """Find conflicts of a result with its configuration."""
    limits, device = config.limits, config.device
    if limits.predicted is not None:
        limits = msgspec.structs.replace(limits, predicted=_overridden(limits.predicted, result.predicted))
    if device.twin is not None:
        device = msgspec.structs.replace(device, twin={**device.twin, **result.twin})
    used = msgspec.structs.replace(config, limits=limits, device=device)
    before = {message for _, message in chain(findings(config), rig_findings(config))}
    found = Conflicts([], [])
    for path, message in chain(findings(used), rig_findings(used)):
        if message not in before:
            is_of_plant = path[:2] in (("limits", "predicted"), ("device", "twin")) and path != _TABLE
            kind = found.unpredictable if is_of_plant else found.settings
            kind.append(f"a run of this configuration would refuse the result: {message}")
    return found


def _overridden(box: Any, predicted: dict[str, Any]) -> Any:
    """Return the box with the result's values; errors of other sensors are kept."""
    values = msgspec.to_builtins(box)
    errors = {**values.get("sensor_error", {}), **predicted.get("sensor_error", {})}
    return msgspec.convert({**values, **predicted, "sensor_error": errors}, type(box))
