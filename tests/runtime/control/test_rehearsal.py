from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.rehearsal import Rehearsal
from onrig.runtime.explore.noise import unit_signal
from onrig.runtime.explore.settings import Exploration
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment
from tests.runtime.samples import PENDULUM

Signal = list[tuple[float, ...]]


def test_no_rehearsal_draws_the_signal_of_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1 kHz that takes 7 ms, which would cost seven ticks in every 256."""
    drawn_steps: list[int] = []

    def record_draw(exploration: Exploration, rng: np.random.Generator, steps: int, dimensions: int) -> Signal:
        drawn_steps.append(steps)
        return unit_signal(exploration, rng, steps, dimensions)

    monkeypatch.setattr("onrig.runtime.explore.explorer.unit_signal", record_draw)
    switch = PolicySwitch(PolicySlot(Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA)))
    rehearsal = Rehearsal(PENDULUM, switch)
    for _ in range(600):
        rehearsal.run()
    assert not drawn_steps
