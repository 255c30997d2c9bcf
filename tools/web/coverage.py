"""Plot of the memory, packed for a page: experiences as coloured points over the policy's surface."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import read_file
from onrig.runtime.memory.layout import Flag
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.replay.accounts.telemetry import TdErrorSample, copy_experiences
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.latest import MAX_POLICY_BYTES
from onrig.runtime.view.run_view import RunView
from onrig.tools.web.about import Axis, axes_of

Values = NDArray[np.floating]

UNKNOWN: Final = 255
"""Level of an experience without a value."""
_MAX_LEVEL: Final = 254
_POSITION_SCALE: Final = 8192
"""Packed value that represents one normalised unit; int16 then covers -4 to 4."""
_MIN_TD: Final = 1e-6
_MAX_CHECKPOINT_BYTES: Final = 128 << 20
"""Maximum size of a checkpointed memory for it to be read for a plot."""
COLUMNS: Final = 56
ROWS: Final = 44
_CACHED_SURFACES: Final = 8
_ACTION_SCALE: Final = 127


def stored_memory(view: RunView) -> dict[str, object] | None:
    """Pack the memory in the last checkpoint of a finished run, or return None if it cannot be read."""
    memory = view.memory(_MAX_CHECKPOINT_BYTES)
    if isinstance(memory, str):
        return None
    storage = memory.storage
    sample = copy_experiences(storage, TdErrorSample().select_slots(storage.stored))
    return {**pack_sample(sample, storage.inserted), "stored": storage.stored, "capacity": storage.capacity}


def pack_sample(sample: NDArray[np.void], inserted: int) -> dict[str, object]:
    """Pack a sample (dtype ``shm.view_segment.sample_dtype``) of a memory after ``inserted`` writes.

    ``positions`` contains, for each observation, the normalised values times 8192 as little-endian int16 in base64.
    ``colours`` maps names to {low, high, log, levels}, where the levels are 0 to 254 between low and high (255:
    unknown), one byte each in base64, and spaced logarithmically if ``log`` is true.
    """
    age = np.maximum(inserted - sample["number"], 0).astype(np.float64)
    return {
        "shown": len(sample),
        "positions": [_encode_positions(sample["observation"][:, i]) for i in range(sample["observation"].shape[1])],
        "synthetic": int(np.count_nonzero(sample["flags"] & Flag.SYNTHETIC)),
        "colours": {
            "age": _levels(age),
            "exploration": _levels(sample["exploration"].astype(np.float64), low=0.0),
            "td": _log_levels(sample["abs_td"].astype(np.float64)),
            "reward": _levels(sample["reward"].astype(np.float64)),
        },
    }


def _encode_positions(values: Values) -> str:
    packed = np.clip(np.nan_to_num(values.astype(np.float64)) * _POSITION_SCALE, -32767, 32767).round().astype("<i2")
    return base64.b64encode(packed.tobytes()).decode()


def _levels(values: Values, low: float | None = None) -> dict[str, object]:
    finite_values = values[np.isfinite(values)]
    if not len(finite_values):
        return _pack_levels(np.full(len(values), UNKNOWN, np.uint8), None, None, log=False)
    # Quantiles are used because a single outlier would compress all other values into one colour.
    lowest = float(np.quantile(finite_values, 0.005)) if low is None else low
    highest = float(np.quantile(finite_values, 0.995))
    span = highest - lowest
    fractions = (values - lowest) / span if span > 0 else np.where(np.isfinite(values), 0.0, np.nan)
    return _pack_levels(_encode_levels(fractions), lowest, highest, log=False)


def _log_levels(values: Values) -> dict[str, object]:
    finite_values = values[np.isfinite(values)]
    if not len(finite_values):
        return _pack_levels(np.full(len(values), UNKNOWN, np.uint8), None, None, log=True)
    lowest = max(float(np.quantile(finite_values, 0.05)), _MIN_TD)
    highest = max(float(np.quantile(finite_values, 0.995)), lowest * 1.001)
    fractions = np.log(np.maximum(values, _MIN_TD) / lowest) / np.log(highest / lowest)
    return _pack_levels(_encode_levels(fractions), lowest, highest, log=True)


def _encode_levels(fractions: Values) -> NDArray[np.uint8]:
    is_finite = np.isfinite(fractions)
    levels = np.clip(np.where(is_finite, fractions, 0.0) * _MAX_LEVEL, 0, _MAX_LEVEL).round().astype(np.uint8)
    return np.where(is_finite, levels, np.uint8(UNKNOWN)).astype(np.uint8)


def _pack_levels(levels: NDArray[np.uint8], low: float | None, high: float | None, *, log: bool) -> dict[str, object]:
    return {"low": low, "high": high, "log": log, "levels": base64.b64encode(levels.tobytes()).decode()}


class Surfaces:
    """Surfaces of a run folder's policies, with a small cache; thread-safe."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._policies = folder / "policies"
        self._axes = axes_of(config, config.signals)
        self._config = config
        self._cache: OrderedDict[tuple[int, int, int], dict[str, object]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, policy_id: int, x: int, y: int) -> dict[str, object] | None:
        """Return the surface of a policy over observations ``x`` and ``y``; None if the policy or either is unknown.

        ``levels`` contains COLUMNS x ROWS values for each actuator, row by row from the lowest ``y``, one signed byte
        each in base64; -127 is the actuator's lower limit, 127 its upper limit.
        """
        n = len(self._axes)
        if not (0 <= x < n and 0 <= y < n and x != y and policy_id >= 0):
            return None
        key = (policy_id, x, y)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            surface = self._compute(policy_id, x, y)
            if surface is not None:
                self._cache[key] = surface
                while len(self._cache) > _CACHED_SURFACES:
                    self._cache.popitem(last=False)
            return surface

    def _compute(self, policy_id: int, x: int, y: int) -> dict[str, object] | None:
        x_values, y_values = _cell_centres(self._axes[x], COLUMNS), _cell_centres(self._axes[y], ROWS)
        fixed_values = [a.centre for a in self._axes]
        actions = surface_actions(
            self._policies / f"{policy_id}.onnx", self._config, (x, y), x_values, y_values, fixed_values
        )
        if actions is None:
            return None
        levels = []
        for action, actuator in zip(actions, self._config.rig.actuators, strict=True):
            fractions = np.nan_to_num((action - actuator.centre) / actuator.half_range)
            packed = np.clip(fractions * _ACTION_SCALE, -_ACTION_SCALE, _ACTION_SCALE).round().astype(np.int8)
            levels.append(base64.b64encode(packed.tobytes()).decode())
        return {"policy": policy_id, "x": x, "y": y, "columns": COLUMNS, "rows": ROWS, "levels": levels}


def surface_actions(
    path: Path,
    config: RunConfig,
    axes: tuple[int, int],
    x_values: Sequence[float],
    y_values: Sequence[float],
    fixed_values: Sequence[float],
) -> NDArray[np.float32] | None:
    """Return a policy's actions over two observations, with the others held at ``fixed_values``.

    The actions are in SI units, (actuators, len(y_values), len(x_values)). The result is None if the file contains no
    working policy for this rig.
    """
    try:
        session = PolicySession(read_file(path, MAX_POLICY_BYTES))
    except (OSError, ModelRefused):
        return None
    n_actions = session.action.shape[1]
    if session.observation.shape[1] != len(config.signals) or n_actions != len(config.rig.actuators):
        return None
    actions = np.empty((n_actions, len(y_values), len(x_values)), np.float32)
    x, y = axes
    try:
        session.observation[0] = fixed_values
        for row, y_value in enumerate(y_values):
            session.observation[0, y] = y_value
            for column, x_value in enumerate(x_values):
                session.observation[0, x] = x_value
                session.run()
                actions[:, row, column] = session.action[0]
    except Exception:  # onnxruntime's exceptions have no common base
        return None
    return actions


def _cell_centres(axis: Axis, n: int) -> list[float]:
    step = (axis.high - axis.low) / n
    return [axis.low + (i + 0.5) * step for i in range(n)]
