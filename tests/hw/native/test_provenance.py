"""The executor that computed results, as recorded in files, and the message if another one would continue them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from onrig.hw.native import (
    Executor,
    describe_difference,
    evaluator_difference,
    executor,
    executor_of,
    read_executor,
    variant,
)

V3, V4, ARM, NUMPY = (executor_of(name) for name in ("x86-64-v3", "x86-64-v4", "aarch64", "none"))
BY_TORCH = replace(V3, torch="cuda")
LACKS = "not built: no libonrig-x86-64-v4.so in /there"


@pytest.mark.parametrize(
    ("recorded", "here", "available", "said"),
    [
        (V3, V3, ["x86-64-v3"], None),
        (NUMPY, NUMPY, ["x86-64-v3"], None),
        (
            V3,
            V4,
            ["x86-64-v4", "x86-64-v3"],
            "computed by the C library (x86-64-v3); here it would be the C library (x86-64-v4), which rounds "
            "differently: put ONRIG_NATIVE=x86-64-v3 before the command",
        ),
        (
            V4,
            NUMPY,
            ["x86-64-v4"],
            "computed by the C library (x86-64-v4); here it would be numpy, which rounds differently: "
            "put ONRIG_NATIVE=x86-64-v4 before the command",
        ),
        (
            NUMPY,
            ARM,
            ["aarch64"],
            "computed by numpy; here it would be the C library (aarch64), which rounds differently: "
            "put ONRIG_NATIVE=off before the command",
        ),
        (
            V4,
            ARM,
            ["aarch64"],
            "computed by the C library (x86-64-v4); here it would be the C library (aarch64), which rounds "
            "differently: only a machine with the C library (x86-64-v4) gives the same results",
        ),
        (
            V4,
            NUMPY,
            [],
            "computed by the C library (x86-64-v4); here it would be numpy, which rounds differently: only a machine "
            "with the C library (x86-64-v4) gives the same results (not built: no libonrig-x86-64-v4.so in /there)",
        ),
        (
            BY_TORCH,
            V3,
            ["x86-64-v3"],
            "computed by torch (cuda) and the C library (x86-64-v3); here it would be the C library (x86-64-v3), which "
            "rounds differently: put ONRIG_TORCH=cuda before the command",
        ),
        (
            NUMPY,
            BY_TORCH,
            ["x86-64-v3"],
            "computed by numpy; here it would be torch (cuda) and the C library (x86-64-v3), which rounds differently: "
            "put ONRIG_TORCH= ONRIG_NATIVE=off before the command",
        ),
    ],
    ids=[
        "same",
        "numpy, too",
        "another variant",
        "switched off",
        "on numpy",
        "another processor",
        "not built",
        "torch",
        "not torch",
    ],
)
def test_a_difference_is_named_with_the_remedy(
    recorded: Executor, here: Executor, available: list[str], said: str | None
) -> None:
    assert describe_difference(recorded, here, available, "" if available else LACKS) == said


@pytest.mark.parametrize("one", [V3, ARM, NUMPY, BY_TORCH])
def test_files_are_read_back(one: Executor) -> None:
    assert read_executor(msgspec.json.decode(msgspec.json.encode(one))) == one


@pytest.mark.parametrize("field", [None, "x86-64-v3", {}, {"kind": 3}, ["native"]])
def test_an_invalid_value_counts_as_unknown(field: object) -> None:
    assert read_executor(field) is None


def test_the_executor_of_this_process_follows_the_library() -> None:
    assert replace(executor(), torch="") == executor_of(variant())


def test_torch_is_named_if_it_was_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONRIG_TORCH", "cpu")
    assert executor().torch == "cpu"
    assert evaluator_difference(variant()) is None, "the library still evaluates the policies"
