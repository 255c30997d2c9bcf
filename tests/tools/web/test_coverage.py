from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.runtime.shm.view_segment import sample_dtype
from onrig.tools.web.coverage import UNKNOWN, pack_sample


def sample(n: int, seed: int = 0) -> NDArray[np.void]:
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, sample_dtype(2, 1))
    rows["number"] = np.arange(1, n + 1)
    rows["observation"] = rng.uniform(-1, 1, (n, 2))
    rows["exploration"] = rng.uniform(0, 2, n)
    rows["abs_td"] = rng.uniform(0, 1, n)
    rows["reward"] = -rng.uniform(0, 100, n)
    return rows


def levels(packed_levels: dict[str, object], name: str) -> NDArray[np.uint8]:
    colours = packed_levels["colours"]
    assert isinstance(colours, dict)
    return np.frombuffer(base64.b64decode(colours[name]["levels"]), np.uint8)


@given(n=st.integers(1, 50), seed=st.integers(0, 99))
def test_positions_are_decoded_as_encoded(n: int, seed: int) -> None:
    rows = sample(n, seed)
    positions = pack_sample(rows, n)["positions"]
    assert isinstance(positions, list)
    for i in range(2):
        decoded = np.frombuffer(base64.b64decode(positions[i]), "<i2") / 8192
        np.testing.assert_allclose(decoded, rows["observation"][:, i], atol=1 / 8192)


def test_positions_out_of_range_stay_at_the_edge() -> None:
    rows = sample(2)
    rows["observation"][0] = 1e9, np.nan
    positions = pack_sample(rows, 2)["positions"]
    assert isinstance(positions, list)
    assert np.frombuffer(base64.b64decode(positions[0]), "<i2")[0] == 32767


@pytest.mark.parametrize("name", ["age", "exploration", "td", "reward"])
def test_colours_increase_with_their_value(name: str) -> None:
    rows = sample(300)
    values_by_colour = {
        "age": -rows["number"],
        "exploration": rows["exploration"],
        "td": rows["abs_td"],
        "reward": rows["reward"],
    }
    order = np.argsort(values_by_colour[name])
    assert (np.diff(levels(pack_sample(rows, 300), name)[order].astype(int)) >= 0).all()


def test_unreplayed_experiences_have_no_colour() -> None:
    rows = sample(20)
    rows["abs_td"][:5] = np.nan
    assert (levels(pack_sample(rows, 20), "td") == UNKNOWN).tolist() == [True] * 5 + [False] * 15
    rows["abs_td"] = np.nan
    assert (levels(pack_sample(rows, 20), "td") == UNKNOWN).all()


def test_equal_values_and_no_values_have_a_colour_too() -> None:
    rows = sample(4)
    rows["reward"] = -1.0
    assert levels(pack_sample(rows, 4), "reward").tolist() == [0] * 4
    assert pack_sample(rows[:0], 0)["shown"] == 0
