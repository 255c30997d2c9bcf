"""What computed results, as files name it, and what is said where something else would continue them."""

from __future__ import annotations

import msgspec
import pytest

from onrig.hw.native import Executor, State, difference, executor, executor_of, read_executor, variant

V3, V4, ARM, NUMPY = (executor_of(name) for name in ("x86-64-v3", "x86-64-v4", "aarch64", "none"))
OFF = State(None, "none", "switched off by ONRIG_NATIVE=off")
NOT_BUILT = State(None, "none", "not built: no libonrig-x86-64-v4.so in /there")


def loaded(name: str) -> State:
    return State(None, name)


@pytest.mark.parametrize(
    ("recorded", "here", "available", "said"),
    [
        (V3, loaded("x86-64-v3"), ["x86-64-v3"], None),
        (NUMPY, OFF, ["x86-64-v3"], None),
        (
            V3,
            loaded("x86-64-v4"),
            ["x86-64-v4", "x86-64-v3"],
            "computed by the C library (x86-64-v3); here it would be the C library (x86-64-v4), which rounds "
            "differently: put ONRIG_NATIVE=x86-64-v3 before the command",
        ),
        (
            V4,
            OFF,
            ["x86-64-v4"],
            "computed by the C library (x86-64-v4); here it would be numpy, which rounds differently: "
            "put ONRIG_NATIVE=x86-64-v4 before the command",
        ),
        (
            NUMPY,
            loaded("aarch64"),
            ["aarch64"],
            "computed by numpy; here it would be the C library (aarch64), which rounds differently: "
            "put ONRIG_NATIVE=off before the command",
        ),
        (
            V4,
            loaded("aarch64"),
            ["aarch64"],
            "computed by the C library (x86-64-v4); here it would be the C library (aarch64), which rounds "
            "differently: only a machine with the C library (x86-64-v4) gives the same",
        ),
        (
            V4,
            NOT_BUILT,
            [],
            "computed by the C library (x86-64-v4); here it would be numpy, which rounds differently: only a machine "
            "with the C library (x86-64-v4) gives the same (not built: no libonrig-x86-64-v4.so in /there)",
        ),
    ],
    ids=["same", "numpy, too", "another variant", "switched off", "on numpy", "another processor", "not built"],
)
def test_a_difference_is_named_with_the_way_to_the_same(
    recorded: Executor, here: State, available: list[str], said: str | None
) -> None:
    assert difference(recorded, here, available) == said


@pytest.mark.parametrize("one", [V3, ARM, NUMPY])
def test_files_give_it_back(one: Executor) -> None:
    assert read_executor(msgspec.json.decode(msgspec.json.encode(one))) == one


@pytest.mark.parametrize("field", [None, "x86-64-v3", {}, {"kind": 3}, ["native"]])
def test_what_is_none_is_not_known(field: object) -> None:
    assert read_executor(field) is None


def test_that_of_this_process_follows_the_library() -> None:
    assert executor() == executor_of(variant())
