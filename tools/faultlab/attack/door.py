"""A rig at work with its doors open, and a watch on it, for whoever wishes it no good."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from onrig.runtime.run_loading import load_run
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import LinkClient, LinkClosed, RequestRejected
from onrig.runtime.link.messages import Attach, Offer, Verdict
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.shm.board import Word
from onrig.tools.bench.link.rig_end import untrained
from onrig.tools.faultlab.campaign import Piece
from onrig.tools.faultlab.gauges import Gauges
from onrig.tools.faultlab.ledger import Beside, findings
from onrig.tools.faultlab.models import MUTATIONS, Subject
from onrig.tools.faultlab.processes import REPLAY, ROLES, Impatient, children
from onrig.tools.faultlab.run import Run
from onrig.tools.faultlab.run_folder import config_of, left_by, tracebacks

SETTINGS: Final = (
    "realtime.priority=0",
    "realtime.lock_memory=false",
    "rig.lease_periods=255",
    "limits.predicted=null",
    "device.pace={scaled: 4}",
    "task.episode_s=2",
    "episodes=100000",
    "evaluate_every=0",
    "checkpoint_s=2",
    "selection={strategy: 'FIFO[Uniform]', capacity: 2000}",
    "local_learner=false",
)
"""A rig that is in nobody's way on a busy machine, and takes in all that comes."""
_WARM_UP_S: Final = 5.0
_SAMPLE_S: Final = 0.5
_ANSWER_S: Final = 20.0


def subject() -> Subject:
    """Policies of the shipped pendulum, of two sizes."""
    config = load_run("pendulum")
    contract = contract_for(config.rig, config.rate_hz, policy_id=1, parent_run="attack", training_step=0)
    return Subject(config, contract, [untrained(config, contract, seed) for seed in range(2)])


class OpenRig:
    """A run at work, watched, with its page on a port where there is one; afterwards, what was found."""

    def __init__(self, folder: Path, page: int | None = None, *more: str) -> None:
        self.folder = folder
        self._arguments = () if page is None else ("--web", str(page))
        policy = folder / "first.onnx"
        config = load_run("pendulum")
        policy.write_bytes(untrained(config))
        self.settings = (*SETTINGS, f"policy={policy}", *more)
        self.findings: list[str] = []
        self._gauges = Gauges()
        self._over = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[Run]:
        """The run, from its first filed episode on; it is interrupted, and its account examined, at the end."""
        with ExitStack() as stack:
            run = stack.enter_context(Run(self.folder / "run", "pendulum", *self.settings, arguments=self._arguments))
            run.until(lambda: bool(run.rows()), "the first episode to be filed")
            watch = threading.Thread(target=self._watch, args=(run.pid,), daemon=True)
            watch.start()
            try:
                yield run
            finally:
                self._over.set()
                watch.join()
            replay = run.children().get(REPLAY)
            filed = len(run.rows())
            if replay is None:
                self.findings.append("there is no replay process any more")
            else:
                try:
                    run.until(lambda: len(run.rows()) >= filed + 2, "two more episodes", _ANSWER_S)
                except Impatient as error:
                    self.findings.append(str(error))
            run.stop(signal.SIGINT)
            code = run.ended()
            config = config_of(run.folder)
            if code != ExitCode.INTERRUPTED:
                self.findings.append(f"ended with {code}")
            self.findings += findings(left_by(run.folder, config), config, Beside(code, run.word(Word.CLOSED)))
            self.findings += tracebacks(run.folder)

    def _watch(self, pid: int) -> None:
        while not self._over.wait(_SAMPLE_S):
            inside = {ROLES[m]: p for m, p in children(pid).items() if m in ROLES}
            self._gauges.sample(time.monotonic(), {"supervisor": pid, **inside})

    def piece(self, number: int, cases: int, counts: dict[str, int]) -> Piece:
        """What came of it."""
        restarted = {role: len(self._gauges.of(role)) - 1 for role in self._gauges.roles}
        counts |= {f"{role} started again": n for role, n in restarted.items() if n}
        return Piece(number, cases, self.findings, counts, self._gauges.grown_mb(_WARM_UP_S))


class ModelsOverTheLink:
    """A campaign: hostile and mutated models offered to a running rig."""

    name = "link-models"

    def __init__(self, seed: int, pieces: int, cases: int) -> None:
        self.does = f"{pieces * cases} hostile or mutated models over the live link"
        self.pieces, self.piece_s = pieces, 15.0 + 0.02 * cases
        self._seed, self._cases = seed, cases

    def run(self, number: int, folder: Path) -> Piece:
        """Offer one piece."""
        rng = random.Random(f"{self._seed} {self.name} {number}")
        rig, what = OpenRig(folder), subject()
        counts = {"accepted": 0, "refused": 0, "unanswered": 0}
        with rig.at_work() as run:
            with contextlib.closing(LinkClient(f"ipc://{run.shm}/learner", lambda: False)) as client:
                attach = Attach(session=rng.randbytes(16), role="push")
                client.ask(attach)
                for _ in range(self._cases):
                    model = rng.choice(MUTATIONS)(rng.choice(what.originals), rng)
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
