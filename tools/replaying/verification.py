"""Verification of a complete run, reading its log files in order and checking each session of the loop separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from onrig.hw.native import evaluator_difference
from onrig.runtime.config.document import MAX_BYTES
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.files import read_file
from onrig.runtime.log.reading import Event, LogDamagedError, LogEnd, LogStart, Part, StoredLoopState
from onrig.runtime.log.steps import Records
from onrig.runtime.record import Flag, Kind
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_loading import read_resolved
from onrig.runtime.run_state.completeness import ItemCount
from onrig.runtime.run_state.episodes import EpisodeAccounts, read_rows
from onrig.tools.replaying.comparison import Comparison
from onrig.tools.replaying.positions import Position
from onrig.tools.replaying.recomputation import Recomputation
from onrig.tools.replaying.recorded import PolicyCache, recorded_step

_CONFIG: Final = "config.yaml"
_ROWS: Final = "episodes.csv"
_DECIMATED: Final = "the log contains only some of the ticks (log.decimation)"


class OtherEvaluator(Exception):
    """Raised if the run evaluated its policies with a variant of the C library that differs from this machine's.

    The message names both variants.
    """


class Verification:
    """Verification of the files of a run's log, with the results."""

    def __init__(self, config: RunConfig, folder: Path, tolerance: float = 0.0) -> None:
        self._folder = folder
        self._layout = record_layout(config)
        self._policies = PolicyCache(folder / "policies")
        self.comparison = Comparison(config, tolerance)
        self.episodes: Counter[Kind] = Counter()
        self._accounts_arguments = config.task, config.rate_hz, config.rig
        self._accounts = EpisodeAccounts(*self._accounts_arguments)
        self._logged: dict[tuple[str, int], int] = {}
        """Number of each episode's records in the log; if an episode was logged repeatedly, the largest number."""
        self.sessions = 0
        self.records = 0
        """Number of records in the log."""
        self.remarks: list[str] = []
        """Remarks on the log files, one line each."""
        self.altered: list[str] = []
        """Files of the run that have changed since the log was written."""
        self._session = ""
        self._seq = -1
        self._recomputation: Recomputation | None = None
        self._is_undecimated, self._library = True, "none"

    @property
    def unverified(self) -> Counter[str]:
        """Number of records that were not fully verified, by reason."""
        return self.comparison.unverified

    @property
    def missing(self) -> list[str]:
        """Reasons why policies could not be loaded, by policy."""
        return list(self._policies.missing.values())

    def run(self, parts: Iterable[Part], progress: Callable[[int], None] = lambda records: None) -> None:
        """Verify a log; ``progress`` receives the number of newly verified records."""
        for part in parts:
            match part:
                case LogStart():
                    self._begin(part)
                case StoredLoopState():
                    self._add_position(part)
                case LogEnd():
                    if not part.is_complete:
                        self.remarks.append(f"{part.path.name} is incomplete; it is read up to its last complete chunk")
                case Event():
                    pass
                case _:
                    self._verify_records(part)
                    progress(len(part))
        self._finish()

    def missing_ticks(self) -> ItemCount:
        """Count the ticks of the episodes in ``episodes.csv``, and how many of them the log contains.

        Raises OSError or ValueError.
        """
        n_expected = n_present = 0
        for row in read_rows(self._folder / _ROWS).rows:
            records = row.steps + 1
            n_expected += records
            n_present += min(records, self._logged.get((row.kind, row.episode), 0))
        return ItemCount(n_expected, n_present)

    def _begin(self, part: LogStart) -> None:
        config_text = part.attachments.get(_CONFIG, b"")
        self.altered = []  # only the last file counts, because a resumed run may have different settings
        if config_text != read_file(self._folder / _CONFIG, MAX_BYTES):
            self.altered = [f"{_CONFIG} differs from the configuration in {part.path.name}"]
        session = part.metadata.get("session", "")
        if session != self._session:
            self._finish()
            self._session, self._seq = session, -1
            self.sessions += 1
            try:
                config = read_resolved(config_text, str(part.path))
            except ConfigError as error:
                message = error.problems[0].message
                raise LogDamagedError(f"{part.path}: its {_CONFIG} cannot be read: {message}") from error
            self._recomputation = Recomputation(config, self._policies, self.comparison)
        self._is_undecimated = part.metadata.get("decimation") == "1"
        self._library = part.metadata.get("library", "none")

    def _add_position(self, part: StoredLoopState) -> None:
        tick, explorer = part.fields.get("tick"), part.fields.get("explorer")
        if self._recomputation is not None and isinstance(tick, int) and isinstance(explorer, dict):
            kind = Kind.EVAL if part.fields.get("evaluated") is True else Kind.TRAIN
            episode = part.fields.get("episode")
            closed = kind, episode if isinstance(episode, int) else 0
            trainer_seeds = _read_trainer_seeds(part.fields.get("numbered_from"), part.fields.get("numbered_before"))
            state = {str(k): float(v) for k, v in explorer.items()}
            self._recomputation.add_position(tick, Position(state, closed, trainer_seeds))

    def _verify_records(self, records: Records) -> None:
        recomputation = self._recomputation
        self.records += len(records)
        if recomputation is None or not self._is_undecimated:
            self.unverified[_DECIMATED] += len(records)
            return
        has_native = not self.comparison.is_tolerant and (records["flags"] & Flag.NATIVE).any()
        if has_native and (difference := evaluator_difference(self._library)):
            raise OtherEvaluator(f"the policies' actions were {difference}; or accept differences with --tolerance")
        new_records = records[records["seq"] > self._seq]  # a restarted replay process logs some records again
        for episode in self._accounts.add(new_records):
            self._count_records(episode.kind, episode.episode, episode.steps + 1)
        for row in new_records:
            record = recorded_step(self._layout, row)
            self._seq = record.seq
            recomputation.take(record)

    def _count_records(self, kind: str, episode: int, records: int) -> None:
        self._logged[kind, episode] = max(records, self._logged.get((kind, episode), 0))

    def _finish(self) -> None:
        if self._recomputation is not None:
            self._recomputation.end()
            for sums in self._accounts.state():
                self._count_records(Kind(sums.kind).name.lower(), sums.episode, sums.steps)
            self._accounts = EpisodeAccounts(*self._accounts_arguments)
            self.episodes.update(self._recomputation.episodes)
            self._recomputation = None


def _read_trainer_seeds(latest: object, earlier: object) -> tuple[tuple[int, int], ...]:
    """Return the trainer's seeds that a position contains, each with the number of episodes before it."""
    entries = [*(earlier if isinstance(earlier, list | tuple) else ()), latest]
    trainer_seeds = list[tuple[int, int]]()
    for entry in entries:
        match entry:
            case [int(seed), int(episodes)]:
                trainer_seeds.append((seed, episodes))
    return tuple(trainer_seeds)
