"""Reasons to refuse the result of an identification: reversed channels, and conflicts with the configuration."""

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
"""Path of the table that must be computed again for the result."""


def reversed_channels(connection: Connection, rig: Rig) -> list[str]:
    """Return messages that name the channels that are certainly reversed.

    With reversed channels, the fallback would destabilise the rig.
    """
    names = [*(s.name for s in rig.sensors), *(a.name for a in rig.actuators)]
    signs = (*connection.signs.sensors, *connection.signs.actuators)
    inverted_channels = [name for name, sign in zip(names, signs, strict=True) if sign < 0]
    if not connection.is_certain or not inverted_channels:
        return []
    return [
        f"{', '.join(inverted_channels)} reversed relative to the other channels; fix the connection and start again"
    ]


class Conflicts(NamedTuple):
    """Reasons why a run with this configuration would refuse a result; both lists are empty if it would not."""

    unpredictable: list[str]
    """Reasons that no setting can resolve: the shield cannot predict this plant."""
    settings: list[str]
    """Reasons that different settings would resolve."""


def find_conflicts(config: RunConfig, result: Result) -> Conflicts:
    """Find the conflicts between a result and its configuration."""
    limits, device = config.limits, config.device
    if limits.predicted is not None:
        limits = msgspec.structs.replace(limits, predicted=_override_box(limits.predicted, result.predicted))
    if device.twin is not None:
        device = msgspec.structs.replace(device, twin={**device.twin, **result.twin})
    updated_config = msgspec.structs.replace(config, limits=limits, device=device)
    known_messages = {message for _, message in chain(findings(config), rig_findings(config))}
    conflicts = Conflicts([], [])
    for path, message in chain(findings(updated_config), rig_findings(updated_config)):
        if message not in known_messages:
            is_of_plant = path[:2] in (("limits", "predicted"), ("device", "twin")) and path != _TABLE
            messages = conflicts.unpredictable if is_of_plant else conflicts.settings
            messages.append(f"a run of this configuration would refuse the result: {message}")
    return conflicts


def _override_box(box: Any, predicted_values: dict[str, Any]) -> Any:
    """Return the box with the result's values, keeping the errors of sensors that the result does not include."""
    values = msgspec.to_builtins(box)
    errors = {**values.get("sensor_error", {}), **predicted_values.get("sensor_error", {})}
    return msgspec.convert({**values, **predicted_values, "sensor_error": errors}, type(box))
