"""Bounded history of a run for a page: episodes, events, policies, and samples of the motion."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.images import unpack_images
from onrig.runtime.inputs import image_columns
from onrig.runtime.record import Flag, Kind, Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.episodes import EpisodeRow
from onrig.runtime.task import episode_steps
from onrig.runtime.view.run_view import RunView
from onrig.runtime.view.sentences import VERDICTS, Event, event_text, reason_of, with_count

MAX_ROWS: Final = 2000
Row = list[float | int | None]
Item = dict[str, object]
FIELDS: Final = ("episode", "eval", "steps", "score", "exploration", "interventions", "missed", "policy")
"""Columns of a row; ``score`` is that of ``onrig.runtime.scoring.measure_of``. A merged row has the number of its last
episode, the means of score and exploration, and the sums of interventions and missed ticks."""
_EPISODE, _EVAL, _SCORE, _EXPLORATION, _INTERVENTIONS, _MISSED = 0, 1, 3, 4, 5, 6
_MAX_ITEMS: Final = 200
_MAX_POLICIES: Final = 4000


class EpisodeHistory:
    """Rows of episodes; if there are more than ``limit``, neighbouring rows are merged in pairs."""

    def __init__(self, limit: int = MAX_ROWS) -> None:
        self._limit = limit
        self.rows: list[Row] = []
        self.merged = 1
        """Largest number of episodes in one row."""

    def add(self, episodes: Iterable[EpisodeRow]) -> list[Row] | None:
        """Add episodes, and return the new rows, or None if earlier rows have changed as well.

        A resumed run repeats the episodes after its checkpoint, and their rows replace the earlier ones.
        """
        new_rows = [_row(e) for e in episodes]
        replaces_rows = bool(new_rows) and any(
            r[_EVAL] == new_rows[0][_EVAL] and _number(r) >= _number(new_rows[0]) for r in self.rows
        )
        if replaces_rows:
            self.rows = [row for row in self.rows if _number(row) < _number(new_rows[0])]
        if not self.rows:
            self.merged = 1
        self.rows += new_rows
        if len(self.rows) <= self._limit:
            return None if replaces_rows else new_rows
        while len(self.rows) > self._limit:
            self._merge()
        return None

    def _merge(self) -> None:
        self.merged *= 2
        merged: list[Row] = []
        for kind in (0, 1):
            rows = [r for r in self.rows if r[_EVAL] == kind]
            merged += [_merge_pair(a, b) for a, b in zip(rows[::2], rows[1::2], strict=False)]
            merged += rows[len(rows) & ~1 :]
        self.rows = sorted(merged, key=lambda row: (_number(row), row[_EVAL]))


class EventHistory:
    """Newest events, as sentences, and verdicts on policies."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        """Dictionaries of ``what``, ``level``, ``text`` and ``t`` (Unix time in s)."""
        self.policies: list[list[object]] = []
        """[id, verdict, reason] in order of arrival."""

    def add(self, events: Iterable[Event]) -> tuple[list[Item], list[list[object]]]:
        """Add events, and return the new items and policies."""
        items: list[Item] = []
        policies: list[list[object]] = []
        for event in events:
            if event.kind in VERDICTS:
                policies.append([event.fields.get("policy"), VERDICTS[event.kind], reason_of(event)])
            message = event_text(event)
            if message is not None:
                text = with_count(event, message.text)
                items.append({"t": event.t_unix_s, "what": message.what, "level": message.level, "text": text})
        self.items = [*self.items, *items][-_MAX_ITEMS:]
        self.policies = [*self.policies, *policies][-_MAX_POLICIES:]
        return items[-_MAX_ITEMS:], policies[-_MAX_POLICIES:]


def _number(row: Row) -> float:
    return row[_EPISODE] or 0


def _row(e: EpisodeRow) -> Row:
    score = float(f"{e.score:.6g}") if math.isfinite(e.score) else None
    return [
        e.episode,
        int(e.kind == "eval"),
        e.steps,
        score,
        round(e.exploration, 4),
        e.interventions,
        e.missed_ticks,
        e.policy_id,
    ]


def _merge_pair(a: Row, b: Row) -> Row:
    row = list(b)
    for i in (_SCORE, _EXPLORATION):
        values = [v for v in (a[i], b[i]) if v is not None]
        row[i] = float(f"{sum(values) / len(values):.6g}") if values else None
    for i in (_INTERVENTIONS, _MISSED):
        row[i] = (a[i] or 0) + (b[i] or 0)
    return row


Records = NDArray[np.void]
_MIN_RECORDS_READ: Final = 8192
_EPISODES_READ: Final = 4
"""Number of episodes read from the end of the log, enough to contain the last complete one."""
Samples = dict[str, object]

SAMPLES_PER_S: Final = 40.0
_MAX_CLIP_SAMPLES: Final = 400
_RECENT_S: Final = 10.0
"""Duration of past motion that a page shows when it opens (s)."""
_KINDS: Final = {Kind.TRAIN: "training", Kind.EVAL: "evaluation", Kind.RESET: "reset"}


class Motion:
    """Downsampler of step records for the page, which rounds values to five digits."""

    def __init__(self, config: RunConfig) -> None:
        self._spacing_ns = round(1e9 / SAMPLES_PER_S)
        self._period_s = config.period_us * 1e-6
        self._images = image_columns(config.task.inputs, config.rig)
        self._slot = 0
        self._pending: Records | None = None
        """Records after the newest sample; the next sample marks their interventions."""

    def live(self, records: Records) -> Samples | None:
        """Downsample the records since the last call, or return None if there is no new sample."""
        if not len(records):
            return None
        if self._pending is not None:
            records = np.concatenate([self._pending, records])
        slots = records["t_mono_ns"].astype(np.int64) // self._spacing_ns
        selected = np.flatnonzero(np.diff(slots, prepend=self._slot))
        self._slot = int(slots[-1])
        self._pending = records[selected[-1] + 1 :].copy() if len(selected) else records
        return self._samples(records, selected) if len(selected) else None

    def recent(self, records: Records) -> Samples | None:
        """Downsample the last few seconds for a page that opens now, without affecting ``live``."""
        if not len(records):
            return None
        records = records[records["t_mono_ns"] > records["t_mono_ns"][-1] - int(_RECENT_S * 1e9)]
        slots = records["t_mono_ns"].astype(np.int64) // self._spacing_ns
        selected = np.flatnonzero(np.diff(slots, prepend=slots[:1] - 1))
        return self._samples(records, selected)

    def clip(self, records: Records) -> Samples | None:
        """Downsample the newest complete episode, with times from its start, or return None if there is none."""
        last_indices = np.flatnonzero(records["flags"] & Flag.NO_ACTION)
        first_indices = np.flatnonzero(records["flags"] & Flag.FIRST)
        for end in last_indices[::-1].tolist():
            starts = first_indices[first_indices <= end]
            if not len(starts):
                return None
            episode = records[starts[-1] : end + 1]
            if len(episode) < 2 or episode["kind"][0] == Kind.RESET:
                continue
            selected = np.unique(
                np.linspace(0, len(episode) - 1, min(len(episode), _MAX_CLIP_SAMPLES)).astype(np.int64)
            )
            samples = self._samples(episode, selected)
            samples["t"] = [round(int(i) * self._period_s, 4) for i in selected]
            samples["episode"] = int(episode["episode"][0])
            samples["kind"] = _KINDS[Kind(episode["kind"][0])]
            return samples
        return None

    def _samples(self, records: Records, selected: NDArray[np.int64]) -> Samples:
        samples = _samples(records, selected, has_inputs=not self._images and "input" in (records.dtype.names or ()))
        if self._images:
            inputs = records["input"][selected]
            samples["image"] = [
                _encode_images(unpack_images(inputs[:, columns], camera.pixels))
                for camera, columns in self._images.items()
            ]
        return samples


def stored_clip(view: RunView) -> Samples | None:
    """Return the last complete episode in a run's log, as ``Motion.clip`` does; None if there is no readable log."""
    try:
        from onrig.runtime.log.reading import LogDamagedError, read_last
    except ImportError:  # the extra `log`
        return None
    config = view.config
    max_records = max(_MIN_RECORDS_READ, _EPISODES_READ * (episode_steps(config.task, config.rate_hz) + 1))
    try:
        records = read_last(
            view.folder, config.rig, max_records, behaviour=config.stochastic, inputs=config.input_names
        )
    except LogDamagedError:
        return None
    return Motion(config).clip(records) if len(records) else None


def _worst_rule(records: Records, selected: NDArray[np.int64]) -> list[int]:
    """Return, for each selected record, the shield's rule in it or in the skipped records before it.

    Skipping records therefore hides no intervention.
    """
    worst_rules = _max_over_skipped(
        np.where(records["rule"] == Rule.FALLBACK, 0, records["rule"]).astype(np.int64), selected
    )
    own_rules = records["rule"][selected].astype(np.int64)
    rules_shown: list[int] = np.where(worst_rules > 0, worst_rules, own_rules).tolist()
    return rules_shown


def _max_over_skipped(values: NDArray[np.int64], selected: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the maximum over each selected record and the skipped ones before it."""
    if not len(selected):
        return values[:0]
    return np.asarray(np.maximum.reduceat(values[: selected[-1] + 1], np.concatenate([[0], selected[:-1] + 1])))


def _samples(records: Records, selected: NDArray[np.int64], *, has_inputs: bool) -> Samples:
    selected_records = records[selected]
    return {
        "t": [round(v, 4) for v in (selected_records["t_mono_ns"].astype(np.float64) / 1e9).tolist()],
        "observation": _columns(selected_records["observation"]),
        **({"input": _columns(selected_records["input"])} if has_inputs else {}),
        "policy": _columns(selected_records["policy"]),
        "applied": _columns(selected_records["applied"]),
        "rule": _worst_rule(records, selected),
        "begins": _max_over_skipped((records["flags"] & Flag.FIRST).astype(np.int64), selected).astype(bool).tolist(),
        "reward": _round(selected_records["reward"]),
        "amplitude": _round(selected_records["amplitude"].max(axis=1)),
        "margin": _round(selected_records["margin"]),
    }


def _encode_images(images: NDArray[np.uint8]) -> list[str]:
    """Encode images (n, 1, pixels) in base64, row by row."""
    return [base64.b64encode(image.tobytes()).decode() for image in images]


def _columns(values: NDArray[np.floating]) -> list[list[float | None]]:
    return [_round(values[:, i]) for i in range(values.shape[1])]


def _round(values: NDArray[np.floating]) -> list[float | None]:
    """Round to five digits, and replace non-finite values by None."""
    return [float(f"{v:.5g}") if v - v == 0 else None for v in values.astype(np.float64).tolist()]
