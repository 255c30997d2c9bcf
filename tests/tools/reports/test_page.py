"""The parts of a page."""

from __future__ import annotations

import re

import pytest

from onrig.tools.reports import page
from onrig.tools.reports.page import Badge, Tile


def styled_classes() -> set[str]:
    """Classes that are defined in the style sheet of a page."""
    sheet = next(value for name, value in vars(page).items() if isinstance(value, str) and ".badge" in value)
    return set(re.findall(r"\.([a-z][\w-]*)", sheet))


@pytest.mark.parametrize("part", [Badge("completed", True), Badge("fault", False), Tile("3", "faults", True)])
def test_each_css_class_of_a_part_is_styled(part: Badge | Tile) -> None:
    (names,) = re.findall(r'class="([^"]+)"', part.html())
    assert set(names.split()) <= styled_classes()
