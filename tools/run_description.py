"""Description of a run's configuration, identical in a terminal, on the page and in the report (pure functions)."""

from __future__ import annotations

from onrig.runtime.run_config import RunConfig, Scaled
from onrig.runtime.safety.plant_box import guaranteed_observations
from onrig.runtime.safety.promise import Basis, promise_of
from onrig.runtime.task import episode_steps
from onrig.tools.quantity import unit_text


def describe_run(config: RunConfig) -> str:
    """Describe the rig, task, length and device of a run with this configuration."""
    steps = episode_steps(config.task, config.rate_hz)
    device = config.device
    parts = (
        f"rig {config.rig.name}",
        f"task {config.task.name}",
        f"{config.episodes} episodes of {steps} steps at {config.rate_hz:g} Hz",
        f"{pace_of(config)} twin" if device.twin is not None else f"device on {device.address}",
    )
    return ", ".join(parts)


def pace_of(config: RunConfig) -> str:
    """Describe the pace of the run's device."""
    pace = config.device.pace
    if isinstance(pace, Scaled):
        return f"{pace.scaled:g}× real-time"
    return "lockstep" if pace == "lockstep" else "real-time"


def describe_bounds(config: RunConfig) -> str:
    """Describe the envelope that the shield enforces, with the basis of each bound: the rig's promise, or the measured
    state.
    """
    box, promised_basis = config.limits.predicted, promise_of(config.limits).basis
    guaranteed_names = () if box is None else guaranteed_observations(box, config.limits.envelope)
    units = {o.name: unit_text(o.unit) for o in config.rig.signals}
    bounds = []
    for name, envelope in config.limits.envelope.items():
        basis = promised_basis if name in guaranteed_names else Basis.MEASURED
        low, high = envelope.low, envelope.high
        range_text = f"±{high:g}" if low == -high else f"{low:g} to {high:g}".replace("-", "−")
        bounds.append(" ".join(filter(None, (name, range_text, units.get(name), f"({basis})"))))
    return "; ".join(bounds) or "nothing"


def describe_promise(config: RunConfig, *, withdrawn: bool = False) -> str:
    """Describe the rig's promise."""
    promise = promise_of(config.limits)
    return f"{promise.basis}, withdrawn: the rig's data contradict it" if withdrawn else str(promise)
