from __future__ import annotations

from onrig.hw.messages import Status
from onrig.runtime.control.actuators import Actuators
from tests.runtime.samples import MAGMAN, PENDULUM, state

ACTUATORS = Actuators(PENDULUM)


def test_counts_are_rounded_within_the_rigs_limits() -> None:
    assert [ACTUATORS.to_counts((v,)) for v in (0.00014, -2.99999, 3.1, -99.0)] == [
        (1,), (-30_000,), (30_000,), (-30_000,)
    ]  # fmt: skip
    assert ACTUATORS.safe_counts == (0,)


def test_every_actuator_has_its_own_resolution() -> None:
    resolutions = [a.resolution for a in MAGMAN.rig.actuators]
    assert Actuators(MAGMAN).to_si(range(len(resolutions))) == tuple(i * r for i, r in enumerate(resolutions))


def test_the_outputs_of_a_frame_are_the_latest_first_and_safe_if_the_frame_says_so() -> None:
    assert ACTUATORS.outputs(state(1, u_start=(10_000,), u_end=(20_000,))) == ((2.0,), (1.0,))
    safe_state = state(1, u_start=(10_000,), u_end=(20_000,), status=Status.ARMED | Status.SAFE)
    assert ACTUATORS.outputs(safe_state) == ((0.0,), (0.0,))


def test_a_switch_occurs_at_the_latest_at_the_end_of_the_period() -> None:
    late_state = state(1, u_start=(10_000,), u_end=(20_000,), tau_us=2 * PENDULUM.period_us)
    assert ACTUATORS.applied(late_state) == (PENDULUM.period_us, (1.0,))
