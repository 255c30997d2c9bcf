"""The whole attack: its campaigns, in full and shortened, and their run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from onrig.tools.faultlab.attack_doors import Crowds, Garbage, ModelsOverTheLink
from onrig.tools.faultlab.attack_lockstep import Alone, Exhaustion, LockstepHits
from onrig.tools.faultlab.attack_realtime import RealtimeHits, Stops
from onrig.tools.faultlab.campaign import Campaign, Filed, Fuzzing, Verdict, do_piece, verdict


class Size(NamedTuple):
    """How much of each there is: pieces, and cases in each."""

    configurations: tuple[int, int]
    models: tuple[int, int]
    link_models: tuple[int, int]
    garbage: tuple[int, int]
    crowds: tuple[int, int]
    lockstep: tuple[int, int]
    realtime: tuple[int, int]
    exhaustion: int
    stops: int
    episodes: int
    """Of a lockstep run."""
    longest_s: float | None
    """For which a process is stopped or something used up; None: also for good."""


WHOLE: Final = Size((10, 1000), (5, 2000), (2, 500), (2, 50_000), (4, 4000), (25, 2), (10, 5), 10, 20, 16, None)
QUICK: Final = Size((1, 40), (1, 80), (1, 20), (1, 300), (1, 50), (1, 1), (1, 1), 1, 1, 6, 0.5)


def campaigns(seed: int, size: Size = WHOLE) -> list[Campaign]:
    """All of them, in the order in which they are run."""
    alone, longest_s = Alone(seed, size.episodes), size.longest_s
    return [
        Fuzzing("configurations", "fuzzed configurations", seed, *size.configurations, case_s=0.1, steady=False),
        Fuzzing("models", "hostile or mutated models at the door", seed, *size.models, case_s=0.005),
        ModelsOverTheLink(seed, *size.link_models),
        Garbage(seed, *size.garbage),
        Crowds(seed, *size.crowds),
        *(LockstepHits(alone, seed, *size.lockstep, stop=stop, longest_s=longest_s) for stop in (False, True)),
        *(RealtimeHits(seed, *size.realtime, stop=stop, longest_s=longest_s) for stop in (False, True)),
        *(Exhaustion(what, seed, size.exhaustion, longest_s=longest_s) for what in ("disk", "shm", "descriptors")),
        Stops(seed, size.stops),
    ]


NAMES: Final = tuple(campaign.name for campaign in campaigns(0, QUICK))
Say = Callable[[str, float], object]
"""Hears what is being done, and how many seconds of the whole it stands for."""


def attack(chosen: Sequence[Campaign], out: Path, say: Say) -> list[Verdict]:
    """Do whatever is not yet done of each campaign; everything is filed in ``out``."""
    verdicts = []
    for campaign in chosen:
        filed = Filed(out / f"{campaign.name}.jsonl")
        for number in filed.left(campaign.pieces):
            say(f"{campaign.name} {number + 1}/{campaign.pieces}", 0.0)
            filed.add(do_piece(campaign, number, out / "kept" / f"{campaign.name}-{number}"))
            say(campaign.name, campaign.piece_s)
        verdicts.append(verdict(campaign, filed.pieces))
    return verdicts
