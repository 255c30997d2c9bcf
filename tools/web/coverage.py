"""What the memory holds, packed for a page: where the experiences lie and what colours them."""

from __future__ import annotations

import base64
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.memory.layout import Flag

Values = NDArray[np.floating]

UNKNOWN: Final = 255
"""Level of an experience of which the colour is not known."""
_TOP: Final = 254
_SCALE: Final = 8192
"""A normalised unit in the packed positions, which so reach from -4 to 4."""
_LEAST_TD: Final = 1e-6


def pack_sample(sample: NDArray[np.void], inserted: int) -> dict[str, object]:
    """Pack a sample (dtype ``onrig.runtime.view.layout.sample_dtype``) of a memory that was written ``inserted`` times.

    ``positions``: per observation the normalised values times 8192, little-endian int16 in base64.  ``colours``: per
    name {low, high, log, levels}: levels 0 to 254 between low and high (255: unknown), one byte each in base64; with
    ``log`` they are even in the logarithm.
    """
    age = np.maximum(inserted - sample["number"], 0).astype(np.float64)
    return {
        "shown": len(sample),
        "positions": [_positions(sample["observation"][:, i]) for i in range(sample["observation"].shape[1])],
        "synthetic": int(np.count_nonzero(sample["flags"] & Flag.SYNTHETIC)),
        "colours": {
            "age": _levels(age),
            "exploration": _levels(sample["exploration"].astype(np.float64), low=0.0),
            "td": _log_levels(sample["abs_td"].astype(np.float64)),
            "reward": _levels(sample["reward"].astype(np.float64)),
        },
    }


def _positions(values: Values) -> str:
    packed = np.clip(np.nan_to_num(values.astype(np.float64)) * _SCALE, -32767, 32767).round().astype("<i2")
    return base64.b64encode(packed.tobytes()).decode()


def _levels(values: Values, low: float | None = None) -> dict[str, object]:
    known = values[np.isfinite(values)]
    if not len(known):
        return _packed(np.full(len(values), UNKNOWN, np.uint8), None, None, log=False)
    # One outlier is not to leave all the others in one colour.
    least = float(np.quantile(known, 0.005)) if low is None else low
    most = float(np.quantile(known, 0.995))
    span = most - least
    share = (values - least) / span if span > 0 else np.where(np.isfinite(values), 0.0, np.nan)
    return _packed(_bytes(share), least, most, log=False)


def _log_levels(values: Values) -> dict[str, object]:
    known = values[np.isfinite(values)]
    if not len(known):
        return _packed(np.full(len(values), UNKNOWN, np.uint8), None, None, log=True)
    least = max(float(np.quantile(known, 0.05)), _LEAST_TD)
    most = max(float(np.quantile(known, 0.995)), least * 1.001)
    share = np.log(np.maximum(values, _LEAST_TD) / least) / np.log(most / least)
    return _packed(_bytes(share), least, most, log=True)


def _bytes(share: Values) -> NDArray[np.uint8]:
    known = np.isfinite(share)
    levels = np.clip(np.where(known, share, 0.0) * _TOP, 0, _TOP).round().astype(np.uint8)
    return np.where(known, levels, np.uint8(UNKNOWN)).astype(np.uint8)


def _packed(levels: NDArray[np.uint8], low: float | None, high: float | None, *, log: bool) -> dict[str, object]:
    return {"low": low, "high": high, "log": log, "levels": base64.b64encode(levels.tobytes()).decode()}
