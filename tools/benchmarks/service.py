"""The answering end of a measured process: calls on stdin, answers on stdout, a line of JSON each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from onrig.tools.benchmarks.messages import Ready, Refused
from onrig.tools.benchmarks.peers import Unavailable

C = TypeVar("C")


def serve(come_up: Callable[[], Callable[[C], msgspec.Struct]], decoder: msgspec.json.Decoder[C]) -> None:
    """Say whether the library comes up, then answer until stdin ends; what raises ``Unavailable`` is refused."""
    # Libraries print; the answers keep the channel to themselves.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(reply: msgspec.Struct) -> None:
        answers.write(msgspec.json.encode(reply) + b"\n")
        answers.flush()

    try:
        answer = come_up()
    except Unavailable as reason:
        say(Refused(str(reason)))
        return
    say(Ready())
    for line in sys.stdin.buffer:
        call = decoder.decode(line)
        try:
            say(answer(call))
        except Unavailable as reason:
            say(Refused(str(reason)))
