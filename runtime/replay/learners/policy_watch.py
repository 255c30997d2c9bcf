"""Outcomes of policies that have acted, as shown by the step records: probation passed, rolled back, or failed.

The loop decides (``onrig.runtime.control.policy_switch``) and marks the records: PROBATION while a policy may still be
rolled back, ROLLED_BACK on the first record after a rollback.  The records before a mark show the reason.

A rolled-back policy never acts again, neither after a restart of the replay process nor in a resumed run: its digest is
stored in ``policies/rolled_back.json`` of the run folder.  A policy is identified by its bytes; its id is for users.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import MAX_JSON_BYTES, read_file, replace_own_file
from onrig.runtime.policy.probation import POLICY_STAGE, ProbationLimits, Reason
from onrig.runtime.record import Flag, Kind, Rule

Verdict = Literal["passed", "rolled_back", "failed"]
"""``failed``: a limit was exceeded, but there was no predecessor to roll back to."""
VerdictCallback = Callable[[int, Verdict, str], None]
"""Callback with the policy's id, the verdict, and the reason in words."""
_NO_PREDECESSOR = "no predecessor remains: only the shield and its fallback guard the rig"


class PolicyWatch:
    """Tracks the acting policy through the records; reports each verdict once, as an event and to ``on_verdict``."""

    def __init__(
        self, limits: ProbationLimits | None, rate_hz: float, event: Callable[..., None], on_verdict: VerdictCallback
    ) -> None:
        self._limits, self._rate_hz, self._event, self._on_verdict = limits, rate_hz, event, on_verdict
        self._is_on_probation = False
        self._last_record: np.void | None = None
        self._n_slow_ticks = self._n_fallback_ticks = 0
        self.policy_id: int | None = None
        """Id of the policy that acted last."""
        self.age_ticks = 0
        """Number of ticks in which ``policy_id`` has acted since it became active."""
        self._reports_events = self._applies_verdicts = True

    @property
    def age_s(self) -> float:
        """Device time for which the policy has acted since it became active."""
        return self.age_ticks / self._rate_hz

    def add_earlier_records(self, records: NDArray[np.void], *, were_reported: bool, were_applied: bool) -> None:
        """Process records that a previous process has read.

        ``were_reported``: whether it reported their events; ``were_applied``: whether it applied their verdicts.
        """
        self._reports_events, self._applies_verdicts = not were_reported, not were_applied
        self.add(records)
        self._reports_events = self._applies_verdicts = True

    def add(self, records: NDArray[np.void]) -> None:
        """Process the next records (dtype ``RecordLayout.dtype``)."""
        flags = records["flags"]
        has_acted = ((flags & Flag.NO_ACTION) == 0) & (records["kind"] != Kind.RESET)
        rows = records[has_acted | ((flags & Flag.ROLLED_BACK) != 0)]
        if not len(rows):
            return
        marks = rows["flags"] & (Flag.PROBATION | Flag.ROLLED_BACK)
        changes = (rows["policy_id"][1:] != rows["policy_id"][:-1]) | (marks[1:] != marks[:-1])
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)]
        for start, end in itertools.pairwise(edges):
            self._open(rows[start])
            self._count(rows[start:end])

    def close(self, rolled_back: int | None) -> None:
        """Settle open verdicts at the end of the run.

        ``rolled_back``: id of a policy that the loop reports as rolled back although no record shows it (the run ended
        in that tick, or the record was lost); None if there is none.
        """
        if rolled_back is not None:
            self._roll_back(rolled_back, None)
        elif self._is_probation_complete:
            self._conclude_probation()

    def _open(self, record: np.void) -> None:
        """Process the first record of a batch, or one whose policy or marks differ from the previous record's."""
        policy_id, flags = int(record["policy_id"]), int(record["flags"])
        if flags & Flag.ROLLED_BACK:
            if self.policy_id is not None:
                self._roll_back(self.policy_id, policy_id)
            self._begin(policy_id)
        elif policy_id != self.policy_id:
            if self._is_probation_complete:
                self._conclude_probation()
            self._begin(policy_id)
        elif self._is_on_probation and not flags & Flag.PROBATION:
            self._conclude_probation()
        self._is_on_probation = bool(flags & Flag.PROBATION)

    def _begin(self, policy_id: int) -> None:
        self.policy_id = policy_id
        self.age_ticks = self._n_slow_ticks = self._n_fallback_ticks = 0

    def _count(self, rows: NDArray[np.void]) -> None:
        rows = rows[(rows["flags"] & Flag.NO_ACTION) == 0]
        if not len(rows):
            return
        self._last_record = rows[-1].copy()
        self.age_ticks += len(rows)
        self._n_fallback_ticks += sum(int(np.count_nonzero(rows["rule"] == rule)) for rule in Rule if rule.falls_back)
        if self._limits is not None and self._limits.slow_ns is not None:
            fast_indices = np.flatnonzero(rows["stage_ns"][:, POLICY_STAGE] <= self._limits.slow_ns)
            self._n_slow_ticks = (
                len(rows) - 1 - int(fast_indices[-1]) if len(fast_indices) else self._n_slow_ticks + len(rows)
            )

    @property
    def _is_probation_complete(self) -> bool:
        """Whether the policy has, as of the last record received, acted for the full length of its probation."""
        return self._is_on_probation and self._limits is not None and self.age_ticks >= self._limits.ticks

    def _reason(self) -> Reason | None:
        """Return the reason for a failure in the last tick; None if its record does not show one."""
        if self._last_record is None:
            return None
        if self._last_record["rule"] == Rule.FINITE:
            return Reason.FINITE
        if self._limits is not None and self._n_slow_ticks >= self._limits.slow_ticks:
            return Reason.SLOW
        return None

    def _conclude_probation(self) -> None:
        """Report that the acting policy has passed its probation, or failed it without a predecessor."""
        reason = self._reason()
        assert self.policy_id is not None
        if reason is None:
            self._report("policy_probation_passed", self.policy_id, "passed", "", {})
        else:
            detail = f"{self._describe(reason)}; {_NO_PREDECESSOR}"
            self._report("policy_probation_failed", self.policy_id, "failed", detail, {"reason": reason.value})
        self._is_on_probation = False

    def _roll_back(self, policy_id: int, back_to: int | None) -> None:
        reason = self._reason() if policy_id == self.policy_id else None
        if (
            reason is None
            and back_to is not None
            and self._last_record is not None
            and Rule(self._last_record["rule"]).falls_back
        ):
            reason = Reason.FALLBACK
        reason = reason or Reason.UNKNOWN
        extra: dict[str, int | str | None] = {"reason": reason.value, "back_to": back_to}
        self._report("policy_rolled_back", policy_id, "rolled_back", self._describe(reason), extra)

    def _describe(self, reason: Reason) -> str:
        return reason.value if self._limits is None else self._limits.describe(reason)

    def _report(
        self, kind: str, policy_id: int, verdict: Verdict, detail: str, extra: dict[str, int | str | None]
    ) -> None:
        last_record = self._last_record
        if self._reports_events:
            self._event(
                kind,
                policy=policy_id,
                **extra,
                **({"detail": detail} if detail else {}),
                episode=None if last_record is None else int(last_record["episode"]),
                tick=None if last_record is None else int(last_record["tick"]),
                acted_ticks=self.age_ticks,
                fallback_share=round(self._n_fallback_ticks / self.age_ticks, 4) if self.age_ticks else None,
            )
        if self._applies_verdicts:
            self._on_verdict(policy_id, verdict, detail)


FILE_NAME: Final = "rolled_back.json"


class RolledBackPolicy(msgspec.Struct, frozen=True):
    """One rolled-back policy."""

    policy: int
    digest: str
    """16-byte BLAKE2b digest of the policy's bytes, in hexadecimal."""
    reason: str


def policy_digest(model: bytes) -> bytes:
    """Return the digest of a policy's bytes."""
    return hashlib.blake2b(model, digest_size=16).digest()


class RolledBackList:
    """List of the rolled-back policies of one run folder.

    An unreadable list counts as empty; ``damaged`` then holds the reason.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._entries: dict[str, RolledBackPolicy] = {}
        self.damaged = ""
        self._is_write_pending = False
        try:
            entries = msgspec.json.decode(read_file(self._path, MAX_JSON_BYTES), type=list[RolledBackPolicy])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            self.damaged = str(error)
            return
        self._entries = {e.digest: e for e in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def contains_id(self, policy_id: int) -> bool:
        """Whether the policy with this id is on the list."""
        return any(entry.policy == policy_id for entry in self._entries.values())

    def find(self, digest: bytes) -> RolledBackPolicy | None:
        """Return the entry of a policy; None if it was not rolled back."""
        return self._entries.get(digest.hex())

    def crc32(self, count: int) -> int:
        """Return the checksum of the first ``count`` entries."""
        return zlib.crc32(msgspec.json.encode(list(self._entries.values())[:count]))

    def add(self, policy_id: int, digest: bytes, reason: str) -> None:
        """Add a policy to the list; raises OSError if the file cannot be written until a later `retry`."""
        self._entries[digest.hex()] = RolledBackPolicy(policy_id, digest.hex(), reason)
        self._write()

    def truncate(self, count: int) -> None:
        """Keep only the first ``count`` entries, for a run that returns to an earlier state; raises OSError."""
        if len(self._entries) > count:
            self._entries = dict(list(self._entries.items())[:count])
            self._write()

    def retry(self) -> None:
        """Retry a write that a full disk rejected."""
        if self._is_write_pending:
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        self._is_write_pending = True
        data = msgspec.json.format(msgspec.json.encode(list(self._entries.values())), indent=1) + b"\n"
        replace_own_file(self._path, data, durable=True)
        self._is_write_pending = False
