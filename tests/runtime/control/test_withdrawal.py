"""The loop's reaction to a withdrawn promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from onrig.runtime.control import withdrawal
from onrig.runtime.control.withdrawal import CAUSE, DEPARTURE, WITHDRAWAL_FACTOR, WithdrawalWatch, withdrawal_reaction
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.record import Kind
from onrig.runtime.run_config import Device, Port, RunConfig
from onrig.runtime.shm.board import Word
from tests.runtime.samples import PENDULUM


class PauseRecorder:
    def __init__(self) -> None:
        self.causes: list[str] = []

    def pause_until(self, condition: Callable[[], bool], cause: str, hint: str) -> None:
        assert not condition(), "only a person ends it"
        self.causes.append(cause)


def load_with_reaction(reaction: str | None, *, port: bool = False) -> RunConfig:
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
def test_a_real_device_pauses_by_default(reaction: str | None, port: bool, expected: str) -> None:
    assert withdrawal_reaction(load_with_reaction(reaction, port=port)) == expected


def test_it_pauses_once_until_an_operator_rearms() -> None:
    board: dict[Word, int] = {Word.PROMISE_WITHDRAWN: 0, Word.PLANT_DEPARTED: 0}
    pauses, config = PauseRecorder(), load_with_reaction(None, port=True)
    watch = WithdrawalWatch(config, cast(Any, board), cast(Any, pauses), Explorer(config))
    watch.apply()
    assert not pauses.causes
    board[Word.PROMISE_WITHDRAWN] = 1
    watch.apply()
    watch.apply()
    assert pauses.causes == [CAUSE]


def test_it_also_pauses_once_when_the_plant_has_left_its_identification(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(withdrawal, "report", lambda source, kind, line: lines.append(line))
    board: dict[Word, int] = {Word.PROMISE_WITHDRAWN: 0, Word.PLANT_DEPARTED: 1}
    pauses, config = PauseRecorder(), load_with_reaction(None, port=True)
    watch = WithdrawalWatch(config, cast(Any, board), cast(Any, pauses), Explorer(config))
    watch.apply()
    watch.apply()
    assert pauses.causes == lines == [DEPARTURE]
    board[Word.PROMISE_WITHDRAWN] = 1
    watch.apply()
    assert pauses.causes == [DEPARTURE, CAUSE]


def test_it_continues_with_a_tenth_of_the_exploration() -> None:
    config = load_with_reaction("reduce")
    explorer, pauses = Explorer(config), PauseRecorder()
    watch = WithdrawalWatch(
        config, cast(Any, {Word.PROMISE_WITHDRAWN: 1, Word.PLANT_DEPARTED: 1}), cast(Any, pauses), explorer
    )
    explorer.begin_episode(Kind.TRAIN, 1)
    (before,) = explorer.amplitude(1.0)
    explorer.end_episode()
    watch.apply()
    explorer.begin_episode(Kind.TRAIN, 1)
    assert explorer.amplitude(1.0) == pytest.approx((WITHDRAWAL_FACTOR * before,))
    assert before > 0.0
    assert not pauses.causes
