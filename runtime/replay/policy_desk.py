"""Where offered policies are judged, filed and handed to the loop (ARCHITECTURE §4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from hw.rig import Rig
from runtime.config.schema import RunConfig
from runtime.link.messages import Verdict
from runtime.policy.admission import MAX_ID, AdmissionLimits, Refused, admit
from runtime.policy.contract import PolicyContract, contract_for
from runtime.policy.probes import probe_states
from runtime.random_streams import Role, stream
from runtime.replay.withdrawn import Withdrawn, digest_of
from runtime.shm.slot import PolicySlot

_PROBES: Final = 64
_RECORDED: Final = 64
_KEPT_VERDICTS: Final = 64
"""Repeated offers are answered from memory this far back."""

_LATENCY_US: Final = 200.0
_LATENCY_SHARE: Final = 0.1
"""Of a period, where that is less."""

Event = Callable[..., None]


def admission_limits(config: RunConfig) -> AdmissionLimits:
    """What a policy may cost on this run; wall time may only warn where the run must not depend on it (lockstep)."""
    budget_us = min(_LATENCY_US, _LATENCY_SHARE * config.wall_period_ns / 1000)
    return AdmissionLimits(latency_budget_us=budget_us, latency_is_advisory=config.lockstep)


def desk_probes(wanted: PolicyContract, seed: int) -> NDArray[np.float32]:
    """States on which every policy of a run is tried, float32 (k, n), SI units."""
    return probe_states(wanted, _PROBES, int(stream(seed, Role.PROBES).integers(1 << 31)))


class PolicyDesk:
    """Judges each policy once, whoever offers it and however often."""

    def __init__(
        self, rig: Rig, rate_hz: float, seed: int, limits: AdmissionLimits, slot: PolicySlot, folder: Path, event: Event
    ) -> None:
        self._wanted: PolicyContract = contract_for(rig, rate_hz, policy_id=0, parent_run="", training_step=0)
        self._limits, self._slot, self._folder, self._event = limits, slot, folder, event
        self._probes = desk_probes(self._wanted, seed)
        self._centre = np.array([0.5 * (o.low + o.high) for o in rig.signals], np.float32)
        self._half = np.array([0.5 * (o.high - o.low) for o in rig.signals], np.float32)
        self._verdicts: dict[int, tuple[bytes, Verdict]] = {}
        self.offered = self.admitted = self.refused = 0
        self.active_id = 0
        """The one admitted last."""
        folder.mkdir(exist_ok=True)
        self._withdrawn = Withdrawn(folder)
        if self._withdrawn.damaged:
            event("rolled_back_unreadable", reason=self._withdrawn.damaged)
        self._training_steps: dict[int, int] = {}
        self._filed = {int(p.stem): digest_of(p.read_bytes()) for p in folder.glob("*.onnx") if p.stem.isdecimal()}
        """Policies that a replay process before this one admitted."""
        self._forgotten = -1
        """Highest id whose verdict is no longer kept."""
        self._used = 0
        """Highest id used before the checkpoint that this process goes on from."""

    @property
    def next_id(self) -> int:
        """Id that the next policy should bear: they count up."""
        return max((*self._verdicts, *self._filed, self._used), default=0) + 1

    def counts(self) -> dict[str, int]:
        """What a checkpoint keeps of the desk."""
        return {
            "offered_policies": self.offered,
            "admitted_policies": self.admitted,
            "refused_policies": self.refused,
            "next_policy": self.next_id,
            "rolled_back_policies": self.rolled_back,
        }

    def resume(self, counts: Mapping[str, int]) -> None:
        """Go on counting from a checkpoint's counts."""
        self.offered = counts["offered_policies"]
        self.admitted = counts["admitted_policies"]
        self.refused = counts["refused_policies"]
        self._used = counts["next_policy"] - 1

    def reinstate(self) -> int:
        """Put the newest filed policy that is still admitted into the slot; its id, 0 where there is none.

        It is judged as a file is; that it is fast enough has been seen before.
        """
        limits = msgspec.structs.replace(self._limits, latency_is_advisory=True)
        for policy_id in sorted(self._filed, reverse=True):
            if self._withdrawn.reason(self._filed[policy_id]) is not None:
                continue
            model = (self._folder / f"{policy_id}.onnx").read_bytes()
            result = admit(model, self._wanted, self._probes, limits)
            if isinstance(result, Refused) or result.contract.policy_id != policy_id:
                why = result.reason if isinstance(result, Refused) else f"it is policy {result.contract.policy_id}"
                self._event("policy_not_reinstated", policy=policy_id, reason=why)
                continue
            self.active_id = policy_id
            self._slot.put(policy_id, model)
            self._event("policy_reinstated", policy=policy_id)
            return policy_id
        return 0

    def judge(self, policy_id: int, model: bytes, recorded: NDArray[np.float32], *, learner: str = "local") -> Verdict:
        """Admit or refuse a policy, and put an admitted one into the slot.

        ``recorded``: (k, n) normalised observations from the buffer, on which it must behave as well.  ``learner`` is
        who offers it (``NAME:FINGERPRINT`` of its key), for the record.
        """
        digest = digest_of(model)
        known = self._verdicts.get(policy_id)
        if known is not None and known[0] == digest:
            return known[1]
        self.offered += 1
        filed = self._filed.get(policy_id)
        reused = known is not None or (policy_id <= self._forgotten if filed is None else filed != digest)
        why = self._withdrawn.reason(digest)
        if why is None:
            verdict = self._verdict(policy_id, model, recorded, reused=reused)
        else:
            verdict = _rolled_back(policy_id, why)
        if verdict.accepted:
            self.admitted += 1
            self.active_id = policy_id
            self._slot.put(policy_id, model)
            self._file(policy_id, model)
            self._event("policy_admitted", policy=policy_id, learner=learner)
        else:
            self.refused += 1
            self._event("policy_refused", policy=policy_id, learner=learner, stage=verdict.stage, reason=verdict.reason)
        if not reused and 0 <= policy_id < MAX_ID:
            self._verdicts[policy_id] = (digest, verdict)
            while len(self._verdicts) > _KEPT_VERDICTS:
                self._forgotten = max(self._forgotten, min(self._verdicts))
                del self._verdicts[min(self._verdicts)]
        return verdict

    def adopt(self, model: bytes) -> Verdict:
        """Judge a policy from a file, under the id that its own metadata bear."""
        none = np.zeros((0, len(self._centre)), np.float32)
        result = admit(model, self._wanted, self._probes, self._limits)
        if isinstance(result, Refused):
            return Verdict(0, False, result.stage, result.reason)
        why = self._withdrawn.reason(digest_of(model))
        if why is not None:
            return _rolled_back(result.contract.policy_id, why)
        if self._slot.version:  # put there before this process was started anew; it may have been followed by others
            return Verdict(result.contract.policy_id, True)
        return self.judge(result.contract.policy_id, model, none, learner="file")

    @property
    def rolled_back(self) -> int:
        """Policies of this run folder that were rolled back, by whatever process."""
        return len(self._withdrawn)

    def was_rolled_back(self, policy_id: int) -> bool:
        """Whether a policy of this id is one of them."""
        return self._withdrawn.has(policy_id)

    def take_back(self, policy_id: int, reason: str) -> None:
        """Never admit a policy again: the loop has rolled it back."""
        known = self._verdicts.get(policy_id)
        digest = known[0] if known is not None else self._filed.get(policy_id)
        if digest is None:  # nobody can offer it again under its id
            return
        if known is not None:
            self._verdicts[policy_id] = (digest, _rolled_back(policy_id, reason))
        try:
            self._withdrawn.add(policy_id, digest, reason)
        except OSError as error:
            self._event("rolled_back_not_filed", policy=policy_id, reason=error.strerror or str(error))

    def training_step(self, policy_id: int) -> int | None:
        """Updates after which a policy admitted lately was exported, by its own word; None for others."""
        return self._training_steps.get(policy_id)

    def _verdict(self, policy_id: int, model: bytes, recorded: NDArray[np.float32], *, reused: bool) -> Verdict:
        if reused:
            return Verdict(policy_id, False, "contract", f"id {policy_id} has been used for another policy")
        seen = recorded[:_RECORDED] * self._half + self._centre
        result = admit(model, self._wanted, np.concatenate([self._probes, seen.astype(np.float32)]), self._limits)
        if isinstance(result, Refused):
            return Verdict(policy_id, False, result.stage, result.reason)
        if result.contract.policy_id != policy_id:
            reason = f"offered as policy {policy_id}, its metadata say {result.contract.policy_id}"
            return Verdict(policy_id, False, "contract", reason)
        for warning in result.warnings:
            self._event("policy_warning", policy=policy_id, reason=warning)
        self._training_steps[policy_id] = result.contract.training_step
        while len(self._training_steps) > _KEPT_VERDICTS:
            del self._training_steps[next(iter(self._training_steps))]
        return Verdict(policy_id, True)

    def _file(self, policy_id: int, model: bytes) -> None:
        path = self._folder / f"{policy_id}.onnx"
        fresh = path.with_suffix(".tmp")
        try:
            fresh.write_bytes(model)
            fresh.replace(path)
        except OSError as error:  # a full disk must not keep a good policy from the loop
            self._event("policy_not_filed", policy=policy_id, reason=error.strerror or str(error))


def _rolled_back(policy_id: int, reason: str) -> Verdict:
    return Verdict(policy_id, False, "probation", f"it was rolled back: {reason}")
