"""A learner that only mirrors the memory of a run."""

from __future__ import annotations

import msgspec

from onrig.learner.mirror import Mirror
from onrig.runtime.link.client import LinkClient
from onrig.runtime.link.messages import Attach, Attached, Pull, Rows
from onrig.runtime.memory.layout import Layout
from onrig.runtime.run_loading import load_resolved
from tests.lab.rig.run import Run


class Observer:
    """Observer that attaches when it is created."""

    def __init__(self, run: Run) -> None:
        self._client = LinkClient(f"ipc://{run.shm}/learner", lambda: False)
        attached, _ = self._client.ask(Attach(role="watch"))
        assert isinstance(attached, Attached)
        rig = load_resolved(run.folder / "config.yaml").rig
        layout = Layout(len(rig.signals), len(rig.actuators), attached.behaviour)
        self.mirror = Mirror(attached.capacity, layout, cyclic=attached.cyclic)

    def pull(self, wait_ms: int) -> Rows:
        """Apply the new rows."""
        rows, payloads = self._client.ask(Pull(self.mirror.storage.inserted, closed=1 << 32, wait_ms=wait_ms))
        assert isinstance(rows, Rows)
        self.mirror.apply(payloads[0], rows.upto)
        return rows

    def follow(self) -> None:
        """Apply everything up to the end of the run."""
        while not self.pull(1000).ending:
            pass
        self._client.close()

    @property
    def digest(self) -> str:
        """Hash of the mirror, comparable to that of the memory in a summary."""
        return self.mirror.storage.digest().hex()


def digest_of(run: Run) -> object:
    """Hash of the memory in the summary."""
    return msgspec.convert(run.summary()["buffer"], dict[str, object])["digest"]
