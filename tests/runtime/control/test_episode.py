from __future__ import annotations

from math import isnan, nan

import pytest

from onrig.runtime.control.episode import Fade


def test_the_command_fades_to_the_safe_output_in_equal_steps() -> None:
    fade = Fade(0.08, 50, (0.0, 1.0))
    assert not fade.has_started
    fade.begin()
    steps = []
    while not fade.is_finished:
        steps.append(fade.next((10.0, 6.0)))
    assert steps == [pytest.approx((10 * s, 1 + 5 * s)) for s in (0.8, 0.6, 0.4, 0.2)]


def test_a_second_request_does_not_restart_the_fade() -> None:
    fade = Fade(1.0, 50, (0.0,))
    fade.begin()
    first = fade.next((1.0,))
    fade.begin()
    assert fade.next((1.0,)) < first


def test_a_fade_of_zero_length_ends_as_it_begins() -> None:
    fade = Fade(0.0, 50, (0.0,))
    assert not fade.is_finished
    fade.begin()
    assert fade.is_finished


def test_a_non_finite_command_remains_non_finite_for_the_shield() -> None:
    fade = Fade(1.0, 50, (0.0,))
    fade.begin()
    assert isnan(fade.next((nan,))[0])
