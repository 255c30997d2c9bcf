"""The whole attack: its campaigns, in full and shortened."""

from __future__ import annotations

from typing import Final, NamedTuple

from onrig.tools.faultlab.attack.child import InChild
from onrig.tools.faultlab.attack.door import ModelsOverTheLink
from onrig.tools.faultlab.attack.exhaustion import Exhaustion
from onrig.tools.faultlab.attack.garbage import Crowds, Garbage
from onrig.tools.faultlab.attack.lockstep import Alone, LockstepBlows
from onrig.tools.faultlab.attack.realtime import RealtimeBlows
from onrig.tools.faultlab.attack.stops import Stops
from onrig.tools.faultlab.campaign import Campaign


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
_EVERY_S: Final = 3.0
"""Between two blows in real time."""


def campaigns(seed: int, size: Size = WHOLE) -> list[Campaign]:
    """All of them, in the order in which they are run."""
    alone = Alone(seed, size.episodes)
    return [
        InChild("configurations", "fuzzed configurations", seed, *size.configurations, case_s=0.1, steady=False),
        InChild("models", "hostile or mutated models at the door", seed, *size.models, case_s=0.005),
        ModelsOverTheLink(seed, *size.link_models),
        Garbage(seed, *size.garbage),
        Crowds(seed, *size.crowds),
        *(LockstepBlows(alone, seed, *size.lockstep, stop=stop, longest_s=size.longest_s) for stop in (False, True)),
        *(
            RealtimeBlows(seed, *size.realtime, stop=stop, every_s=_EVERY_S, longest_s=size.longest_s)
            for stop in (False, True)
        ),
        Exhaustion("disk", seed, size.exhaustion, longest_s=size.longest_s),
        Exhaustion("shm", seed, size.exhaustion, longest_s=size.longest_s),
        Exhaustion("descriptors", seed, size.exhaustion, longest_s=size.longest_s),
        Stops(seed, size.stops),
    ]


NAMES: Final = tuple(campaign.name for campaign in campaigns(0, QUICK))
