"""Who decides next: takes policies out of the slot, builds and warms them up in the slack, swaps them at a tick edge.

Building a session costs 0.25 ms and more, with the interpreter locked, so it may only happen in the time that a tick
leaves over: piece by piece, each only where what is left of the slack is known to be long enough.  A policy that fails
its probation gives the switch back to its predecessor, whose session is still there.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.policy.probation import Record, Tenure, Terms
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Rule
from onrig.runtime.shm.latest import PolicySlot, SlotPolicy

_MARGIN: Final = 4.0
"""Times the slowest build of late that must be left of the slack.  Builds take 0.3 to 1 ms, now and then 2 or 3: with a
margin of two, a busy loop at 1 kHz missed ticks by them.  At high rates a policy waits for the end of the episode."""
_FIRST_GUESS_NS: Final = 600_000
_COPY_NS: Final = 100_000
_NS_PER_BYTE: Final = 2
"""Copying and checksumming a model, generously: 4 MiB take about 1 ms on a small board."""
_KEEP_WARM_NS: Final = 500_000
"""Slack in which the predecessor is run once, so that it is no stranger to the caches when it has to act."""
_PIECES: Final = 3
"""Fetching a policy, building it, warming it up."""
_PREDECESSORS: Final = 3
"""Sessions that are kept: the last policy that was proven, and the newest of those that were replaced unproven."""
_REMEMBERED: Final = 256
"""Rolled-back policies that the switch itself knows not to take again; the run folder knows them all."""
_PROBATION: Final = int(Flag.PROBATION)
_ROLLED_BACK: Final = int(Flag.ROLLED_BACK)


class _Seated(NamedTuple):
    policy_id: int
    session: PolicySession
    tenure: Tenure


class SeatedState(msgspec.Struct, frozen=True):
    """A policy that sits or sat here, as a resumed run takes it up."""

    policy_id: int
    tenure: Record


class SwitchState(msgspec.Struct, frozen=True):
    """What the switch knows between two episodes; without arguments, an empty one's."""

    seated: tuple[SeatedState, ...] = ()
    """The acting policy last."""
    taken: int = 0
    """Id of the policy that was last taken out of the slot."""
    failed: tuple[int, ...] = ()


class PolicySwitch:
    """The acting policy, its predecessors, and the one being prepared.

    ``terms`` of the probation of every policy; None: none is rolled back.
    """

    def __init__(self, slot: PolicySlot, terms: Terms | None = None) -> None:
        self._slot, self._terms = slot, terms
        self._seen = self._taken = 0
        self._fetched: SlotPolicy | None = None
        self._built: PolicySession | None = None
        self._ready: tuple[int, PolicySession] | None = None
        self._build_ns = _FIRST_GUESS_NS
        self._tenure = Tenure(None, None)
        self._behind: list[_Seated] = []
        self._came_back = False
        self._failed: deque[int] = deque(maxlen=_REMEMBERED)
        self.active: PolicySession | None = None
        self.policy_id = 0
        self.swaps = 0
        self.refused = 0
        self.rolled_back = 0

    @property
    def age_ticks(self) -> int:
        """Ticks in which the acting policy has been asked."""
        return self._tenure.ticks

    @property
    def predecessor(self) -> tuple[int, PolicySession] | None:
        """Who would act if the acting policy failed its probation: id and bound session."""
        return self._behind[-1][:2] if self._behind else None

    def prepare_until(self, until_ns: int) -> None:
        """Do one piece of preparation after another as long as the time until ``until_ns`` surely suffices."""
        for _ in range(_PIECES):
            before = self._fetched, self._built
            self.prepare(until_ns - time.monotonic_ns())
            if before == (self._fetched, self._built):
                return

    def prepare(self, slack_ns: int) -> None:
        """Do the next piece of preparation if ``slack_ns`` surely suffices for it."""
        if self._fetched is None:
            if self._slot.version == self._seen or self._ready is not None:
                self._keep_warm(slack_ns)
                return
            if slack_ns < _COPY_NS + _NS_PER_BYTE * self._slot.newest_bytes:
                return
            taken = self._slot.take()
            if taken is None:
                return
            self._seen, self._taken = taken.version, taken.policy_id
            if taken.policy_id in self._failed:
                self.refused += 1
            else:
                self._fetched = taken
            return
        if self._built is None:
            if slack_ns < _MARGIN * self._build_ns:
                return
            self._build()
            return
        if slack_ns >= _MARGIN * self._build_ns:
            self._warm_up()

    def _keep_warm(self, slack_ns: int) -> None:
        if self._behind and slack_ns >= _KEEP_WARM_NS and self._tenure.on_probation:
            with contextlib.suppress(Exception):  # what it answers matters only once it acts
                self._behind[-1].session.run()

    def _build(self) -> None:
        fetched = self._fetched
        if fetched is None:
            return
        start = time.monotonic_ns()
        try:
            self._built = PolicySession(fetched.model)
        except Exception:  # admitted elsewhere, so this is a broken machine: the present policy goes on
            self._fetched = None
            self.refused += 1
        # The slowest build so far, slowly forgotten, so that one stall does not forbid swaps for good.
        self._build_ns = max(time.monotonic_ns() - start, int(0.9 * self._build_ns))

    def time_builds(self, times: int = 5) -> None:
        """Learn at leisure what building costs, by its median: the first build loads libraries, a stall is no cost."""
        if self.active is None:
            return
        durations = []
        for _ in range(times):
            start = time.monotonic_ns()
            PolicySession(self.active.model)
            durations.append(time.monotonic_ns() - start)
        self._build_ns = sorted(durations)[times // 2]

    def _warm_up(self) -> None:
        if self._built is not None and self._fetched is not None:
            try:
                self._built.warm_up(3)
                self._ready = (self._fetched.policy_id, self._built)
            except Exception:  # as in _build
                self.refused += 1
        self._fetched = self._built = None

    def swap(self) -> bool:
        """At a tick edge: let the prepared policy act from now on.  True when it changed.

        The first tick after a roll-back is the predecessor's, whatever is ready.
        """
        if self._ready is None or self._came_back:
            return False
        self._install(*self._ready)
        return True

    def _install(self, policy_id: int, session: PolicySession) -> None:
        before = self._tenure
        if self.active is not None and (before.ticks or self._terms is None):  # one that never acted is nobody's good
            if self._terms is None or before.passed:
                self._behind.clear()
            self._behind.append(_Seated(self.policy_id, self.active, before))
            if len(self._behind) > _PREDECESSORS:
                del self._behind[1]
        self.policy_id, self.active = policy_id, session
        self._tenure = Tenure(self._terms, self._behind[-1].tenure.share if self._behind else None)
        self._ready = None
        self.swaps += 1

    def take_newest(self) -> None:
        """Between episodes, where time does not press: install whatever the slot holds."""
        while True:
            if self._ready is not None:  # it may be older than what the slot holds, and would keep it waiting
                self._install(*self._ready)
            if self._fetched is None and self._slot.version == self._seen:
                return
            before = (self._seen, self._fetched is not None, self._built is not None)
            self.prepare(1 << 62)
            after = (self._seen, self._fetched is not None, self._built is not None)
            if before == after and self._ready is None:
                return  # the slot is being rewritten this moment; the next edge sees it

    # -- going on after a crash --------------------------------------------------------------------------------------

    def state(self) -> SwitchState:
        """What a resumed run goes on from: who sits here, who sat here before, and how they did."""
        sitting = [_Seated(self.policy_id, self.active, self._tenure)] if self.active is not None else []
        seated = tuple(SeatedState(s.policy_id, s.tenure.record()) for s in (*self._behind, *sitting))
        return SwitchState(seated, self._taken, tuple(self._failed))

    def restore(self, state: SwitchState, session_of: Callable[[int], PolicySession | None]) -> None:
        """Take up a state; who has no session any more is left out.  The slot's policy counts as new if it is newer."""
        self._failed.extend(state.failed)
        back = [(s, session_of(s.policy_id)) for s in state.seated]
        seated = [_Seated(s.policy_id, session, Tenure.of(self._terms, s.tenure)) for s, session in back if session]
        if not seated or not back[-1][1]:
            return
        *self._behind, (self.policy_id, self.active, self._tenure) = seated
        self._taken = state.taken
        waiting = self._slot.take()
        if waiting is not None and waiting.policy_id <= state.taken:
            self._seen = waiting.version

    # -- probation -------------------------------------------------------------------------------------------------

    def marks(self) -> int:
        """Flags for the record of a tick in which the policy is asked, once for each."""
        return (_PROBATION if self._tenure.on_probation else 0) | self.take_mark()

    def take_mark(self) -> int:
        """``ROLLED_BACK`` for the first record after a roll-back, whether the policy is asked in it or not; else 0."""
        if not self._came_back:
            return 0
        self._came_back = False
        return _ROLLED_BACK

    def judge(self, rule: Rule, policy_ns: int) -> bool:
        """Take what came of a tick of the acting policy: which rule acted, how long the policy took.

        True when it has failed its probation and its predecessor sits here again; a run's first policy has none, and
        goes on under the shield alone.
        """
        if self._tenure.take(rule, policy_ns) is None or not self._behind:
            return False
        self._failed.append(self.policy_id)
        self.policy_id, self.active, self._tenure = self._behind.pop()
        self._came_back = True
        self.rolled_back += 1
        return True
