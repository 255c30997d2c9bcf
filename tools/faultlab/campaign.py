"""A campaign: many cases of one kind of harm, in pieces that are filed one by one, so that it can be gone on with."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

GROWN_MB: Final = 10.0
"""What a process may hold more in the last tenth of a campaign than in the first."""


class Piece(msgspec.Struct):
    """What came of one piece."""

    number: int
    cases: int
    findings: list[str] = []
    """What did not hold, one line each, with how to bring it about again."""
    counts: dict[str, int] = {}
    """What came of the cases, by name."""
    grown_mb: dict[str, float] = {}
    """How much more the processes that lived long enough held at its end than in the beginning, by role."""
    took_s: float = 0.0


class Campaign(Protocol):
    """What ``Attack`` runs."""

    @property
    def name(self) -> str:
        """By which it is chosen."""

    @property
    def does(self) -> str:
        """What is done, in a few words."""

    @property
    def pieces(self) -> int:
        """How many there are."""

    @property
    def piece_s(self) -> float:
        """How long one takes, roughly."""

    def run(self, number: int, folder: Path) -> Piece:
        """Do piece ``number``, from 0, in an empty folder."""


class Filed:
    """The pieces of a campaign that are done: lines of ``NAME.jsonl``, each on the disk before the next one begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pieces: list[Piece] = []
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):  # the last one, where it was interrupted
                    self.pieces.append(msgspec.json.decode(line, type=Piece))

    def left(self, pieces: int) -> list[int]:
        """Numbers of those that are still to be done."""
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
    """Do one piece in a folder of its own, which is kept where it found something; a campaign that breaks is found."""
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
    """What came of a campaign."""

    name: str
    does: str
    cases: int
    findings: list[str]
    counts: dict[str, int]
    grown_mb: float | None
    """The most that any process had grown by; None where none was followed for long enough."""
    took_s: float
    whole: bool
    """Whether all of its pieces are done."""

    @property
    def holds(self) -> bool:
        """Whether everything held."""
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


Say = Callable[[str, float], object]
"""Hears what goes on, and by how many seconds of the whole it has come on."""


def attack(campaigns: Sequence[Campaign], out: Path, say: Say) -> list[Verdict]:
    """Do whatever is not yet done of each campaign; everything is filed in ``out``."""
    verdicts = []
    for campaign in campaigns:
        filed = Filed(out / f"{campaign.name}.jsonl")
        for number in filed.left(campaign.pieces):
            say(f"{campaign.name} {number + 1}/{campaign.pieces}", 0.0)
            filed.add(do_piece(campaign, number, out / "kept" / f"{campaign.name}-{number}"))
            say(campaign.name, campaign.piece_s)
        verdicts.append(verdict(campaign, filed.pieces))
    return verdicts
