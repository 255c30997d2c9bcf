"""The policies of a run by their ids, as sessions ready to be asked."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession

_KEPT: Final = 8


class PolicyShelf:
    """Builds the session of a policy when it is first asked for, and keeps the last ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions: OrderedDict[int, PolicySession | None] = OrderedDict()
        self.missing: dict[int, str] = {}
        """Policies that cannot be asked, and why."""

    def take(self, policy_id: int) -> PolicySession | None:
        """Return the session of a policy; None (and noted) where there is none."""
        if policy_id in self._sessions:
            self._sessions.move_to_end(policy_id)
            return self._sessions[policy_id]
        session: PolicySession | None = None
        path = self._folder / f"{policy_id}.onnx"
        try:
            session = PolicySession(path.read_bytes())
        except OSError as error:
            self.missing[policy_id] = f"{path}: {error.strerror}"
        except ModelRefused as refusal:
            self.missing[policy_id] = f"{path}: {refusal}"
        self._sessions[policy_id] = session
        if len(self._sessions) > _KEPT:
            self._sessions.popitem(last=False)
        return session
