"""Campaigns: many cases of one kind of attack, in pieces that are saved one by one, so that they can be resumed.

The pieces of ``Fuzzing`` are judged in a separate process, which may crash and must not grow.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import msgspec

from onrig.tools.workers import Channel, Unavailable, WorkerProcess
from tests.lab.rig.balance import Gauges
from tests.lab.trials_file import append_lines

MAX_GROWTH_MB: Final = 10.0
"""Maximum growth of a process from the first tenth of a piece to the last."""
_WARM_UP_S: Final = 5.0
_SAMPLE_S: Final = 0.25
_CASE_LIMIT_S: Final = 2.0
"""Average time limit per case, beyond which the process counts as hung."""


class Piece(msgspec.Struct):
    """Outcome of one piece."""

    number: int
    cases: int
    findings: list[str] = []
    """Violations, one line each, with instructions to reproduce them."""
    counts: dict[str, int] = {}
    """Outcomes of the cases, by name."""
    growth_mb: dict[str, float] = {}
    """Growth of sufficiently long-lived processes, by role."""
    duration_s: float = 0.0


class Campaign(Protocol):
    """A part of an attack."""

    @property
    def name(self) -> str:
        """Name for ``--only``."""

    @property
    def description(self) -> str:
        """Summary of the attack."""

    @property
    def pieces(self) -> int:
        """Number of pieces."""

    @property
    def piece_s(self) -> float:
        """Approximate duration of a piece."""

    def run(self, number: int, folder: Path) -> Piece:
        """Run piece ``number``, from 0, in an empty folder."""


class RecordedPieces:
    """Finished pieces of a campaign: lines of ``NAME.jsonl``, each durable before the next piece begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pieces: list[Piece] = []
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):  # the last line, if interrupted
                    self.pieces.append(msgspec.json.decode(line, type=Piece))

    def missing(self, pieces: int) -> list[int]:
        """Numbers of the pieces still to be done."""
        done = {piece.number for piece in self.pieces}
        return [n for n in range(pieces) if n not in done]

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self.pieces.append(piece)
        append_lines(self._path, msgspec.json.encode(piece) + b"\n")


def run_piece(campaign: Campaign, number: int, folder: Path) -> Piece:
    """Run one piece in its own folder, which is kept if anything is found; a crash of the campaign is a finding."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start_s = time.monotonic()
    try:
        piece = campaign.run(number, folder)
    except Exception as error:
        piece = Piece(number, 0, [f"the attack itself broke off: {type(error).__name__}: {error}"])
    piece.duration_s = round(time.monotonic() - start_s, 1)
    piece.findings = [f"{campaign.name} {number}: {line}" for line in piece.findings]
    if not piece.findings:
        shutil.rmtree(folder, ignore_errors=True)
    return piece


class Verdict(msgspec.Struct, frozen=True):
    """Outcome of a campaign."""

    name: str
    description: str
    cases: int
    findings: list[str]
    counts: dict[str, int]
    growth_mb: float | None
    """Largest growth of any process; None if none was observed long enough."""
    duration_s: float
    complete: bool
    """Whether all pieces are done."""

    @property
    def holds(self) -> bool:
        """Whether all pieces are done without findings."""
        return self.complete and not self.findings


def verdict(campaign: Campaign, pieces: Sequence[Piece]) -> Verdict:
    """Combine the pieces of a campaign."""
    found = [line for piece in pieces for line in piece.findings]
    counts: dict[str, int] = {}
    grown: list[float] = []
    for piece in pieces:
        for outcome, n in piece.counts.items():
            counts[outcome] = counts.get(outcome, 0) + n
        for role, mb in piece.growth_mb.items():
            grown.append(mb)
            if mb > MAX_GROWTH_MB:
                found.append(f"{campaign.name} {piece.number}: {role} holds {mb:.1f} MB more in the last tenth")
    return Verdict(
        campaign.name,
        campaign.description,
        sum(piece.cases for piece in pieces),
        found,
        counts,
        max(grown, default=None),
        round(sum(piece.duration_s for piece in pieces), 1),
        {piece.number for piece in pieces} >= set(range(campaign.pieces)),
    )


class JudgedCases(msgspec.Struct):
    """Outcome of the cases."""

    findings: list[str] = []
    counts: dict[str, int] = {}


class Fuzzing:
    """A campaign: each piece checks ``cases`` of ``name`` in a separate process.

    ``steady``: whether the process must not grow. The checker of configurations caches tables of any size; each check
    limits its own growth.
    """

    def __init__(
        self, name: str, description: str, seed: int, pieces: int, cases: int, case_s: float, *, steady: bool = True
    ) -> None:
        self.name, self.description, self.pieces = name, f"{pieces * cases} {description}", pieces
        self.piece_s = 3.0 + cases * case_s
        self._seed, self._cases, self._steady = seed, cases, steady

    def run(self, number: int, folder: Path) -> Piece:
        """Run the checks of one piece."""
        seed = 1_000_003 * self._seed + number
        gauges, judged, found = Gauges(), JudgedCases(), []
        limit_s = time.monotonic() + 60 + _CASE_LIMIT_S * self._cases
        with WorkerProcess(__name__) as judge:
            try:
                judge.wait_for_value()
                judge.call(self.name, self._cases, seed, str(folder))
                while not judge.has_reply(_SAMPLE_S):
                    gauges.sample(time.monotonic(), {"judge": judge.pid})
                    if time.monotonic() > limit_s:
                        raise Unavailable(f"no verdict within {60 + _CASE_LIMIT_S * self._cases:g} s")
                judged = msgspec.json.decode(judge.wait_for_value(), type=JudgedCases)
            except Unavailable as reason:
                found = [f"the process that judges: {reason} (seed {seed})"[:400]]
            if "Traceback" in judge.stderr_lines:
                found.append(f"a traceback on stderr (seed {seed})")
        grown_mb = gauges.grown_mb(_WARM_UP_S) if self._steady else {}
        return Piece(number, self._cases, [*judged.findings, *found], judged.counts, grown_mb)


class Judge:
    """The checks, as a worker process."""

    def configurations(self, count: int, seed: int, folder: str) -> JudgedCases:
        """Check damaged configurations; violating ones are kept in ``folder``."""
        from tests.lab.mutants.configurations import judge, mutants

        judged = JudgedCases(counts={"sound or refused": 0})
        for mutant in islice(mutants(seed), count):
            finding = judge(mutant, Path(folder))
            if finding is None:
                judged.counts["sound or refused"] += 1
                continue
            kept = Path(folder) / f"{mutant.name}.yaml"
            kept.write_bytes(mutant.content)
            lines = finding.violation.strip().splitlines()
            judged.findings.append(f"{kept.name} {' '.join(mutant.overrides)}: {lines[0][:300] if lines else ''}")
        return judged

    def models(self, count: int, seed: int, folder: str) -> JudgedCases:
        """Check mutated models, and run the well-formed ones."""
        from tests.lab.mutants.models import MUTATIONS, campaign, subject

        judged, verdicts = JudgedCases(), Counter[str]()
        each = -(-count // len(MUTATIONS))
        for mutate in MUTATIONS:
            name = mutate.__name__
            place = Path(folder) / name
            place.mkdir()
            outcome = campaign(each, random.Random(f"{seed} {name}").randrange(1 << 30), mutate, place, subject())
            verdicts.update(outcome.verdicts)
            if outcome.unbuilt:
                judged.findings.append(f"{name}: {outcome.unbuilt} were admitted and cannot be run (seed {seed})")
        judged.counts = {"admitted": verdicts["admitted"], "refused": verdicts.total() - verdicts["admitted"]}
        return judged


if __name__ == "__main__":
    Channel().serve(Judge)
