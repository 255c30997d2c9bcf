"""Admission of offered policies: each is either refused, or given an id, stored and passed to the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.link.messages import RATE, Verdict
from onrig.runtime.policy.admission import Refused
from onrig.runtime.policy.session import evaluator_of
from onrig.runtime.record import MAX_POLICY_ID
from onrig.runtime.replay.learners.admission_rate import AdmissionRate
from onrig.runtime.replay.learners.admission_terms import Examination
from onrig.runtime.replay.learners.policy_folder import PolicyFolder
from onrig.runtime.replay.learners.policy_watch import RolledBackList, policy_digest
from onrig.runtime.shm.latest import PolicySlot

_MAX_REMEMBERED: Final = 64
"""Maximum number of admitted policies, and of refused ones, that are remembered to answer repeated offers."""

_TOO_SOON: Final = Verdict(
    0, accepted=False, stage=RATE, reason="too soon after the last offer; offer a newer policy later"
)

EventWriter = Callable[..., None]
K = TypeVar("K")
V = TypeVar("V")


class PolicyAdmission:
    """Checks each policy once, whoever offers it and however often.

    A policy is identified by its bytes.  Admitted policies receive consecutive ids; the id in a policy's contract is
    ignored. ``rate`` limits the checks (None: no limit); ``folder`` decides which files are kept.
    """

    def __init__(
        self,
        examination: Examination,
        slot: PolicySlot,
        folder: PolicyFolder,
        event: EventWriter,
        rate: AdmissionRate | None = None,
    ) -> None:
        self._examination, self._slot, self._folder = examination, slot, folder
        self._event, self._rate = event, rate
        self._admitted_ids: dict[bytes, int] = {}
        self._refusals: dict[bytes, Verdict] = {}
        self._training_steps: dict[int, int] = {}
        self._native: dict[int, bool] = {}
        """Whether the C library evaluates each policy, keyed by its id."""
        self._expected_ids: dict[bytes, int] = {}
        """Ids of policies that will be offered again, keyed by digest."""
        self.n_offered = self.n_admitted = self.n_refused = 0
        self.n_too_soon = 0
        """Number of offers that the rate limit refused without a check."""
        self.active_id = 0
        """Id of the policy admitted last."""
        self._acting_id = self._n_dropped = 0
        self._rolled_back = RolledBackList(folder.root)
        if self._rolled_back.damaged:
            event("rolled_back_unreadable", reason=self._rolled_back.damaged)
        if not folder.repeats_checks:
            self._take_over()

    def _take_over(self) -> None:
        """Continue from the newest policy that a previous replay process passed to the loop, if any.

        It is unknown which of these policies have acted, so all their files are kept.
        """
        newest_policy = self._slot.peek()
        if newest_policy is None:
            return
        if newest_policy.policy_id > self._folder.newest_id:  # the previous process was killed before filing this one
            self._file(newest_policy.policy_id, newest_policy.model)
        _remember(self._admitted_ids, policy_digest(newest_policy.model), newest_policy.policy_id)
        _remember(self._native, newest_policy.policy_id, newest_policy.is_native)
        self.active_id = newest_policy.policy_id

    @property
    def next_id(self) -> int:
        """Id for the next admitted policy."""
        return self._folder.newest_id + 1

    def counts(self) -> dict[str, int]:
        """Return the counts for a checkpoint."""
        return {
            "offered_policies": self.n_offered,
            "admitted_policies": self.n_admitted,
            "refused_policies": self.n_refused,
            "too_soon_policies": self.n_too_soon,
            "next_policy": self.next_id,
            "acted_policy": self._folder.last_acted_id,
            "rolled_back_policies": self.rolled_back,
        }

    def reserve_ids(self, policy_id: int) -> None:
        """Reserve all ids up to this one, because the run's files refer to them even if the policies were lost."""
        self._folder.newest_id = max(self._folder.newest_id, policy_id)

    def resume(self, counts: Mapping[str, int]) -> None:
        """Continue from a checkpoint's counts."""
        self.n_offered = counts["offered_policies"]
        self.n_admitted = counts["admitted_policies"]
        self.n_refused = counts["refused_policies"]
        self.n_too_soon = counts.get("too_soon_policies", 0)
        newest_id = counts["next_policy"] - 1
        self._folder.resume(newest_id, counts.get("acted_policy", newest_id))

    def repeat_after(self, newest_id: int) -> None:
        """Expect repeated offers of the policies after ``newest_id``, which the loop already has (lockstep).

        The same bytes are given the same ids again.
        """
        for policy_id in self._folder.ids():
            if policy_id > newest_id:
                with contextlib.suppress(OSError):  # damaged since then, so it will get a different id
                    self._expected_ids[policy_digest(self._folder.model(policy_id))] = policy_id

    def submit_filed(self) -> None:
        """Pass to the loop the newest policy that the previous process stored but did not pass on (real time)."""
        newest_policy = self._slot.peek()
        self.reinstate(above_id=0 if newest_policy is None else newest_policy.policy_id)

    def reinstate(self, above_id: int = 0) -> int:
        """Put the newest stored policy that is still admissible and has an id above ``above_id`` into the slot.

        Return its id, or 0 if the run has no such policy.  Its latency is not checked again.
        """
        for policy_id in reversed(self._folder.ids()):
            if policy_id <= above_id:
                break
            if self._rolled_back.contains_id(policy_id):
                continue
            try:
                model = self._folder.model(policy_id)
            except OSError as error:
                self._event("policy_not_reinstated", policy=policy_id, reason=error.strerror or str(error))
                continue
            if self._rolled_back.find(policy_digest(model)) is not None:
                continue
            result = self._examination.repeat(model)
            if isinstance(result, Refused):
                self._event("policy_not_reinstated", policy=policy_id, reason=result.reason)
                continue
            self.active_id = policy_id
            self._slot.put(policy_id, model, is_native=result.native)
            self._event("policy_reinstated", policy=policy_id, evaluator=evaluator_of(native=result.native))
            return policy_id
        return 0

    # -- offers ------------------------------------------------------------------------------------------------------

    def admit(
        self,
        model: bytes,
        recorded_observations: NDArray[np.float32],
        *,
        learner: str = "local",
        closed_episode: int = 0,
    ) -> Verdict:
        """Admit or refuse a policy, and put an admitted one into the slot.

        ``recorded_observations``: (k, n), normalised, from the buffer, used as additional probe states.  ``learner``
        identifies the sender (``NAME:FINGERPRINT`` of its key) for the record; ``closed_episode`` is the last completed
        training episode.
        """
        digest = policy_digest(model)
        earlier_verdict = self._earlier_verdict(digest)
        if earlier_verdict is not None:
            return earlier_verdict
        if self._rate is not None and not self._rate.use_check(closed_episode):
            self.n_too_soon += 1
            return _TOO_SOON
        return self._check(digest, model, recorded_observations, learner)

    def adopt(self, model: bytes) -> Verdict:
        """Check the policy file that a run starts with, and put an admitted policy into the slot."""
        digest = policy_digest(model)
        earlier_verdict = self._earlier_verdict(digest)
        if earlier_verdict is not None and not earlier_verdict.accepted:
            return earlier_verdict
        if self._slot.version and not self._folder.repeats_checks:
            # The policy was in the slot before this process was restarted; others may have followed it.
            return Verdict(self.active_id, accepted=True)
        if earlier_verdict is not None:
            self.active_id = earlier_verdict.policy_id
            self._slot.put(
                earlier_verdict.policy_id, model, is_native=self._native.get(earlier_verdict.policy_id, False)
            )
            return earlier_verdict
        return self._check(digest, model, None, "file")

    def _earlier_verdict(self, digest: bytes) -> Verdict | None:
        """Return the verdict on a policy that has been checked before; None for a new one."""
        entry = self._rolled_back.find(digest)
        if entry is not None:
            return Verdict(
                entry.policy, accepted=False, stage="probation", reason=f"it was rolled back: {entry.reason}"
            )
        policy_id = self._admitted_ids.get(digest)
        if policy_id is None:
            policy_id = self._folder.find_previous(digest)
        return self._refusals.get(digest) if policy_id is None else Verdict(policy_id, accepted=True)

    def _check(
        self, digest: bytes, model: bytes, recorded_observations: NDArray[np.float32] | None, learner: str
    ) -> Verdict:
        """Check a new policy; refuse it, or assign an id, store it and pass it to the loop."""
        self.n_offered += 1
        expected_id = self._expected_ids.pop(digest, None)
        policy_id = self.next_id if expected_id is None else expected_id
        result = self._examination.examine(model, recorded_observations)
        if not isinstance(result, Refused) and policy_id > MAX_POLICY_ID:
            result = Refused("ids", f"{MAX_POLICY_ID} policies were admitted, and records hold no higher id")
        if isinstance(result, Refused):
            return self._refuse(digest, result, learner)
        for warning in result.warnings:
            self._event("policy_warning", policy=policy_id, reason=warning)
        _remember(self._training_steps, policy_id, result.contract.training_step)
        _remember(self._admitted_ids, digest, policy_id)
        _remember(self._native, policy_id, result.native)
        self.n_admitted += 1
        self.active_id = policy_id
        if expected_id is None:
            self._file(policy_id, model)  # filed first, so that a restarted process cannot reuse its id
        self._submit(policy_id, model, repeated=expected_id is not None)
        self._event("policy_admitted", policy=policy_id, learner=learner, evaluator=evaluator_of(native=result.native))
        return Verdict(policy_id, accepted=True)

    def _refuse(self, digest: bytes, refusal: Refused, learner: str) -> Verdict:
        self.n_refused += 1
        verdict = Verdict(0, accepted=False, stage=refusal.stage, reason=refusal.reason)
        _remember(self._refusals, digest, verdict)
        self._event("policy_refused", policy=0, learner=learner, stage=verdict.stage, reason=verdict.reason)
        return verdict

    def _submit(self, policy_id: int, model: bytes, *, repeated: bool) -> None:
        """Put a policy into the slot, unless it is ``repeated`` and the slot already holds it or a newer one.

        Also remove the files of policies that can no longer act.
        """
        newest_policy = self._slot.peek() if repeated else None
        if newest_policy is None or newest_policy.policy_id < policy_id:
            self._slot.put(policy_id, model, is_native=self._native.get(policy_id, False))
        self._folder.remove_superseded(self._slot.taken_id)

    def _file(self, policy_id: int, model: bytes) -> None:
        reason = self._folder.file(policy_id, model)
        if reason:  # a full disk must not withhold a good policy from the loop
            self._event("policy_not_filed", policy=policy_id, reason=reason)

    # -- after admission ---------------------------------------------------------------------------------------------

    def record_acting(self, records: NDArray[np.void], n_dropped: int) -> None:
        """Record which policies acted in the next records (dtype ``RecordLayout.dtype``); ``n_dropped``: number of
        records lost so far."""
        if self._rate is not None:
            self._rate.on_ticks(len(records))
        if n_dropped != self._n_dropped:
            self._n_dropped = n_dropped
            self._folder.keep_all()
        ids = records["policy_id"]
        if not len(ids) or (ids == self._acting_id).all():
            return
        self._acting_id = int(ids[-1])
        self._folder.note(i for i in np.unique(ids).tolist() if i)

    def prune(self) -> None:
        """Remove policies that never acted, and retry writes that failed because the disk was full.

        Called at a barrier or before a checkpoint.
        """
        self._folder.prune()
        self._folder.retry()
        self._rolled_back.retry()

    @property
    def unsynced(self) -> list[Path]:
        """Policy files not yet covered by a checkpoint."""
        return [self._folder.path(policy_id) for policy_id in self._folder.unsynced()]

    def mark_synced(self, paths: list[Path]) -> None:
        """Mark these files as covered by a checkpoint."""
        self._folder.mark_synced(int(path.stem) for path in paths)

    @property
    def waiting(self) -> int:
        """Number of admitted policies waiting for disk space."""
        return self._folder.unfiled

    @property
    def unfiled(self) -> int:
        """Number of admitted policies without a file because the disk was full."""
        return self._folder.unfiled + self._folder.n_lost

    @property
    def rolled_back(self) -> int:
        """Number of policies rolled back in this run folder, in all sessions."""
        return len(self._rolled_back)

    @property
    def rolled_back_crc32(self) -> int:
        """CRC-32 of the list of rolled-back policies."""
        return self._rolled_back.crc32(self.rolled_back)

    def was_rolled_back(self, policy_id: int) -> bool:
        """Whether the policy with this id was rolled back."""
        return self._rolled_back.contains_id(policy_id)

    def note_rollback(self, policy_id: int, reason: str) -> None:
        """Bar a policy that the loop has rolled back from being admitted again."""
        digest = next((digest for digest, admitted_id in self._admitted_ids.items() if admitted_id == policy_id), None)
        if digest is None:
            try:
                digest = policy_digest(self._folder.model(policy_id))
            except OSError:  # it cannot be recognised without its bytes
                return
        try:
            self._rolled_back.add(policy_id, digest, reason)
        except OSError as error:
            self._event("rolled_back_not_filed", policy=policy_id, reason=error.strerror or str(error))

    def training_step(self, policy_id: int) -> int | None:
        """Return the training step stated in the contract of a recently admitted policy; None for others."""
        return self._training_steps.get(policy_id)


def _remember(cache: dict[K, V], key: K, value: V) -> None:
    """Add an entry, and drop the oldest ones if there are too many."""
    cache[key] = value
    while len(cache) > _MAX_REMEMBERED:
        del cache[next(iter(cache))]
