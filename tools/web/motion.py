"""What the rig does, in as many samples as an eye can use: live, or an episode at a time where time is virtual."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.record import Flag, Kind, Rule
from onrig.runtime.run_config import RunConfig

Records = NDArray[np.void]
Samples = dict[str, object]

SAMPLES_PER_S: Final = 40.0
_CLIP_SAMPLES: Final = 400
_KEPT_S: Final = 10.0
"""A page that opens sees so much of what was before."""
_KINDS: Final = {Kind.TRAIN: "training", Kind.EVAL: "evaluation", Kind.RESET: "reset"}


class Motion:
    """Thins step records; numbers are rounded to what a screen shows."""

    def __init__(self, config: RunConfig) -> None:
        self._spacing_ns = round(1e9 / SAMPLES_PER_S)
        self._period_s = config.period_us * 1e-6
        self._next_ns = 0

    def live(self, records: Records) -> Samples | None:
        """Thin what has come since the last call; None when nothing of it is to be shown."""
        if not len(records):
            return None
        t = records["t_mono_ns"].astype(np.int64)
        slots = t // self._spacing_ns
        before = np.concatenate([[self._next_ns], slots[:-1]])
        chosen = np.flatnonzero(slots != before)
        self._next_ns = int(slots[-1])
        return _samples(records[chosen], _worst_rule(records, chosen)) if len(chosen) else None

    def recent(self, records: Records) -> Samples | None:
        """Thin the last seconds for a page that opens now; leaves ``live`` as it was."""
        if not len(records):
            return None
        records = records[records["t_mono_ns"] > records["t_mono_ns"][-1] - int(_KEPT_S * 1e9)]
        slots = records["t_mono_ns"].astype(np.int64) // self._spacing_ns
        chosen = np.flatnonzero(np.diff(slots, prepend=slots[:1] - 1))
        return _samples(records[chosen], _worst_rule(records, chosen))

    def clip(self, records: Records) -> Samples | None:
        """Thin the newest whole episode of them, times from its start; None when there is none."""
        closing = np.flatnonzero(records["flags"] & Flag.NO_ACTION)
        opening = np.flatnonzero(records["flags"] & Flag.FIRST)
        for end in closing[::-1].tolist():
            starts = opening[opening <= end]
            if not len(starts):
                return None
            episode = records[starts[-1] : end + 1]
            if len(episode) < 2 or episode["kind"][0] == Kind.RESET:
                continue
            chosen = np.unique(np.linspace(0, len(episode) - 1, min(len(episode), _CLIP_SAMPLES)).astype(np.int64))
            samples = _samples(episode[chosen], _worst_rule(episode, chosen))
            samples["t"] = [round(int(i) * self._period_s, 4) for i in chosen]
            samples["episode"] = int(episode["episode"][0])
            samples["kind"] = _KINDS[Kind(episode["kind"][0])]
            return samples
        return None


def _worst_rule(records: Records, chosen: NDArray[np.int64]) -> list[int]:
    """The shield's rule in each chosen record, or in one that was left out before it: none is to go unseen."""
    rules = np.where(records["rule"] == Rule.FALLBACK, 0, records["rule"]).astype(np.int64)
    worst = np.maximum.reduceat(rules, np.concatenate([[0], chosen[:-1] + 1])[: len(chosen)]) if len(chosen) else rules
    own = records["rule"][chosen].astype(np.int64)
    rules_shown: list[int] = np.where(worst > 0, worst, own).tolist()
    return rules_shown


def _samples(records: Records, rules: list[int]) -> Samples:
    return {
        "t": [round(v, 4) for v in (records["t_mono_ns"].astype(np.float64) / 1e9).tolist()],
        "observation": _columns(records["observation"]),
        "policy": _columns(records["policy"]),
        "applied": _columns(records["applied"]),
        "rule": rules,
        "reward": _rounded(records["reward"]),
        "amplitude": _rounded(records["amplitude"].max(axis=1)),
        "margin": _rounded(records["margin"]),
    }


def _columns(values: NDArray[np.floating]) -> list[list[float | None]]:
    return [_rounded(values[:, i]) for i in range(values.shape[1])]


def _rounded(values: NDArray[np.floating]) -> list[float | None]:
    """Five digits; None for what is no number."""
    return [float(f"{v:.5g}") if v - v == 0 else None for v in values.astype(np.float64).tolist()]
