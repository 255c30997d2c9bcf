"""One valid message of each type."""

from __future__ import annotations

from typing import Final

from onrig.runtime.link.messages import (
    Accepted,
    Attach,
    Attached,
    ClosedEpisode,
    Confirm,
    Done,
    Feedback,
    Leave,
    Offer,
    Pull,
    Refused,
    ReplyMessage,
    RequestMessage,
    Rows,
    Ruling,
    Verdict,
)

REQUESTS: Final[tuple[RequestMessage, ...]] = (
    Attach(session=b"0123456789abcdef", role="push"),
    Pull(10, 3, 0, 50, 2),
    Confirm(4, bytes(16)),
    Feedback(9, ("td", "kl")),
    Offer(600),
    Done(4, 400, 123.5),
    Leave(),
)
REPLIES: Final[tuple[ReplyMessage, ...]] = (
    Attached("run", b"rig: x\n", 100, True, 50, 3, 7, False, memory=b"0123456789abcdef", why="no"),
    Rows(
        5,
        6,
        1,
        True,
        (Ruling(1, 4, "passed"), Ruling(2, 5, "rolled_back", "its output is non-finite")),
        episodes=(ClosedEpisode(1, -3.5), ClosedEpisode(2, 0.25)),
    ),
    Verdict(5, False, "bounds", "too much"),
    Accepted(),
    Refused("no", "lease"),
)
