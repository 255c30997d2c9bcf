"""The policy as a surface: its action over two observations, the others in the middle of their ranges."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

import numpy as np

from onrig.runtime.policy.refusal import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.latest import MAX_POLICY_BYTES
from onrig.tools.web.axes import Axis, axes_of

COLUMNS: Final = 56
ROWS: Final = 44
_KEPT: Final = 8
_TOP: Final = 127


class Surfaces:
    """Evaluates policies of a run folder on a grid, and keeps the last few; safe to ask from several threads."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._policies = folder / "policies"
        self._axes = axes_of(config)
        self._actuators = config.rig.actuators
        self._kept: OrderedDict[tuple[int, int, int], dict[str, object]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, policy_id: int, x: int, y: int) -> dict[str, object] | None:
        """Give the surface of a policy over observations ``x`` and ``y``; None where there is none to be had.

        ``levels``: per actuator COLUMNS x ROWS values, row by row from the lowest ``y`` on, one signed byte each in
        base64: -127 is the actuator's lower limit, 127 its upper one.
        """
        n = len(self._axes)
        if not (0 <= x < n and 0 <= y < n and x != y and policy_id >= 0):
            return None
        key = (policy_id, x, y)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            made = self._make(policy_id, x, y)
            if made is not None:
                self._kept[key] = made
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return made

    def _make(self, policy_id: int, x: int, y: int) -> dict[str, object] | None:
        path = self._policies / f"{policy_id}.onnx"
        try:
            if path.stat().st_size > MAX_POLICY_BYTES:
                return None
            session = PolicySession(path.read_bytes())
        except (OSError, ModelRefused):
            return None
        if session.observation.shape[1] != len(self._axes) or session.action.shape[1] != len(self._actuators):
            return None
        observation = session.observation
        observation[0] = [a.middle for a in self._axes]
        actions = np.empty((ROWS, COLUMNS, len(self._actuators)), np.float32)
        try:
            for row, value in enumerate(_cells(self._axes[y], ROWS)):
                observation[0, y] = value
                for column, other in enumerate(_cells(self._axes[x], COLUMNS)):
                    observation[0, x] = other
                    session.run()
                    actions[row, column] = session.action[0]
        except Exception:  # onnxruntime's exceptions have no common base
            return None
        levels = []
        for j, actuator in enumerate(self._actuators):
            share = np.nan_to_num((actions[:, :, j] - actuator.centre) / actuator.half_range)
            packed = np.clip(share * _TOP, -_TOP, _TOP).round().astype(np.int8)
            levels.append(base64.b64encode(packed.tobytes()).decode())
        return {"policy": policy_id, "x": x, "y": y, "columns": COLUMNS, "rows": ROWS, "levels": levels}


def _cells(axis: Axis, n: int) -> list[float]:
    """Centres of ``n`` cells over an axis."""
    step = (axis.high - axis.low) / n
    return [axis.low + (i + 0.5) * step for i in range(n)]
