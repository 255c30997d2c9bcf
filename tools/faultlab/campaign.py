"""A campaign: many cases of one kind of harm, in pieces that are filed one by one, so that it can be continued."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

GROWN_MB: Final = 10.0
"""Growth that a process may show from the first tenth of a piece to the last."""


class Piece(msgspec.Struct):
    """Outcome of one piece."""

    number: int
    cases: int
    findings: list[str] = []
    """What did not hold, one line each, with how to reproduce it."""
    counts: dict[str, int] = {}
    """Outcomes of the cases, by name."""
    grown_mb: dict[str, float] = {}
    """Growth of the processes that lived long enough, by role."""
    took_s: float = 0.0


class Campaign(Protocol):
    """One part of an attack."""

    @property
    def name(self) -> str:
        """Name by which it is chosen."""

    @property
    def does(self) -> str:
        """Summary of what is done."""

    @property
    def pieces(self) -> int:
        """Number of pieces."""

    @property
    def piece_s(self) -> float:
        """Rough duration of one."""

    def run(self, number: int, folder: Path) -> Piece:
        """Do piece ``number``, from 0, in an empty folder."""


class Filed:
    """Finished pieces of a campaign: lines of ``NAME.jsonl``, each on the disk before the next one begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pieces: list[Piece] = []
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):  # the last one, where it was interrupted
                    self.pieces.append(msgspec.json.decode(line, type=Piece))

    def left(self, pieces: int) -> list[int]:
        """Numbers of the pieces still to be done."""
        done = {piece.number for piece in self.pieces}
        return [n for n in range(pieces) if n not in done]

    def add(self, piece: Piece) -> None:
        """File one."""
        self.pieces.append(piece)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(piece) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def do_piece(campaign: Campaign, number: int, folder: Path) -> Piece:
    """Do one piece in its own folder, kept where something is found; a campaign that breaks off is a finding."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    try:
        piece = campaign.run(number, folder)
    except Exception as error:
        piece = Piece(number, 0, [f"the attack itself broke off: {type(error).__name__}: {error}"])
    piece.took_s = round(time.monotonic() - began_s, 1)
    piece.findings = [f"{campaign.name} {number}: {line}" for line in piece.findings]
    if not piece.findings:
        shutil.rmtree(folder, ignore_errors=True)
    return piece


class Verdict(msgspec.Struct, frozen=True):
    """Outcome of a campaign."""

    name: str
    does: str
    cases: int
    findings: list[str]
    counts: dict[str, int]
    grown_mb: float | None
    """Largest growth of any process; None where none was followed for long enough."""
    took_s: float
    whole: bool
    """Whether all of its pieces are done."""

    @property
    def holds(self) -> bool:
        """Whether everything held, and nothing is left to do."""
        return self.whole and not self.findings


def verdict(campaign: Campaign, pieces: Sequence[Piece]) -> Verdict:
    """Sum up the pieces of a campaign."""
    found = [line for piece in pieces for line in piece.findings]
    counts: dict[str, int] = {}
    grown: list[float] = []
    for piece in pieces:
        for what, n in piece.counts.items():
            counts[what] = counts.get(what, 0) + n
        for role, mb in piece.grown_mb.items():
            grown.append(mb)
            if mb > GROWN_MB:
                found.append(f"{campaign.name} {piece.number}: {role} holds {mb:.1f} MB more in the last tenth")
    return Verdict(
        campaign.name,
        campaign.does,
        sum(piece.cases for piece in pieces),
        found,
        counts,
        max(grown, default=None),
        round(sum(piece.took_s for piece in pieces), 1),
        {piece.number for piece in pieces} >= set(range(campaign.pieces)),
    )
