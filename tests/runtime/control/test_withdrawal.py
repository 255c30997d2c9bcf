"""The loop's reaction to a withdrawn promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from onrig.runtime.control.withdrawal import CAUSE, WITHDRAWAL_FACTOR, WithdrawalWatch, withdrawal_reaction
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.record import Kind
from onrig.runtime.run_config import Device, Port, RunConfig
from onrig.runtime.shm.board import Word
from tests.runtime.samples import PENDULUM


class Stands:
    def __init__(self) -> None:
        self.causes: list[str] = []

    def pause_until(self, condition: Callable[[], bool], cause: str, hint: str) -> None:
        assert not condition(), "only a person ends it"
        self.causes.append(cause)


def configured(reaction: str | None, *, port: bool = False) -> RunConfig:
    config = PENDULUM
    if reaction is not None:
        limits = msgspec.structs.replace(config.limits, on_withdrawn=reaction)
        config = msgspec.structs.replace(config, limits=limits)
    return msgspec.structs.replace(config, device=Device(port=Port("/dev/null"))) if port else config


@pytest.mark.parametrize(
    ("reaction", "port", "expected"),
    [
        (None, True, "pause"), (None, False, ""), ("reduce", True, "reduce"), ("pause", False, "pause"),
        ("reduce", False, "reduce"),
    ],
)  # fmt: skip
def test_a_real_device_pauses_unless_told_otherwise(reaction: str | None, port: bool, expected: str) -> None:
    assert withdrawal_reaction(configured(reaction, port=port)) == expected


def test_it_pauses_once_until_a_person_re_arms() -> None:
    board: dict[Word, int] = {Word.PROMISE_WITHDRAWN: 0}
    stands, config = Stands(), configured(None, port=True)
    withdrawal = WithdrawalWatch(config, cast(Any, board), cast(Any, stands), Explorer(config))
    withdrawal.apply()
    assert not stands.causes
    board[Word.PROMISE_WITHDRAWN] = 1
    withdrawal.apply()
    withdrawal.apply()
    assert stands.causes == [CAUSE]


def test_it_goes_on_with_a_tenth_of_the_exploration() -> None:
    config = configured("reduce")
    explorer, stands = Explorer(config), Stands()
    withdrawal = WithdrawalWatch(config, cast(Any, {Word.PROMISE_WITHDRAWN: 1}), cast(Any, stands), explorer)
    explorer.begin_episode(Kind.TRAIN, 1)
    (before,) = explorer.amplitude(1.0)
    explorer.end_episode()
    withdrawal.apply()
    explorer.begin_episode(Kind.TRAIN, 1)
    assert explorer.amplitude(1.0) == pytest.approx((WITHDRAWAL_FACTOR * before,))
    assert before > 0.0
    assert not stands.causes
