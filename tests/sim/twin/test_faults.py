from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw.framing import FrameReader, encode_frame
from onrig.sim.twin.faults import Delivery, Direction, FaultInjector, FaultPlan, FaultRates, Kind, ScheduledFault
from onrig.sim.twin.options import TwinOptions

DIRECTIONS: tuple[Direction, Direction] = ("to_host", "to_device")


def deliveries(plan: FaultPlan, frames: int, direction: Direction = "to_host") -> list[Delivery]:
    """One wire frame per state frame, told apart by its content."""
    injector = FaultInjector(plan)
    out = []
    for n in range(1, frames + 1):
        injector.begin_frame()
        out.append(injector.transform(direction, b"frame %d" % n))
    return out


def scheduled(kind: Kind, frame: int, frames: int = 1, direction: Direction | None = None) -> FaultPlan:
    return FaultPlan(scheduled=(ScheduledFault(kind, frame, frames, direction or "both"),))


@pytest.mark.parametrize("direction", DIRECTIONS)
@given(data=st.binary(max_size=50))
def test_without_a_plan_everything_passes(direction: Direction, data: bytes) -> None:
    injector = FaultInjector(FaultPlan())
    assert not injector.begin_frame()
    assert injector.transform(direction, data) == [(0, data)]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_certain_fault_happens_to_every_frame_of_its_direction_only(direction: Direction) -> None:
    other: Direction = "to_device" if direction == "to_host" else "to_host"
    for rates, expected in (
        (FaultRates(drop=1.0), []),
        (FaultRates(delay=1.0), [(700, b"frame 1")]),
        (FaultRates(duplicate=1.0), [(0, b"frame 1"), (0, b"frame 1")]),
    ):
        plan = msgspec.structs.replace(FaultPlan(delay_us=700), **{direction: rates})
        assert deliveries(plan, 1, direction) == [expected]
        assert deliveries(plan, 1, other) == [[(0, b"frame 1")]]


@given(st.binary(min_size=1, max_size=50), st.integers(0, 1000))
def test_corruption_alters_exactly_one_byte(data: bytes, seed: int) -> None:
    injector = FaultInjector(FaultPlan(seed=seed, to_host=FaultRates(corrupt=1.0)))
    ((delay_us, damaged),) = injector.transform("to_host", data)
    assert delay_us == 0
    assert len(damaged) == len(data)
    assert sum(a != b for a, b in zip(data, damaged, strict=True)) == 1


def test_a_corrupted_frame_never_arrives_as_a_different_valid_one() -> None:
    injector = FaultInjector(FaultPlan(to_host=FaultRates(corrupt=1.0)))
    for n in range(200):
        body = b"\x11" + n.to_bytes(4, "little")
        ((_, damaged),) = injector.transform("to_host", encode_frame(body))
        assert FrameReader().feed(damaged) in ([], [body])


def test_the_seed_determines_the_faults() -> None:
    rates = FaultRates(drop=0.2, corrupt=0.2, delay=0.2, duplicate=0.2)
    plan = FaultPlan(seed=3, to_host=rates)
    assert deliveries(plan, 50) == deliveries(plan, 50)
    assert deliveries(plan, 50) != deliveries(msgspec.structs.replace(plan, seed=4), 50)


def test_faults_occur_with_their_probabilities() -> None:
    lost = sum(not d for d in deliveries(FaultPlan(to_host=FaultRates(drop=0.25)), 4000))
    # Four standard deviations of a binomial count.
    assert abs(lost - 1000) < 4 * (4000 * 0.25 * 0.75) ** 0.5


def test_one_kind_of_fault_does_not_shift_another() -> None:
    dropping = deliveries(FaultPlan(to_host=FaultRates(drop=0.3)), 100)
    both = deliveries(FaultPlan(to_host=FaultRates(drop=0.3, corrupt=1.0)), 100)
    assert [bool(d) for d in dropping] == [bool(d) for d in both]


def test_each_direction_has_its_own_stream() -> None:
    plan = FaultPlan(to_host=FaultRates(drop=0.5), to_device=FaultRates(drop=0.5))
    alone = deliveries(plan, 60)
    injector = FaultInjector(plan)
    interleaved = []
    for n in range(1, 61):
        injector.begin_frame()
        injector.transform("to_device", b"x")
        interleaved.append(injector.transform("to_host", b"frame %d" % n))
    assert interleaved == alone


@pytest.mark.parametrize("direction", [None, *DIRECTIONS])
def test_a_scheduled_fault_lasts_for_its_frames(direction: Direction | None) -> None:
    plan = scheduled("drop", frame=3, frames=2, direction=direction)
    for line in DIRECTIONS:
        lost = [n for n, d in enumerate(deliveries(plan, 8, line), start=1) if not d]
        assert lost == ([3, 4] if direction in (None, line) else [])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_stall_holds_everything_and_delivers_it_in_order_in_one_burst(direction: Direction) -> None:
    out = deliveries(scheduled("stall", frame=3, frames=3), 7, direction)
    assert [len(d) for d in out] == [1, 1, 0, 0, 0, 4, 1]
    assert out[5] == [(0, b"frame %d" % n) for n in (3, 4, 5, 6)]


def test_a_random_stall_lasts_for_its_frames() -> None:
    out = deliveries(FaultPlan(seed=1, stall=0.02, stall_frames=4), 400)
    bursts = [len(d) for d in out if len(d) > 1]
    assert bursts
    assert all(n >= 5 for n in bursts)


def test_data_held_by_a_stall_can_be_released_once_it_is_over() -> None:
    injector = FaultInjector(scheduled("stall", frame=1, frames=1))
    injector.begin_frame()
    injector.transform("to_device", b"late")
    assert injector.release("to_device") == []
    injector.begin_frame()
    assert injector.release("to_device") == [b"late"]
    assert injector.release("to_device") == []


def test_a_scheduled_reboot_happens_once() -> None:
    injector = FaultInjector(scheduled("reboot", frame=3, frames=4))
    assert [injector.begin_frame() for _ in range(8)] == [False, False, True, False, False, False, False, False]


def test_a_certain_reboot_happens_at_every_frame() -> None:
    injector = FaultInjector(FaultPlan(reboot=1.0))
    assert all(injector.begin_frame() for _ in range(3))


def test_a_plan_is_read_from_yaml_as_part_of_the_twin() -> None:
    section = {
        "plant": {"kind": "pendulum"},
        "faults": {"to_host": {"drop": 0.1}, "scheduled": [{"kind": "stall", "frame": 100, "frames": 5}]},
    }
    plan = msgspec.convert(section, TwinOptions).faults
    assert plan.to_host.drop == 0.1
    assert plan.scheduled == (ScheduledFault("stall", 100, 5),)


@pytest.mark.parametrize(
    "bad",
    [
        {"to_host": {"drop": 1.1}},
        {"stall": -0.1},
        {"scheduled": [{"kind": "explode", "frame": 1}]},
        {"scheduled": [{"kind": "drop", "frame": 0}]},
        {"loss": 0.1},
    ],
)
def test_nonsensical_plans_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, FaultPlan)


def test_a_frozen_line_repeats_the_last_state_frame_before_it() -> None:
    injector = FaultInjector(scheduled("freeze", 3, 2))
    out = []
    for n in range(1, 7):
        injector.begin_frame()
        out.append(injector.state_frame(b"%d" % n))
    assert out == [b"1", b"2", b"2", b"2", b"5", b"6"]


def test_the_estop_is_pressed_for_the_scheduled_duration() -> None:
    injector = FaultInjector(scheduled("estop", 2, 3))
    pressed = []
    for _ in range(6):
        injector.begin_frame()
        pressed.append(injector.is_active("estop"))
    assert pressed == [False, True, True, True, False, False]
