"""Untrusted text for a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.printable import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb", "a\\nb"),
        ("\u202eabc", "\\u202eabc"),
        ("\x9b2J", "\\x9b2J"),
        ("\ud800", "\\ud800"),
        ("[/x] 20 °C, µm, é, 日本", "[/x] 20 °C, µm, é, 日本"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, expected: str) -> None:
    assert printable(text) == expected


@given(st.text(st.characters()), st.integers(1, 50))
def test_any_text_becomes_printable_and_bounded(text: str, max_length: int) -> None:
    escaped = printable(text, max_length)
    assert escaped.isprintable()
    assert len(escaped) <= 10 * max_length
    assert all(c.isprintable() or c in "\n\t" for c in printable_lines(text))


@given(st.text(st.characters()))
def test_printable_text_is_unchanged(text: str) -> None:
    assert printable(printable(text, 10**6), 10**6) == printable(text, 10**6)


def test_a_long_text_ends_in_an_ellipsis() -> None:
    assert printable("x" * 11, 10) == "x" * 9 + "…"
