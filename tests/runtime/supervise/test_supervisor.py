"""What a supervisor does where it fails itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.supervise.supervisor import Supervisor
from tests.runtime.samples import PENDULUM


class Ended:
    """A child that notes how long it was given."""

    def __init__(self, name: str, graces: dict[str, float]) -> None:
        self.name, self._graces = name, graces

    def end(self, grace_s: float, *, ask: bool = True) -> int:
        assert ask
        self._graces[self.name] = grace_s
        return 0

    def close(self) -> None:
        pass


def test_a_supervisor_that_fails_lets_the_loop_disarm_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graces: dict[str, float] = {}

    def fail(self: Supervisor) -> tuple[int, str]:
        self.started = True
        vars(self)["_children"] = {name: Ended(name, graces) for name in ("device", "replay", "learner", "control")}
        raise RuntimeError("out of order")

    monkeypatch.setattr(Supervisor, "_supervise", fail)
    supervisor = Supervisor(PENDULUM, tmp_path, None, lambda report: None)
    with pytest.raises(RuntimeError, match="out of order"):
        supervisor.run()
    supervisor._chronicle.close(70, "out of order")
    assert list(graces) == ["control", "learner", "replay", "device"]
    assert graces["control"] >= 1.0
    assert graces["learner"] == graces["replay"] == graces["device"] == 0.0
