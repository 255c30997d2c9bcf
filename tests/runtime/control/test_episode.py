from __future__ import annotations

from math import isnan, nan

import pytest

from onrig.runtime.control.episode import Fade


def test_the_command_goes_down_to_the_safe_output_in_equal_steps() -> None:
    fade = Fade(0.08, 50, (0.0, 1.0))
    assert not fade.has_started
    fade.begin()
    steps = []
    while not fade.is_finished:
        steps.append(fade.next((10.0, 6.0)))
    assert steps == [pytest.approx((10 * s, 1 + 5 * s)) for s in (0.8, 0.6, 0.4, 0.2)]


def test_asking_twice_does_not_begin_anew() -> None:
    fade = Fade(1.0, 50, (0.0,))
    fade.begin()
    first = fade.next((1.0,))
    fade.begin()
    assert fade.next((1.0,)) < first


def test_no_time_to_fade_is_over_as_it_begins() -> None:
    fade = Fade(0.0, 50, (0.0,))
    assert not fade.is_finished
    fade.begin()
    assert fade.is_finished


def test_what_is_no_number_stays_none_for_the_shield_to_see() -> None:
    fade = Fade(1.0, 50, (0.0,))
    fade.begin()
    assert isnan(fade.next((nan,))[0])
