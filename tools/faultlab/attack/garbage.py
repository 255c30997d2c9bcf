"""Strangers at a rig's doors: garbage, idle and slow connections, and whether others are still let in."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import time
from pathlib import Path
from typing import Final, Literal

from onrig.runtime.link.client import LinkClient, LinkClosed
from onrig.runtime.link.endpoint import Tcp
from onrig.runtime.link.keys import load_learner_keys
from onrig.runtime.link.messages import Attach
from onrig.tools.faultlab.attack.door import OpenRig
from onrig.tools.faultlab.campaign import Piece
from onrig.tools.faultlab.peers import (
    MOST,
    Crowd,
    free_port,
    garbled,
    garbled_locally,
    garbled_visit,
    greeting,
    unanswered,
)
from onrig.tools.faultlab.run import Run

Door = Literal["tcp", "ipc", "web"]
DOORS: Final[tuple[Door, ...]] = ("tcp", "ipc", "web")
_BATCH: Final = 500
_LET_IN_S: Final = 20.0
_PAGE_S: Final = 10.0
_SPARE: Final = 200
"""Descriptors that the attack keeps for itself."""


class Listening(OpenRig):
    """A run with all its doors open: tcp with keys, ipc, and the page."""

    def __init__(self, folder: Path) -> None:
        from onrig.tools.keys import main as make_keys

        keys = folder / "keys"
        with contextlib.redirect_stdout(None):
            make_keys([str(keys)])
        self.keys = load_learner_keys(keys / "learner")
        self.link, self.page = (Tcp("127.0.0.1", free_port()) for _ in range(2))
        super().__init__(
            folder, self.page.port, f"link.listen=tcp://127.0.0.1:{self.link.port}", f"link.keys={keys / 'rig'}"
        )

    def lets_learners_in(self) -> bool:
        """Whether a learner whose key is listed gets its answer in time."""
        endpoint = f"tcp://127.0.0.1:{self.link.port}"
        with contextlib.closing(LinkClient(endpoint, lambda: False, self.keys)) as client:
            try:
                client.ask(Attach(session=bytes(16), role="watch"), timeout_s=_LET_IN_S)
            except LinkClosed:
                return False
        return True

    def shows_its_page(self) -> bool:
        """Whether a visitor gets the page in time."""
        try:
            with socket.create_connection(("127.0.0.1", self.page.port), _PAGE_S) as line:
                host = f"127.0.0.1:{self.page.port}".encode()
                line.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host)
                return line.recv(64).split()[1:2] == [b"200"]
        except OSError:
            return False

    def look(self, when: str) -> None:
        """Find whom it does not let in any more."""
        if not self.lets_learners_in():
            self.findings.append(f"{when}: a listed learner is not let in within {_LET_IN_S:g} s")
        if not self.shows_its_page():
            self.findings.append(f"{when}: the page is not shown within {_PAGE_S:g} s")


class Garbage:
    """A campaign: connections that talk garbage and hang up, at each of the doors."""

    name = "garbage"

    def __init__(self, seed: int, pieces: int, cases: int) -> None:
        self.does = f"{pieces * cases} garbage connections to the link (tcp, ipc) and the page"
        self.pieces, self.piece_s = pieces, 20.0 + 0.002 * cases
        self._seed, self._cases = seed, cases

    def run(self, number: int, folder: Path) -> Piece:
        """Knock at all doors in turn."""
        rig = Listening(folder)
        counts = {"made": 0, "turned away": 0}
        with rig.at_work() as run:
            for n, first in enumerate(range(0, self._cases, _BATCH)):
                count = min(_BATCH, self._cases - first)
                door = DOORS[n % len(DOORS)]
                seed = random.Random(f"{self._seed} {number} {n}").randrange(1 << 30)
                turned_away = _knock(rig, run, door, count, seed)
                counts["turned away"] += turned_away
                counts["made"] += count - turned_away
                if run.process.ended:
                    rig.findings.append(f"the run ended after {first + count} connections")
                    break
            rig.look("after the garbage")
            rig.findings += [f"the page does not answer a request with {what}" for what in unanswered(rig.page.port)]
        return rig.piece(number, self._cases, counts)


def _knock(rig: Listening, run: Run, door: Door, count: int, seed: int) -> int:
    """So many garbage connections to a door; how many were turned away."""
    if door == "tcp":
        return garbled(rig.link, count, seed)
    if door == "web":
        return sum(not garbled_visit(rig.page.port, random.Random(f"{seed} {n}")) for n in range(count))
    path = f"{run.shm}/learner"
    return sum(not garbled_locally(path, random.Random(f"{seed} {n}")) for n in range(count))


class Crowds:
    """A campaign: idle and slow connections, as many as this process may have, while others want in."""

    name = "crowds"

    def __init__(self, seed: int, pieces: int, members: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._members = min(members, MOST, (soft - _SPARE) // 2)
        self.does = f"{pieces} times {self._members} idle or slow connections to the link, and as many to the page"
        self.pieces, self.piece_s = pieces, 40.0

    def run(self, number: int, folder: Path) -> Piece:
        """Stand in the way for a while, idle or slow by turns."""
        rig = Listening(folder)
        hello, request = (greeting(b"CURVE"), b"GET / HTTP/1.1\r\n") if number % 2 else (b"", b"")
        counts = {"turned away": 0, "hung up on": 0}
        with rig.at_work() as run:
            with Crowd(rig.link, self._members, first=hello) as link, Crowd(rig.page, self._members) as page:
                for _ in range(3):
                    link.trickle(hello[:1])
                    page.trickle(request[:1])
                    time.sleep(1.0)
                rig.look("in the crowd")
                counts["turned away"] = link.refused + page.refused
                counts["hung up on"] = 2 * self._members - counts["turned away"] - link.left() - page.left()
            if run.process.ended:
                rig.findings.append("the run ended in the crowd")
            rig.look("after the crowd")
        return rig.piece(number, 2 * self._members, counts)
