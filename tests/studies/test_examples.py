"""Learning of the examples (minutes to a quarter of an hour each): ``make study``."""

from __future__ import annotations

import sys

import pytest

from tests.studies.examples import MEASURES, main


@pytest.mark.study
@pytest.mark.parametrize("example", sorted(MEASURES))
def test_nine_of_ten_seeds_learn(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if example == "inverted-double-pendulum":
        pytest.importorskip("mujoco")
    monkeypatch.setattr(sys, "argv", ["examples", example])
    assert main() == 0
