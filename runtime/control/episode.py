"""Order of the stages in a tick: from a state frame to its command and to the step that the frame completes.

Nothing here waits, sends or stores.  The loop, homing, the rehearsal of a tick, evaluations on the twin, safety
campaigns and the replay of recorded frames all use this module, so they take the same decisions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, cast

from onrig.hw.messages import State
from onrig.runtime.control.tick import Tick
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag, Kind, Step
from onrig.runtime.reset.attempts import EpisodeReset

ActionSource = Callable[[Step], None]
"""Function that fills in a step's ``policy``: the action requested by a policy or a reset controller."""
EndTest = Callable[[State, bool], bool]
"""Function that returns whether the episode ends, given a frame and whether the task terminates at that frame."""


class Fade:
    """Ramp from the command to the safe output over a fixed number of ticks, started by ``begin``."""

    def __init__(self, fade_s: float, rate_hz: float, safe: tuple[float, ...]) -> None:
        self._n_ticks = round(fade_s * rate_hz)
        self._safe = safe
        self._n_done = 0
        self.has_started = False
        """Whether the ramp has started."""

    @property
    def is_finished(self) -> bool:
        """Whether the ramp has reached the safe output."""
        return self.has_started and self._n_done >= self._n_ticks

    def begin(self) -> None:
        """Start the ramp with the next command."""
        self.has_started = True

    def next(self, action: Sequence[float]) -> tuple[float, ...]:
        """Advance by one tick, and return the scaled action (SI units); NaN is propagated."""
        self._n_done += 1
        fraction = 1.0 - self._n_done / (self._n_ticks + 1)
        return tuple([safe + fraction * (value - safe) for value, safe in zip(action, self._safe, strict=True)])


class Response(NamedTuple):
    """Response to one state frame."""

    command: tuple[int, ...]
    """Command for the device, in counts; the safe output once the episode is over."""
    step: Step
    """Step that starts with this frame; the next frame completes it."""
    completed: Step | None
    """Previous step, which this frame completes; None for the first frame."""
    is_over: bool
    """Whether the episode ends here; if so, no further frame is accepted."""
    times_ns: tuple[int, ...]
    """Clock readings before and after each stage (observe, policy, explore, shield); empty if the episode is over."""


def policy_action_source(tick: Tick, policy: PolicySession, policy_id: int) -> ActionSource:
    """Return an action source that evaluates a policy."""
    return lambda step: tick.evaluate_policy(step, policy, policy_id)


def reset_action_source(reset: EpisodeReset) -> ActionSource:
    """Return an action source that asks a reset controller for its action."""

    def act(step: Step) -> None:
        step.policy = reset.action(step.observation, step.t_device_us)

    return act


def zero_clock() -> int:
    """Stub clock for callers that need no timing."""
    return 0


def never_ends(state: State, terminated: bool) -> bool:
    """Return False; an end test for callers that count the frames themselves."""
    return False


def begin_episode(
    tick: Tick,
    act: ActionSource,
    *,
    has_ended: EndTest | None = None,
    fade: Fade | None = None,
    clock: Callable[[], int] = zero_clock,
) -> Callable[[State], Response]:
    """Return a function that answers the frames of the current episode of ``tick``, in order.

    ``has_ended``: test for the end of the episode, by default ``tick.is_over``; ``fade``: ramp to the safe output for a
    run that is being stopped.
    """
    responses = _respond_to_frames(tick, act, tick.is_over if has_ended is None else has_ended, fade, clock)
    next(responses)
    return cast(Callable[[State], Response], responses.send)


def _respond_to_frames(
    tick: Tick, act: ActionSource, has_ended: EndTest, fade: Fade | None, clock: Callable[[], int]
) -> Generator[Response | None, State, None]:
    previous: Step | None = None
    response: Response | None = None
    while True:
        state = yield response
        t0 = clock()
        step = tick.observe(state)
        terminated = previous is not None and tick.complete(previous, state, step.observation)
        is_fading = fade is not None and fade.has_started
        if has_ended(state, terminated):
            if step.kind is not Kind.RESET and not is_fading:  # a fade is not scored
                tick.close(step, terminated=terminated)
            yield Response(tick.safe_counts, step, previous, True, ())
            return
        t1 = clock()
        act(step)
        t2 = clock()
        tick.explore(step)
        if fade is not None and fade.has_started:  # no longer the policy's action, so learning excludes the step
            step.explored = fade.next(step.explored)
            step.flags |= Flag.INVALID | Flag.FADED
        t3 = clock()
        tick.shield(step)
        # tuple.__new__ bypasses the named tuple's constructor, which is a Python function.
        response = tuple.__new__(Response, (step.command, step, previous, False, (t0, t1, t2, t3, clock())))
        previous = step
