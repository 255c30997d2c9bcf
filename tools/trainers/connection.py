"""Connection of a third-party learner to a rig: the memory as arrays, feedback and policies."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.attachment import Attachment, LearnerMismatchError, Role
from onrig.learner.mirror import Mirror
from onrig.runtime.files import read_file
from onrig.runtime.link.client import PATIENCE_S, LinkClient
from onrig.runtime.link.keys import load_learner_keys
from onrig.runtime.link.messages import (
    LINK_VERSION,
    Attach,
    Attached,
    Confirm,
    Done,
    Feedback,
    Leave,
    Offer,
    Pull,
    Ruling,
    Verdict,
)
from onrig.runtime.memory.layout import Flag
from onrig.runtime.policy.contract import METADATA_KEY, PolicyContract, contract_for
from onrig.runtime.policy.stamp import stamp_contract
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import read_resolved
from onrig.runtime.run_state.running import find_running
from onrig.runtime.shm.latest import MAX_POLICY_BYTES
from onrig.tools.load import sections

_HEARTBEAT_S: Final = 5.0
"""Maximum time between requests; the rig ends a learner's lease after 30 s without a request."""


class Experiences(NamedTuple):
    """B experiences.

    Observations and actions are normalised by the rig's ranges; rewards are in the task's raw units.
    """

    observation: NDArray[np.float32]
    """(B, n)."""
    action: NDArray[np.float32]
    """(B, m): actions as applied."""
    reward: NDArray[np.float32]
    """(B,)."""
    next_observation: NDArray[np.float32]
    """(B, n)."""
    terminated: NDArray[np.bool_]
    """(B,): whether the next state is terminal; time limits do not count."""
    slots: NDArray[np.int64]
    """(B,): slots in the memory."""
    generations: NDArray[np.uint32]
    """(B,): number of writes to each slot; feedback on an overwritten slot is ignored."""


class PullResult(NamedTuple):
    """Changes since the last pull."""

    slots: NDArray[np.int64]
    """Slots that were written, in order."""
    closed: int
    """Number of complete training episodes in the memory."""
    rulings: tuple[Ruling, ...]
    """Outcomes of probations."""
    ending: bool
    """Whether the run has ended."""


@contextmanager
def connect(
    endpoint: str | Path, keys: str | Path | None = None, *, role: Role = "push", patience_s: float = PATIENCE_S
) -> Iterator[LearnerLink]:
    """Connect to a rig as a learner.

    ``endpoint`` is ``tcp://HOST:PORT`` (with ``keys``, a folder of `onrig keys`), ``ipc://PATH``, or the folder of a
    run on this machine. ``role`` is ``push``, or ``watch`` to only mirror the memory. The run needs
    ``local_learner=false``. Raises FileNotFoundError if no run is active in the folder, LinkClosed if the rig does not
    reply within ``patience_s`` (when connecting or later), and LeaseLost if another learner pushes.
    """
    address = str(endpoint)
    if "://" not in address:
        running = find_running(Path(address))
        if running is None:
            raise FileNotFoundError(f"{address}: no run is active in this folder")
        address = f"ipc://{running.shm}/learner"
    learner_keys = None if keys is None else load_learner_keys(Path(keys).expanduser())
    client = LinkClient(address, lambda: False, learner_keys, patience_s)
    try:
        link = LearnerLink(client, role)
        try:
            yield link
        finally:
            link.close()
    finally:
        client.post(Leave())
        client.close()


class LearnerLink:
    """Connection to a rig that keeps a bit-exact mirror of the rig's memory and sends feedback and policies.

    A thread sends heartbeats while the learner computes.
    """

    def __init__(self, client: LinkClient, role: Role) -> None:
        """Attach to the rig. Raises LearnerMismatchError, LinkClosed, RequestRejected."""
        self._client, self._lock = client, threading.Lock()
        self.config = _fetch_config(client)
        """Configuration of the rig's run."""
        self._rulings: list[Ruling] = []
        self._link = Attachment(self.config, client, role, on_ruling=self._rulings.append)
        self.attached: Attached = self._link.attach()
        """The rig's reply: ``pushes`` is true if it accepts policies and feedback; otherwise, ``why`` is the reason."""
        self._batch = time.time_ns()
        self._start_s = time.monotonic()
        self.updates = 0
        """Number of updates last reported with ``done`` or ``offer``."""
        self._last_request_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="onrig-heartbeat", daemon=True)
        self._thread.start()

    # -- the memory --------------------------------------------------------------------------------------------------

    def pull(self, wait_s: float = 0.2) -> PullResult:
        """Mirror all new experiences, waiting up to ``wait_s`` for the first one."""
        new_slots: list[NDArray[np.int64]] = []
        wait_ms = round(1000 * wait_s)
        while True:
            with self._lock:
                rows, slots = self._link.pull(self._closed, wait_ms)
                self._last_request_s = time.monotonic()
            self._closed = rows.closed
            new_slots += [] if slots is None else [slots]
            if rows.upto >= rows.inserted or slots is None:
                break
            wait_ms = 0
        rulings, self._rulings[:] = tuple(self._rulings), []
        return PullResult(np.concatenate([np.zeros(0, np.int64), *new_slots]), rows.closed, rulings, rows.ending)

    _closed = 0

    @property
    def stored(self) -> int:
        """Number of experiences in the memory, in slots 0 to ``stored`` - 1."""
        return self._mirror.storage.stored

    @property
    def _mirror(self) -> Mirror:
        assert self._link.mirror is not None
        return self._link.mirror

    def experiences(self, slots: NDArray[np.int64] | None = None) -> Experiences:
        """Return copies of the experiences in ``slots`` (B,), by default all."""
        storage = self._mirror.storage
        slot_indices = np.arange(storage.stored) if slots is None else np.asarray(slots, np.int64)
        terminated = (storage.meta[slot_indices] & np.uint32(Flag.TERMINATED)) != 0
        observation, next_observation = storage.observation[slot_indices], storage.next_observation[slot_indices]
        return Experiences(
            observation,
            storage.action[slot_indices],
            storage.reward[slot_indices],
            next_observation,
            terminated,
            slot_indices,
            storage.generation(slot_indices),
        )

    def sample(self, batch: int, rng: np.random.Generator) -> Experiences:
        """Draw ``batch`` experiences uniformly with replacement. Raises ValueError if the memory is empty."""
        return self.experiences(rng.integers(self.stored, size=batch))

    # -- to the rig ----------------------------------------------------------------------------------------------------

    def feedback(self, replayed: Experiences, values: Mapping[str, NDArray[np.floating]]) -> None:
        """Send feedback on replayed experiences; ``values`` maps ``td`` (TD errors), ``far`` or ``kl`` to (B,) each."""
        self._batch += 1
        rows = np.stack([np.asarray(value, np.float64) for value in values.values()])
        self._ask(
            Feedback(self._batch, tuple(values)),
            replayed.slots.astype("<i8").tobytes(),
            replayed.generations.astype("<u4").tobytes(),
            rows.astype("<f4").tobytes(),
        )

    def offer(self, policy: bytes | str | Path | Any, updates: int | None = None) -> Verdict:
        """Offer a policy, and return the rig's verdict: the id that it assigned, or the stage and reason of a refusal.

        ``policy`` is an ONNX model (bytes or file), to which the rig's contract is added unless it has one, or a torch
        module. The module must be a sequence of layers from normalised observations to normalised actions, of which the
        last is Tanh or Hardtanh. Raises ModelRefused for bytes that are not an ONNX model.
        """
        self.updates = self.updates if updates is None else updates
        if isinstance(policy, str | Path):
            policy = read_file(Path(policy), MAX_POLICY_BYTES)
        if isinstance(policy, bytes):
            model = policy if METADATA_KEY.encode() in policy else stamp_contract(policy, self.contract)
        else:
            from onrig.tools.examples.export_sb3 import export

            model = export([*policy], self.contract)
        verdict = self._ask(Offer(self.updates), model)
        if not isinstance(verdict, Verdict):
            raise LearnerMismatchError("the rig sent an unexpected reply to an offer")
        return verdict

    def done(self, episode: int, updates: int) -> None:
        """Report that the updates for a training episode (0: before the first) are done.

        In lockstep, the rig waits for this report and compares the mirror's digest with its own memory's, so the mirror
        must be complete.
        """
        self.updates = updates
        if self.attached.lockstep and episode > 0:
            self._ask(Confirm(episode, self._mirror.storage.digest()))
        self._ask(Done(episode, updates, updates / max(time.monotonic() - self._start_s, 1e-3)))

    @property
    def contract(self) -> PolicyContract:
        """Contract that policies for this rig must have."""
        config = self.config
        return contract_for(
            config.rig, config.rate_hz, policy_id=1, parent_run=self.attached.run_id, training_step=self.updates,
            signals=config.signals,
        )  # fmt: skip

    def close(self) -> None:
        """Stop the heartbeats."""
        self._stop.set()
        self._thread.join()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _ask(self, request: Any, *payloads: bytes) -> Any:
        with self._lock:
            self._last_request_s = time.monotonic()
            return self._link.ask(request, *payloads)

    def _send_heartbeats(self) -> None:
        """Pull and discard a row at regular intervals while the learner sends no requests.

        The next pull receives the row again.
        """
        while not self._stop.wait(_HEARTBEAT_S / 5):
            with self._lock:
                if time.monotonic() - self._last_request_s < _HEARTBEAT_S:
                    continue
                self._last_request_s = time.monotonic()
                try:
                    self._client.ask(Pull(self._mirror.storage.inserted, self._closed, 0, 1))
                except Exception:  # the learner's next request raises the same error
                    continue


def _fetch_config(client: LinkClient) -> RunConfig:
    attached, _ = client.ask(Attach(LINK_VERSION, os.urandom(16), "watch", b""))
    if not isinstance(attached, Attached):
        raise LearnerMismatchError("the rig sent an unexpected reply to attach")
    return read_resolved(attached.config, "the rig's configuration", sections)
