"""Attacks on the interfaces of a running rig: hostile models, garbage, idle, slow and returning connections."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import LinkClient, LinkClosed, RequestRejected
from onrig.runtime.link.endpoint import TcpEndpoint
from onrig.runtime.link.messages import Attach, Offer, Verdict
from onrig.runtime.link.seats import MIN_SEAT_TENURE_S
from onrig.runtime.run_loading import load_run
from onrig.runtime.shm.board import Word
from onrig.tools.bench.link.rig_end import random_policy
from tests.lab.attacks.campaign import Piece
from tests.lab.mutants import peers
from tests.lab.mutants.models import MUTATIONS, subject
from tests.lab.rig.audit import Observed, findings
from tests.lab.rig.balance import Gauges
from tests.lab.rig.processes import REPLAY, ROLES, WaitTimeout, children
from tests.lab.rig.rig import learner_keys
from tests.lab.rig.run import UNHURRIED, Run
from tests.lab.rig.run_folder import config_of, read_folder, tracebacks
from tests.sockets import free_port

SETTINGS: Final = (
    *UNHURRIED,
    "device.pace={scaled: 4}",
    "task.episode_s=2",
    "episodes=100000",
    "evaluate_every=0",
    "checkpoint_s=2",
    "selection={strategy: 'FIFO[Uniform]', capacity: 2000}",
    "local_learner=false",
)
"""Settings of a rig on a busy machine that keeps every experience."""
DOORS: Final = ("tcp", "ipc", "web")
_WARM_UP_S: Final = 5.0
_SAMPLE_S: Final = 0.5
_ANSWER_S: Final = 20.0
_PAGE_S: Final = 10.0
_ATTEMPTS: Final = 5
_NEWCOMER_S: Final = 2 * MIN_SEAT_TENURE_S + 1.0
"""Time limit for a learner's admission while connections keep returning: the timeout of the pending ones, its own
handshake, and a margin."""
_SIEGE_S: Final = 90.0
_BATCH: Final = 500
_SPARE: Final = 200
"""File descriptors reserved for the attack itself."""


class OpenRig:
    """An observed run, with its page on port ``page`` if given, and its findings."""

    def __init__(self, folder: Path, page: int | None = None, *more: str) -> None:
        self.folder = folder
        self._arguments = () if page is None else ("--web", str(page))
        policy = folder / "first.onnx"
        policy.write_bytes(random_policy(load_run("pendulum")))
        self.settings = (*SETTINGS, f"policy={policy}", *more)
        self.findings: list[str] = []
        self._gauges = Gauges()
        self._over = threading.Event()

    @contextmanager
    def observed_run(self) -> Iterator[Run]:
        """Yield the run after its first recorded episode; interrupts it at the end and examines its account."""
        with Run(self.folder / "run", "pendulum", *self.settings, arguments=self._arguments) as run:
            run.until(lambda: bool(run.rows()), "the first episode to be filed")
            watch = threading.Thread(target=self._watch, args=(run.pid,), daemon=True)
            watch.start()
            try:
                yield run
            finally:
                self._over.set()
                watch.join()
            recorded = len(run.rows())
            if run.children().get(REPLAY) is None:
                self.findings.append("the replay process has ended")
            else:
                try:
                    run.until(lambda: len(run.rows()) >= recorded + 2, "two more episodes", _ANSWER_S)
                except WaitTimeout as error:
                    self.findings.append(str(error))
            code = run.interrupt()
            config = config_of(run.folder)
            if code != ExitCode.INTERRUPTED:
                self.findings.append(f"ended with {code}")
            self.findings += findings(read_folder(run.folder, config), config, Observed(code, run.word(Word.CLOSED)))
            self.findings += tracebacks(run.folder)

    def _watch(self, pid: int) -> None:
        while not self._over.wait(_SAMPLE_S):
            inside = {ROLES[m]: p for m, p in children(pid).items() if m in ROLES}
            self._gauges.sample(time.monotonic(), {"supervisor": pid, **inside})

    def piece(self, number: int, cases: int, counts: dict[str, int]) -> Piece:
        """Return findings, counts and growth as a piece."""
        restarted = {role: len(self._gauges.of(role)) - 1 for role in self._gauges.roles}
        counts |= {f"{role} restarted": n for role, n in restarted.items() if n}
        return Piece(number, cases, self.findings, counts, self._gauges.grown_mb(_WARM_UP_S))


class ListeningRig(OpenRig):
    """A run with all its interfaces: tcp with keys (or without, if ``plain``), ipc, and the page."""

    def __init__(self, folder: Path, *, plain: bool = False) -> None:
        self.keys = None if plain else learner_keys(folder / "keys")
        self.link, self.page = (TcpEndpoint(peers.LOOPBACK, free_port()) for _ in range(2))
        guarded = "link.allow_plain_loopback=true" if plain else f"link.keys={folder / 'keys' / 'rig'}"
        super().__init__(folder, self.page.port, f"link.listen={self.link}", guarded)

    def admits_learners(self, within_s: float = _ANSWER_S) -> bool:
        """Return whether a learner (a listed one, with keys) receives its reply in time."""
        with contextlib.closing(LinkClient(str(self.link), lambda: False, self.keys)) as client:
            try:
                client.ask(Attach(session=bytes(16), role="watch"), timeout_s=within_s)
            except LinkClosed:
                return False
        return True

    def page_responds(self) -> bool:
        """Return whether a visitor receives the page in time."""
        try:
            with socket.create_connection((peers.LOOPBACK, self.page.port), _PAGE_S) as line:
                host = f"{peers.LOOPBACK}:{self.page.port}".encode()
                line.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host)
                return line.recv(64).split()[1:2] == [b"200"]
        except OSError:
            return False

    def check(self, when: str) -> None:
        """Record which legitimate clients are no longer accepted."""
        if not self.admits_learners():
            self.findings.append(f"{when}: a listed learner is not let in within {_ANSWER_S:g} s")
        if not self.page_responds():
            self.findings.append(f"{when}: the page is not shown within {_PAGE_S:g} s")


class ModelsOverTheLink:
    """A campaign: hostile and mutated models offered to a running rig."""

    name = "link-models"

    def __init__(self, seed: int, pieces: int, cases: int) -> None:
        self.description = f"{pieces * cases} hostile or mutated models over the live link"
        self.pieces, self.piece_s = pieces, 15.0 + 0.02 * cases
        self._seed, self._cases = seed, cases

    def run(self, number: int, folder: Path) -> Piece:
        """Offer the models of one piece."""
        rng = random.Random(f"{self._seed} {self.name} {number}")
        rig, originals = OpenRig(folder), subject().originals
        counts = {"accepted": 0, "refused": 0, "unanswered": 0}
        with rig.observed_run() as run:
            with contextlib.closing(LinkClient(f"ipc://{run.shm}/learner", lambda: False)) as client:
                attach = Attach(session=rng.randbytes(16), role="push")
                client.ask(attach)
                for _ in range(self._cases):
                    model = rng.choice(MUTATIONS)(rng.choice(originals), rng)
                    offer = Offer(rng.randrange(1000))
                    try:
                        answer, _ = client.ask(offer, model, timeout_s=_ANSWER_S)
                        accepted = isinstance(answer, Verdict) and answer.accepted
                        counts["accepted" if accepted else "refused"] += 1
                    except RequestRejected:
                        counts["refused"] += 1
                        client.ask(attach)
                    except LinkClosed:
                        counts["unanswered"] += 1
                        break
            if counts["unanswered"]:
                rig.findings.append(f"an offer was not answered within {_ANSWER_S:g} s")
            kept = len(run.policies())
            if kept > counts["accepted"] + 1:
                rig.findings.append(f"{kept} policies are kept, {counts['accepted']} were accepted")
        return rig.piece(number, self._cases, counts)


class Garbage:
    """A campaign: connections that send garbage and hang up, at each interface."""

    name = "garbage"

    def __init__(self, seed: int, pieces: int, cases: int) -> None:
        self.description = f"{pieces * cases} garbage connections to the link (tcp, ipc) and the page"
        self.pieces, self.piece_s = pieces, 20.0 + 0.002 * cases
        self._seed, self._cases = seed, cases

    def run(self, number: int, folder: Path) -> Piece:
        """Attack all interfaces in turn."""
        rig = ListeningRig(folder)
        counts = {"made": 0, "turned away": 0}
        with rig.observed_run() as run:
            for n, first in enumerate(range(0, self._cases, _BATCH)):
                count = min(_BATCH, self._cases - first)
                seed = random.Random(f"{self._seed} {number} {n}").randrange(1 << 30)
                turned_away = _knock(rig, run, DOORS[n % len(DOORS)], count, seed)
                counts["turned away"] += turned_away
                counts["made"] += count - turned_away
                if run.process.has_ended:
                    rig.findings.append(f"the run ended after {first + count} connections")
                    break
            rig.check("after the garbage")
            silent = peers.unanswered(rig.page.port)
            rig.findings += [f"the page does not answer a request with {kind}" for kind in silent]
        return rig.piece(number, self._cases, counts)


def _knock(rig: ListeningRig, run: Run, door: Literal["tcp", "ipc", "web"], count: int, seed: int) -> int:
    """Make ``count`` garbage connections to an interface; returns how many were rejected."""
    if door == "tcp":
        return peers.garbled(rig.link, count, seed)
    rngs = (random.Random(f"{seed} {n}") for n in range(count))
    if door == "web":
        return sum(not peers.garbled_visit(rig.page.port, rng) for rng in rngs)
    path = f"{run.shm}/learner"
    return sum(not peers.garbled_locally(path, rng) for rng in rngs)


class Crowds:
    """A campaign: as many idle and slow connections as this process may open, while legitimate clients connect."""

    name = "crowds"

    def __init__(self, seed: int, pieces: int, members: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._members = min(members, peers.MAX_SOCKETS, (soft - _SPARE) // 2)
        self.description = (
            f"{pieces} times {self._members} idle or slow connections to the link, and as many to the page"
        )
        self.pieces, self.piece_s = pieces, 40.0

    def run(self, number: int, folder: Path) -> Piece:
        """Occupy the interfaces for a while: idle in even pieces, slow in odd ones."""
        rig = ListeningRig(folder)
        hello, request = (peers.greeting(b"CURVE"), b"GET / HTTP/1.1\r\n") if number % 2 else (b"", b"")
        counts = {"turned away": 0, "hung up on": 0}
        with rig.observed_run() as run:
            at_the_link = peers.Crowd(rig.link, self._members, first=hello)
            with at_the_link as link, peers.Crowd(rig.page, self._members) as page:
                for _ in range(3):
                    link.trickle(hello[:1])
                    page.trickle(request[:1])
                    time.sleep(1.0)
                rig.check("in the crowd")
                counts["turned away"] = link.refused + page.refused
                counts["hung up on"] = 2 * self._members - counts["turned away"] - link.n_open() - page.n_open()
            if run.process.has_ended:
                rig.findings.append("the run ended in the crowd")
            rig.check("after the crowd")
        return rig.piece(number, 2 * self._members, counts)


class Returning:
    """A campaign: connections from a learner's address that begin a handshake and reconnect whenever they are closed.

    Even pieces attack the tcp endpoint with keys, odd ones that without; all attack the page as well.
    """

    name = "returning"

    def __init__(self, seed: int, pieces: int, members: int) -> None:
        self.description = (
            f"{pieces * members} connections that reconnect whenever they are closed, {members} at a time"
        )
        self.pieces, self.piece_s = pieces, 25.0
        self._members = members

    def run(self, number: int, folder: Path) -> Piece:
        """Let learners and visitors connect, one after the other."""
        plain = number % 2 == 1
        rig = ListeningRig(folder, plain=plain)
        first = peers.READY_BEGUN if plain else peers.HELLO_BEGUN
        counts = {"attempts": _ATTEMPTS, "let in": 0}
        with rig.observed_run() as run:
            at_link = peers.ReturningCrowd(rig.link, self._members, first, seconds=_SIEGE_S)
            at_page = peers.ReturningCrowd(rig.page, self._members, b"GET / HTTP/1.1\r\n", seconds=_SIEGE_S)
            with at_link as link, at_page as page:
                link.complete.wait()
                page.complete.wait()
                for _ in range(_ATTEMPTS):
                    counts["let in"] += rig.admits_learners(_NEWCOMER_S)
                    if not rig.page_responds():
                        rig.findings.append(f"in the crowd: the page is not shown within {_PAGE_S:g} s")
            counts["connections"] = link.opened + page.opened
            if run.process.has_ended:
                rig.findings.append("the run ended in the crowd")
            rig.check("after the crowd")
        if missing := _ATTEMPTS - counts["let in"]:
            door = "without keys" if plain else "with keys"
            rig.findings.append(f"{missing} of {_ATTEMPTS} learners are not let in {door} within {_NEWCOMER_S:g} s")
        return rig.piece(number, 2 * self._members, counts)
