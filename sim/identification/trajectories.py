"""Batched trajectories of many plant variations over many windows, with delayed commands."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.sim.identification.recording import HISTORY, Windows
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import BATCHED, Array, advance, apply_backlash

_STEP_TOLERANCE: Final = 0.05
"""Tolerance of the step count, in steps, so that it is constant for delays near half a period."""


class Pieces(NamedTuple):
    """Commands that reach the plant in each period, up to three in succession."""

    durations_s: tuple[Array, Array, Array]
    """(V, W, L) each."""
    commands: tuple[Array, Array, Array]
    """(V, W, L, m) each."""


def delayed_commands(windows: Windows, delay_s: Array) -> Pieces:
    """Return the windows' commands as they reach the plant after each delay (V,).

    With a delay of q T + f, period k contains the last f seconds of period k - q - 1, then the first T - f of k - q.
    Equal consecutive commands are merged, because the points at which the integration is split affect how dry friction
    stops the plant: a delay would otherwise have an effect even under a constant command.
    """
    period_s = windows.period_s
    late_periods = np.minimum(np.floor(delay_s / period_s), HISTORY - 1).astype(int)
    remainder_s = (delay_s - late_periods * period_s)[:, None, None]
    indices = HISTORY + np.arange(windows.periods)[None, :] - late_periods[:, None]  # (V, L)

    def commands_at(values: Array, shift: int) -> Array:
        return np.moveaxis(values[:, indices + shift], 1, 0)

    previous_tau, tau = commands_at(windows.tau_s, -1), commands_at(windows.tau_s, 0)
    first_s = np.clip(previous_tau - (period_s - remainder_s), 0.0, remainder_s)
    last_s = np.clip(period_s - remainder_s - tau, 0.0, period_s - remainder_s)
    commands = (commands_at(windows.u_start, -1), commands_at(windows.u_end, -1), commands_at(windows.u_end, 0))
    first_s, last_s = (
        np.where((commands[1] == command).all(axis=-1), 0.0, duration_s)
        for command, duration_s in ((commands[0], first_s), (commands[2], last_s))
    )
    return Pieces((first_s, period_s - first_s - last_s, last_s), commands)


def simulate(plant: Plant, starts: Array, windows: Windows, delay_s: Array, substeps: int) -> Array:
    """Return states (V, W, L + 1, n) from starts (V, W, n), for a plant whose parameters are numbers or arrays (V, 1).

    ``substeps``: integration steps per period, as in the twin; each part of a period gets its share, rounded up.
    """
    pieces = delayed_commands(windows, delay_s)
    steps = [_steps(substeps * float(np.max(d)) / windows.period_s) for d in pieces.durations_s]
    state = tuple(np.moveaxis(starts, -1, 0))
    states = np.empty((*starts.shape[:2], windows.periods + 1, starts.shape[2]))
    states[:, :, 0] = starts
    n_actions = windows.u_end.shape[2]
    backlash_output = _initial_backlash(plant, windows)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(windows.periods):
            for duration_s, command, n in zip(pieces.durations_s, pieces.commands, steps, strict=True):
                if n:
                    action = tuple(command[:, :, k, j] for j in range(n_actions))
                    if backlash_output and plant.backlash is not msgspec.UNSET:
                        action = backlash_output = apply_backlash(BATCHED, plant.backlash, backlash_output, action)
                    state = advance(plant, state, action, duration_s[:, :, k], n)
            for i, component in enumerate(state):
                states[:, :, k + 1, i] = component
    return states


def _initial_backlash(plant: Plant, windows: Windows) -> tuple[Array, ...]:
    """Return the backlash output before each window (W,), from the commands before it; empty without backlash."""
    width = plant.backlash
    if width is msgspec.UNSET:
        return ()
    output: tuple[Array, ...] = tuple(windows.u_end[:, 0].T)
    for k in range(1, HISTORY):
        output = apply_backlash(BATCHED, width, output, tuple(windows.u_end[:, k].T))
    return output


def _steps(steps: float) -> int:
    """Return the integration steps for a part of a period, rounded up with a tolerance."""
    return 0 if steps <= 0.0 else max(1, math.ceil(steps - _STEP_TOLERANCE))
