from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.runtime import registry
from onrig.runtime.memory.strategy import sampling_names
from onrig.tools.reports import style
from onrig.tools.reports.style import (
    PALETTE,
    band_alpha,
    ordinal_style,
    page_colour,
    spread_positions,
    strategy_style,
    surface_colours,
)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_keep_their_order_and_distance_within_the_panel(requested: list[float]) -> None:
    min_gap = 0.08
    positions = spread_positions(sorted(requested), min_gap)
    assert len(positions) == len(requested)
    assert min(positions) >= -1e-9
    assert max(positions) <= 1 + 1e-9
    assert all(b - a >= min_gap - 1e-9 for a, b in itertools.pairwise(positions))


def test_labels_with_room_keep_their_place_and_a_pair_moves_apart_evenly() -> None:
    assert spread_positions([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread_positions([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread_positions([1.0, 1.0], 0.1) == pytest.approx([0.9, 1.0])


def test_every_strategy_looks_different_whoever_registered_it(monkeypatch: pytest.MonkeyPatch) -> None:
    retentions = (*registry.names(registry.RETENTIONS), "Dullest", "Newest")
    names_drawn = (*sampling_names(), "Recent", "Mine(3)+IS")
    monkeypatch.setattr(registry, "names", lambda group: retentions)
    monkeypatch.setattr(style, "sampling_names", lambda: names_drawn)
    styles = {strategy_style(r, s)[:3] for r in retentions for s in names_drawn}
    assert len(styles) == len(retentions) * len(names_drawn)
    assert strategy_style("of another installation", "too").colour.startswith("#")


COLOUR_VISION_MATRICES = {
    "normal": np.eye(3),
    "without red": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "without green": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9690]]),
    "without blue": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}
"""Linear RGB as perceived (Machado et al. 2009)."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def _lab_colour(colour: str, vision_matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIE L*a*b* of a colour as perceived."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear_rgb = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(vision_matrix @ linear_rgb, 0.0, 1.0) / (0.9505, 1.0, 1.0888)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_no_two_of_sixteen_lines_look_the_same() -> None:
    styles = [ordinal_style(k, 16, graded=False) for k in range(16)]
    assert len({(style.colour, style.line) for style in styles}) == 16


@pytest.mark.parametrize("vision_matrix", COLOUR_VISION_MATRICES.values(), ids=COLOUR_VISION_MATRICES.keys())
def test_eight_lines_are_distinguishable_with_any_colour_vision(vision_matrix: NDArray[np.float64]) -> None:
    styles = [ordinal_style(k, 8, graded=False) for k in range(8)]
    assert {style.colour for style in styles} == set(PALETTE)
    lab_colours = [_lab_colour(style.colour, vision_matrix) for style in styles]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(lab_colours, 2)) > 12.0
    assert len({style.line for style in styles[:4]} & {style.line for style in styles[4:]}) == 0


def test_reports_have_the_light_colours_of_the_page() -> None:
    css = style.palette_css()
    assert f"--accent: {style.page_colour('accent')}" in css.partition("light")[2]


@pytest.mark.parametrize("n_bands", [1, 2, 4, 8, 16, 50])
def test_overlapping_bands_are_not_an_opaque_block(n_bands: int) -> None:
    assert 1.0 - (1.0 - band_alpha(n_bands)) ** n_bands < 0.56


@pytest.mark.parametrize("is_one_sided", [False, True])
def test_a_policy_has_the_colours_of_the_page(is_one_sided: bool) -> None:
    from matplotlib.colors import to_hex

    colours = surface_colours(one_sided=is_one_sided)
    assert to_hex(colours(0.0)) == page_colour("surface-mid" if is_one_sided else "surface-low")
    assert to_hex(colours(1.0)) == page_colour("surface-high")
