"""The policies of a run, asked again: what would the one that acted then do in another state?"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.policy.refusal import ModelRefused
from onrig.runtime.policy.session import PolicySession

_KEPT: Final = 4


class FiledPolicies:
    """Policies from a run's folder ``policies/``, where each lies from its admission on."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._folder, self._n_act = folder, len(rig.actuators)
        self._centre = np.array([0.5 * (o.low + o.high) for o in rig.signals])
        self._half = np.array([0.5 * (o.high - o.low) for o in rig.signals])
        self._action_centre = np.array([a.centre for a in rig.actuators])
        self._action_half = np.array([a.half_range for a in rig.actuators])
        self._sessions: dict[int, PolicySession | None] = {}

    def actions(self, policy_ids: NDArray[np.uint32], observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return (k, m) actions of (k,) policies at (k, n_obs) observations, normalised; NaN where one is not filed."""
        seen = (self._centre + self._half * observations).astype(np.float32)
        answers = np.full((len(seen), self._n_act), np.nan)
        for i, policy_id in enumerate(policy_ids.tolist()):
            session = self._session(policy_id)
            if session is None:
                continue
            session.observation[0] = seen[i]
            session.run()
            answers[i] = session.action[0]
        normalised: NDArray[np.float64] = (answers - self._action_centre) / self._action_half
        return normalised

    def _session(self, policy_id: int) -> PolicySession | None:
        if policy_id in self._sessions:
            return self._sessions[policy_id]
        try:
            session: PolicySession | None = PolicySession((self._folder / f"{policy_id}.onnx").read_bytes())
        except (OSError, ModelRefused):
            session = None
        while len(self._sessions) >= _KEPT:
            del self._sessions[min(self._sessions)]
        self._sessions[policy_id] = session
        return session
