"""Policy switch: fetches policies from the slot, builds and warms them up in slack time, swaps them at a tick edge.

Building a session takes 0.25 ms or more and holds the GIL, so it is done in steps in the slack of a tick; each step
runs only if the remaining slack is long enough.  If a policy fails its probation, the switch rolls back to its
predecessor, whose session is kept for this purpose.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.policy.onnx_wire import OnnxModel, read_model
from onrig.runtime.policy.probation import ProbationLimits, Tenure, TenureState
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Rule
from onrig.runtime.shm.latest import PolicySlot, SlotPolicy

_SLACK_MARGIN: Final = 4.0
"""Slack required for a build, as a multiple of its estimated duration.  Builds take 0.3 to 1 ms, occasionally 2 or 3:
with a factor of two, a busy loop at 1 kHz missed ticks.  At high rates a policy has to wait for the end of the
episode."""
_INITIAL_BUILD_NS: Final = 600_000
_INITIAL_BUILD_BYTES: Final = 64 << 10
_BUILD_NS_PER_BYTE: Final = 5
"""Additional build time per byte beyond the largest model built so far: four times the value from
`onrig bench policy`."""
_COPY_OVERHEAD_NS: Final = 100_000
_COPY_NS_PER_BYTE: Final = 2
"""Upper estimate for copying and checksumming a model: 4 MiB take about 1 ms on a small board."""
_KEEP_WARM_NS: Final = 500_000
"""Slack needed to run the predecessor once, which keeps it in the caches in case of a rollback."""
_N_STEPS: Final = 4
"""Number of steps in a preparation: fetch, parse (for the C library), build, warm up."""
_MAX_PREDECESSORS: Final = 3
"""Number of predecessors kept: the last policy that passed its probation, and the newest of those replaced before they
passed."""
_MAX_CACHED_REJECTIONS: Final = 256
"""Number of rejected policy ids cached here; the run folder lists all of them."""
_PROBATION: Final = int(Flag.PROBATION)
_ROLLED_BACK: Final = int(Flag.ROLLED_BACK)


class _SeatedPolicy(NamedTuple):
    policy_id: int
    session: PolicySession
    tenure: Tenure


class SeatedState(msgspec.Struct, frozen=True):
    """An acting or former policy, as stored for a resumed run."""

    policy_id: int
    tenure: TenureState
    native: bool = False


class SwitchState(msgspec.Struct, frozen=True):
    """State of the switch between two episodes; the defaults describe a switch without policies."""

    seated: tuple[SeatedState, ...] = ()
    """Policies, the acting one last."""
    failed: tuple[int, ...] = ()


class PolicySwitch:
    """Acting policy, its predecessors, and the policy in preparation.

    ``limits``: probation limits of every policy; None disables rollback.
    """

    def __init__(self, slot: PolicySlot, limits: ProbationLimits | None = None) -> None:
        self._slot, self._limits = slot, limits
        self._last_version = 0
        self._fetched_policy: SlotPolicy | None = None
        self._parsed_model: OnnxModel | None = None
        self._built_session: PolicySession | None = None
        self._ready_policy: tuple[int, PolicySession] | None = None
        self._build_ns, self._largest_bytes = _INITIAL_BUILD_NS, _INITIAL_BUILD_BYTES
        self._tenure = Tenure(None, None)
        self._predecessors: list[_SeatedPolicy] = []
        self._has_rolled_back = False
        self._failed_ids: deque[int] = deque(maxlen=_MAX_CACHED_REJECTIONS)
        self.active: PolicySession | None = None
        self.policy_id = 0
        self.n_swaps = 0
        self.n_refused = 0
        self.n_rollbacks = 0

    @property
    def age_ticks(self) -> int:
        """Number of ticks in which the acting policy has been evaluated."""
        return self._tenure.ticks

    @property
    def predecessor(self) -> tuple[int, PolicySession] | None:
        """Policy that would act after a rollback (its id and session); None without a predecessor."""
        return self._predecessors[-1][:2] if self._predecessors else None

    def prepare_until(self, until_ns: int) -> None:
        """Carry out preparation steps for as long as each is certain to finish before ``until_ns``."""
        for _ in range(_N_STEPS):
            previous_progress = self._progress
            self.prepare(until_ns - time.monotonic_ns())
            if previous_progress == self._progress:
                return

    @property
    def _progress(self) -> tuple[bool, ...]:
        """Completed steps of the preparation."""
        return self._fetched_policy is not None, self._parsed_model is not None, self._built_session is not None

    def prepare(self, slack_ns: int) -> None:
        """Carry out the next preparation step if ``slack_ns`` is certain to suffice for it."""
        if self._fetched_policy is None:
            if self._slot.version == self._last_version or self._ready_policy is not None:
                self._keep_warm(slack_ns)
                return
            if slack_ns < _COPY_OVERHEAD_NS + _COPY_NS_PER_BYTE * self._slot.newest_bytes:
                return
            slot_policy = self._slot.take()
            if slot_policy is None:
                return
            self._last_version = slot_policy.version
            if slot_policy.policy_id in self._failed_ids:
                self.n_refused += 1
            else:
                self._fetched_policy = slot_policy
            return
        if self._built_session is None:
            extra_ns = _BUILD_NS_PER_BYTE * max(0, len(self._fetched_policy.model) - self._largest_bytes)
            if slack_ns < _SLACK_MARGIN * (self._build_ns + extra_ns):
                return
            if self._fetched_policy.is_native and self._parsed_model is None:
                self._parse()
            else:
                self._build()
            return
        if slack_ns >= _SLACK_MARGIN * self._build_ns:
            self._warm_up()

    def _keep_warm(self, slack_ns: int) -> None:
        if self._predecessors and slack_ns >= _KEEP_WARM_NS and self._tenure.is_on_probation:
            with contextlib.suppress(Exception):  # the predecessor's errors matter only when it acts
                self._predecessors[-1].session.run()

    def _parse(self) -> None:
        """Parse the model; this is a separate step, because it takes as long as building the session."""
        if self._fetched_policy is not None:
            with self._timed_step(self._fetched_policy):
                self._parsed_model = read_model(self._fetched_policy.model)

    def _build(self) -> None:
        if self._fetched_policy is not None:
            with self._timed_step(self._fetched_policy):
                self._built_session = PolicySession(
                    self._fetched_policy.model, native=self._fetched_policy.is_native, parsed_model=self._parsed_model
                )

    @contextlib.contextmanager
    def _timed_step(self, fetched: SlotPolicy) -> Iterator[None]:
        start_ns = time.monotonic_ns()
        try:
            yield
        except Exception:  # the policy was admitted, so this machine is at fault: keep the current policy
            self._fetched_policy = self._parsed_model = None
            self.n_refused += 1
        # Duration of the slowest step so far; it decays, so that a single stall does not block swaps for ever.
        self._build_ns = max(time.monotonic_ns() - start_ns, int(0.9 * self._build_ns))
        self._largest_bytes = max(self._largest_bytes, len(fetched.model))

    def time_builds(self, repetitions: int = 5) -> None:
        """Before the loop starts, measure the median duration of the slowest build step, as a basis for estimates."""
        if self.active is None:
            return
        model, native = self.active.model, self.active.native
        durations = []
        for _ in range(repetitions):
            start_ns = time.monotonic_ns()
            parsed_model = read_model(model) if native else None
            parsed_ns = time.monotonic_ns()
            PolicySession(model, native=native, parsed_model=parsed_model)
            durations.append(max(parsed_ns - start_ns, time.monotonic_ns() - parsed_ns))
        self._build_ns = sorted(durations)[repetitions // 2]

    def _warm_up(self) -> None:
        if self._built_session is not None and self._fetched_policy is not None:
            try:
                self._built_session.warm_up(3)
                self._ready_policy = (self._fetched_policy.policy_id, self._built_session)
            except Exception:  # same as in _build
                self.n_refused += 1
        self._fetched_policy = self._parsed_model = self._built_session = None

    def swap(self) -> bool:
        """At a tick edge, activate the prepared policy; return True if this was done.

        In the first tick after a rollback the predecessor always acts.  A recurrent policy waits for the start of an
        episode (``install_newest``), because its state begins there.
        """
        if self._ready_policy is None or self._has_rolled_back or self._ready_policy[1].hidden is not None:
            return False
        self._install(*self._ready_policy)
        return True

    def _install(self, policy_id: int, session: PolicySession) -> None:
        previous_tenure = self._tenure
        if self.active is not None and (
            previous_tenure.ticks or self._limits is None
        ):  # a policy that never acted is not a predecessor to roll back to
            if self._limits is None or previous_tenure.has_passed:
                self._predecessors.clear()
            self._predecessors.append(_SeatedPolicy(self.policy_id, self.active, previous_tenure))
            if len(self._predecessors) > _MAX_PREDECESSORS:
                del self._predecessors[1]
        self.policy_id, self.active = policy_id, session
        self._tenure = Tenure(
            self._limits, self._predecessors[-1].tenure.fallback_fraction if self._predecessors else None
        )
        self._ready_policy = None
        self.n_swaps += 1

    def install_newest(self) -> None:
        """Install the newest policy of the slot, between episodes and without a time limit."""
        while True:
            if self._ready_policy is not None:  # it may be older than the policy in the slot, and would block that one
                self._install(*self._ready_policy)
            if self._fetched_policy is None and self._slot.version == self._last_version:
                return
            previous_progress = (self._last_version, *self._progress)
            self.prepare(1 << 62)
            if previous_progress == (self._last_version, *self._progress) and self._ready_policy is None:
                return  # the slot is being rewritten; the next call tries again

    # -- resuming ----------------------------------------------------------------------------------------------------

    def state(self) -> SwitchState:
        """Return the state for a resumed run: the acting policy, its predecessors, and their probation records."""
        active_policy = [_SeatedPolicy(self.policy_id, self.active, self._tenure)] if self.active is not None else []
        seated = tuple(
            SeatedState(s.policy_id, s.tenure.state(), s.session.native) for s in (*self._predecessors, *active_policy)
        )
        return SwitchState(seated, tuple(self._failed_ids))

    def restore(self, state: SwitchState, load_session: Callable[[int, bool], PolicySession | None]) -> None:
        """Restore a state, except for policies that ``load_session`` cannot load; a newer policy in the slot is swapped
        in as usual."""
        self._failed_ids.extend(state.failed)
        sessions = [(s, load_session(s.policy_id, s.native)) for s in state.seated]
        seated = [
            _SeatedPolicy(s.policy_id, session, Tenure.restore(self._limits, s.tenure))
            for s, session in sessions
            if session
        ]
        if not seated or not sessions[-1][1]:
            return
        *self._predecessors, (self.policy_id, self.active, self._tenure) = seated
        newest_policy = self._slot.take()
        if newest_policy is not None and newest_policy.policy_id <= max((self.policy_id, *state.failed)):
            self._last_version = newest_policy.version

    # -- probation -------------------------------------------------------------------------------------------------

    def record_flags(self) -> int:
        """Return the flags for the record of a tick in which the policy is evaluated; call this once per record."""
        probation = _PROBATION if self._tenure.is_on_probation else 0
        return probation | self.take_rollback_flag() if self._has_rolled_back else probation

    def take_rollback_flag(self) -> int:
        """Return ``ROLLED_BACK`` for the first record after a rollback, even one without a policy action; otherwise
        0."""
        if not self._has_rolled_back:
            return 0
        self._has_rolled_back = False
        return _ROLLED_BACK

    def record_tick(self, rule: Rule, policy_ns: int) -> bool:
        """Count a tick of the acting policy, given the rule that intervened and the time the policy took.

        Returns True if the policy failed its probation and was rolled back.  A run's first policy has no predecessor
        and continues under the shield alone.
        """
        if self._tenure.add_tick(rule, policy_ns) is None or not self._predecessors:
            return False
        self._failed_ids.append(self.policy_id)
        self.policy_id, self.active, self._tenure = self._predecessors.pop()
        self._has_rolled_back = True
        self.n_rollbacks += 1
        return True
