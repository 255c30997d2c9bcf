from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.learner.mirror import Mirror
from onrig.learner.process import Connection, LearnerProcess
from onrig.runtime.link.messages import Accepted, Attached, Done, Offer, ReplyMessage, RequestMessage, Rows, Verdict
from onrig.runtime.replay.memory.layout import Layout, Slots
from onrig.runtime.replay.memory.storage import Storage
from onrig.runtime.replay.settings import Selection
from onrig.runtime.run_loading import load_run

CAPACITY = 32
EACH = 60
"""Writes per episode, so that slots are rewritten within one."""
EPISODES = 2


class Rig:
    """The other end of the link: its memory grows by ``steps`` writes between two pulls."""

    def __init__(self, steps: list[int], *, lockstep: bool = True) -> None:
        self.lockstep = lockstep
        self.now_s = 0.0
        self.offers: list[Offer] = []
        self.memory = Storage(CAPACITY, Layout(2, 1), cyclic=False)
        self.mirror = Mirror(CAPACITY, Layout(2, 1), cyclic=False)
        self._ends = [*np.cumsum(steps).tolist()]
        self._rng = np.random.default_rng(3)

    def attach(self) -> Attached:
        return Attached("run", b"", CAPACITY, False, 0, 0, 1, self.lockstep, done=0, pushes=True)

    def pull(self, closed: int, wait_ms: int) -> tuple[Rows, Slots | None]:
        upto = self._ends.pop(0) if wait_ms and self._ends else self.memory.inserted
        while self.memory.inserted < upto:
            slot = self.memory.inserted if self.memory.inserted < CAPACITY else int(self._rng.integers(CAPACITY))
            x = self._rng.uniform(-1, 1, 6).tolist()
            self.memory.insert(slot, x[:2], x[2:3], x[5], x[3:5])
        slots = self.memory.changed_since(self.mirror.storage.inserted)
        payload = self.memory.rows(slots).astype("<u4").tobytes()
        ending = wait_ms > 0 and closed == EPISODES
        return Rows(upto, upto, upto // EACH, ending), self.mirror.apply(payload, upto) if payload else None

    def ask(self, request: RequestMessage, *payloads: bytes) -> ReplyMessage:
        if isinstance(request, Offer):
            self.offers.append(request)
            return Verdict(1, True)
        if isinstance(request, Done):
            self.now_s += 0.4
        return Accepted()

    def episode_return(self, episode: int) -> float:
        return float(episode)


def learned(rig: Rig, strategy: str, folder: Path) -> LearnerProcess:
    """A learner after its run on ``rig``, whose clock it has."""
    config = load_run("pendulum")
    config = msgspec.structs.replace(config, episodes=EPISODES, selection=Selection(strategy, CAPACITY))
    config = msgspec.structs.replace(config, learner={**config.learner, "updates_per_episode": 3})
    process = LearnerProcess(config, Connection(f"ipc://{folder}/nobody"), folder, [False])
    process._link = process._offering._link = rig  # type: ignore[assignment]
    process._offering._clock_s = lambda: rig.now_s
    process.run()
    return process


def state_after(steps: list[int], strategy: str, folder: Path) -> dict[str, object]:
    """State that a learner in lockstep saves when the memory grows so."""
    process = learned(Rig(steps), strategy, folder)
    path = folder / "last.npz"
    process._agent.save(path)
    process.close()
    with np.load(path) as saved:
        return {name: saved[name].tobytes() for name in saved.files}


@pytest.mark.parametrize("strategy", ["Resv[ERO]", "Resv[PER]"])
def test_in_lockstep_it_does_not_matter_what_each_pull_brings(strategy: str, tmp_path: Path) -> None:
    states = []
    for i, steps in enumerate([[EACH, EACH], [7, 40, 13, 1, 58, 1], [59, 1, 30, 30]]):
        (tmp_path / str(i)).mkdir()
        states.append(state_after(steps, strategy, tmp_path / str(i)))

    for one, other in pairwise(states):
        assert [name for name in one if one[name] != other[name]] == []


def test_a_learner_that_is_behind_offers_what_it_has_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.EPISODES", 10)
    rig = Rig([EACH * 10], lockstep=False)  # ten episodes have ended when it looks for the first time
    learned(rig, "FIFO[Uniform]", tmp_path).close()
    # The first one at the start; then every third, since each takes 0.4 s; and that of the last.
    assert [offer.updates for offer in rig.offers] == [0, 9, 18, 27, 30]
