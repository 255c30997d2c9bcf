"""A worker of ``test_workers``: ``python -m tests.tools.worked [REASON]``, which does not start if given a reason."""

from __future__ import annotations

import os
import sys

from onrig.tools.workers import Channel, Unavailable


class WorkerSubject:
    """Methods called by the tests."""

    def __init__(self, channel: Channel) -> None:
        self.n_turns = 0
        self._channel = channel

    def doubled(self, numbers: tuple[int, ...]) -> list[int]:
        print("a library that is talkative")
        for number in numbers:
            self._channel.note(number)
        return [2 * number for number in numbers]

    def refuse(self, reason: str) -> None:
        raise Unavailable(reason)

    def fail(self, reason: str) -> None:
        raise ValueError(reason)

    def end(self, code: int) -> None:
        os.write(2, b"first line\nlast line\n")
        os._exit(code)

    def has_turned(self) -> bool:
        return self.n_turns > 0

    def turn(self) -> None:
        self.n_turns += 1


def create_subject(subject: WorkerSubject) -> WorkerSubject:
    if sys.argv[1:]:
        raise Unavailable(sys.argv[1])
    return subject


if __name__ == "__main__":
    channel = Channel()
    worker_subject = WorkerSubject(channel)
    channel.serve(lambda: create_subject(worker_subject), worker_subject.turn)
