"""Comparison of a recomputed step with its record, field by field."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.runtime.normalisation import Normalisation
from onrig.runtime.record import CRC, FIELDS, Flag, Kind, RecordLayout, Step
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.tools.replaying.recorded import RecordedStep


def decision_fields(layout: RecordLayout) -> list[str]:
    """Return the recomputed fields of a record, in the order in which the tick decides them; all others are copied."""
    decisions = {f.name for f in layout.fields if f.stored.source == "decision"}
    return [f.name for f in FIELDS if f.name in decisions]


_COPIED_FLAGS: Final = int(Flag.PROBATION | Flag.ROLLED_BACK)


class Difference(NamedTuple):
    """Field of a record whose recomputed value differs."""

    episode: int
    kind: Kind
    tick: int
    field: str
    recorded: str
    recomputed: str

    def __str__(self) -> str:
        location = f"episode {self.episode} ({self.kind.name.lower()}), tick {self.tick}"
        return f"{location}: {self.field} is recorded as {self.recorded}, recomputed as {self.recomputed}"


class Comparison:
    """Comparison of recomputed steps with records, which counts the differences.

    ``tolerance`` is in normalised units; 0 requires equality bit for bit.
    """

    def __init__(self, config: RunConfig, tolerance: float = 0.0) -> None:
        rig = config.rig
        self._layout = record_layout(config)
        self.decisions: Final = decision_fields(self._layout)
        self._buffer = memoryview(bytearray(self._layout.size))
        self._tolerance = tolerance
        half_ranges = Normalisation.from_signals(rig.actuators).half_range
        scales: dict[tuple[str, str], npt.NDArray[np.float64]] = {
            ("actuator", "SI"): half_ranges,
            ("signal", "SI"): Normalisation.from_signals(rig.signals).half_range,
            ("input", "SI"): Normalisation.from_signals(config.signals).half_range,
            ("actuator", "counts"): half_ranges / [a.resolution for a in rig.actuators],
        }
        self._scales = {f.name: scales.get((f.stored.per, f.stored.unit), 1.0) for f in FIELDS}
        self.ticks: Counter[Kind] = Counter()
        """Number of completely compared records, by kind of episode."""
        self.n_differing = 0
        """Number of records with a difference."""
        self.fields: Counter[str] = Counter()
        """Number of differences in each field."""
        self.first: Difference | None = None
        self.unverified: Counter[str] = Counter()
        """Number of records that were not fully compared, by reason."""
        self._last_seq = -1

    @property
    def is_tolerant(self) -> bool:
        """Whether values may differ by a tolerance."""
        return self._tolerance > 0.0

    def take(self, step: Step, record: RecordedStep, *, excluded: tuple[str, ...] = ()) -> None:
        """Compare one record, except for the fields in ``excluded``."""
        self._layout.pack_into(self._buffer, 0, record.seq, self._layout.values(step))
        self.ticks[record.step.kind] += 1
        recorded_bytes = record.row.tobytes()
        if self._buffer == recorded_bytes:
            return
        computed = np.frombuffer(self._buffer, self._layout.dtype)[0]
        differing_fields = [
            name for name in self.decisions if name not in excluded and not self._is_equal(name, computed, record.row)
        ]
        # If all decisions are equal but the checksum is wrong, some other field was changed after the loop wrote it.
        if (
            not differing_fields
            and not self._tolerance
            and not excluded
            and not self._layout.has_valid_crc(memoryview(recorded_bytes))
        ):
            differing_fields = [CRC.name]
        self.count_differences(
            record, *((name, str(record.row[name]), str(computed[name])) for name in differing_fields)
        )

    def compare_policy(self, policy: tuple[float, ...], record: RecordedStep) -> None:
        """Compare only a policy's action, (m,)."""
        computed = np.array(policy, np.float32)
        recorded = record.row["policy"]
        if not self._is_near("policy", computed, recorded):
            self.count_differences(record, ("policy", str(recorded), str(computed)))

    def count_differences(self, record: RecordedStep, *differences: tuple[str, str, str]) -> None:
        """Count the differences (field, recorded, recomputed) in one record."""
        if not differences:
            return
        self.n_differing += record.seq != self._last_seq
        self._last_seq = record.seq
        for name, recorded, recomputed in differences:
            self.fields[name] += 1
            if self.first is None:
                self.first = Difference(
                    record.step.episode, record.step.kind, record.step.tick, name, recorded, recomputed
                )

    def _is_equal(self, name: str, computed: np.void, row: npt.NDArray[np.void]) -> bool:
        recomputed, recorded = np.asarray(computed[name]), np.asarray(row[name])
        if name == "flags":
            return bool((recomputed | _COPIED_FLAGS) == (recorded | _COPIED_FLAGS))
        return recomputed.tobytes() == recorded.tobytes() or self._is_near(name, recomputed, recorded)

    def _is_near(self, name: str, recomputed: npt.NDArray[np.generic], recorded: npt.NDArray[np.generic]) -> bool:
        if not self._tolerance or recomputed.dtype.kind not in "fi":
            return False
        a, b = recomputed.astype(np.float64), recorded.astype(np.float64)
        bound = self._tolerance * np.asarray(self._scales[name])
        if name == "command":
            bound = bound + 1.0
        elif name == "reward":
            bound = bound * max(1.0, float(np.abs(b)))
        return bool(((np.abs(a - b) <= bound) | (np.isnan(a) & np.isnan(b))).all())
