"""The safe set as a picture: phase plane of a pendulum, positions and speeds of a magnetic manipulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.magman import MagmanBox, MagmanPrediction
from onrig.runtime.safety.pendulum import PendulumBox, cases
from onrig.runtime.safety.phase_plane import LEVELS, NODES, upper_side
from onrig.tools.safety_case.plants import Values, advance, physics_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 701


def draw_safe_set(configs: list[RunConfig], path: Path) -> None:
    """Draw one panel per configuration with a prediction; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(configs), figsize=(6.2 * len(configs), 5.2), layout="constrained", squeeze=False)
    for config, ax in zip(configs, axes[0], strict=True):
        plants = config.limits.predicted
        if isinstance(plants, PendulumBox):
            _pendulum(config, plants, ax)
        elif isinstance(plants, MagmanBox):
            _magman(config, plants, ax)
        ax.set_title(config.rig.name)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _pendulum(config: RunConfig, plants: PendulumBox, ax: Axes) -> None:
    upper, lower = cases(plants, config.limits.setting(config.rig, config.period_us * 1e-6))
    angle = np.linspace(-np.pi, np.pi, NODES, endpoint=False)
    high, low = upper_side(upper), upper_side(lower)

    def lower_curve(curve: Values) -> Values:
        """The mirrored side's curve at the same angles: at -pi its own value, else that at the opposite angle."""
        return -np.roll(curve[::-1], 1)

    def both(a: Values, b: Values, label: str, color: str, ls: str = "-") -> None:
        ax.plot(angle, a, label=label, color=color, ls=ls, lw=1.2)
        ax.plot(angle, lower_curve(b), color=color, ls=ls, lw=1.2)

    ax.fill_between(angle, lower_curve(low.safe), high.safe, color="#bfe3c3", label="safe set S")
    ax.axhline(upper.limit, color="tab:red", lw=1.2, label="envelope")
    ax.axhline(-lower.limit, color="tab:red", lw=1.2)
    both(high.fallback, low.fallback, "full brake still keeps the envelope", color="tab:purple")
    middle = (LEVELS - 1) // 2
    both(high.passing[-1], low.passing[-1], "full voltage along the motion passes", color="tab:blue")
    both(high.passing[middle], low.passing[middle], "0 V passes", color="tab:blue", ls=":")
    both(high.passing[0], low.passing[0], "full voltage against it passes", color="tab:blue", ls="--")
    path = _swing_up(config, plants)
    ax.plot(path[0], path[1], ".", ms=1.2, color="0.25", label="a swing-up (nominal plant)")
    ax.set(xlim=(-np.pi, np.pi), xlabel="angle (rad), 0 hangs", ylabel="velocity (rad/s)")
    ax.legend(loc="upper center", fontsize=7, ncols=2, bbox_to_anchor=(0.5, -0.12))


def _swing_up(config: RunConfig, plants: PendulumBox) -> Values:
    """Path (2, n) of energy control to the upright, without a shield."""
    physics = physics_of(plants, config.rig)
    state, parts, step_s = np.array([[0.01], [0.0]]), [], np.array([config.period_us * 1e-6 / 10])
    a = plants.gravity_per_s2
    command = np.zeros((1, 1))
    for k in range(2000):
        if k % 10 == 0:
            missing = a * (1 + np.cos(state[0])) - 0.5 * state[1] ** 2
            command = 3.0 * np.clip(missing / (0.1 * a), -1, 1)[None, :] * np.where(state[1] >= 0, 1.0, -1.0)
        state, _ = advance(physics, physics.nominal[:, None], state, command, step_s, 1)
        state = physics.constrain(state)
        parts.append(state[:, 0])
    return np.array(parts).T


def _magman(config: RunConfig, plants: MagmanBox, ax: Axes) -> None:
    prediction = MagmanPrediction(plants, config.limits.setting(config.rig, config.period_us * 1e-6))
    envelope = config.limits.envelope[plants.velocity]
    names = [o.name for o in config.rig.observations]
    track = config.rig.observations[names.index(plants.position)]
    position = np.linspace(track.low, track.high, _POINTS)

    def fastest(command: tuple[float, ...]) -> Values:
        """Highest speed at each position at which a command passes."""
        speeds = []
        for x in position.tolist():
            low, high = 0.0, envelope.high
            for _ in range(20):
                v = 0.5 * (low + high)
                state = [x if n == plants.position else v for n in names]
                low, high = (low, v) if prediction.judge(state, command)[0] else (v, high)
            speeds.append(low)
        return np.array(speeds)

    n = len(config.rig.actuators)
    most = [config.limits.range.get(a.name, (a.low, a.high))[1] for a in config.rig.actuators]
    off, everything = fastest((0.0,) * n), fastest(tuple(most))
    second = [a.name for a in config.rig.actuators].index(list(plants.magnets)[min(1, len(plants.magnets) - 1)])
    one = fastest(tuple([m if i == second else 0.0 for i, m in enumerate(most)]))
    ax.fill_between(position, -off, off, color="#bfe3c3", label="coils off passes: safe set S")
    ax.axhline(envelope.high, color="tab:red", lw=1.2, label="envelope")
    ax.axhline(envelope.low, color="tab:red", lw=1.2)
    for sign in (1, -1):
        ax.plot(position, sign * one, color="tab:blue", lw=1.2, label="second coil full passes" if sign > 0 else None)
        ax.plot(
            position, sign * everything, color="tab:blue", lw=1, ls="--", label="all full passes" if sign > 0 else None
        )
    for x in plants.magnets.values():
        ax.axvline(x, color="0.6", lw=0.6, ls=":")
    ax.set(xlim=(track.low, track.high), xlabel="position (m), dotted: magnets", ylabel="velocity (m/s)")
    ax.legend(loc="upper center", fontsize=7, ncols=2, bbox_to_anchor=(0.5, -0.12))
