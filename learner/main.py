"""The learner process: ``python -m learner.main CONFIG ENDPOINT [--state FOLDER]``.

Mirrors the rig's memory, trains, and offers policies.  It may come and go: the rig owns the experiences, and what this
process knows beyond them (networks, optimisers) it keeps in FOLDER.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec
import numpy as np
import torch

from hw.rig import Rig
from learner.agent import Agent, Replayed
from learner.mirror import Mirror
from learner.settings import LearnerSettings
from runtime.config.document import ConfigError, convert, parse_document
from runtime.config.resolve import load_resolved
from runtime.config.schema import RunConfig
from runtime.control.realtime import die_with_parent, leave_cpu
from runtime.exit_codes import ExitCode
from runtime.link.client import LinkClient, LinkClosed, RequestRejected
from runtime.link.messages import (
    Attach,
    Attached,
    Confirm,
    Done,
    Errors,
    Offer,
    Pull,
    ReplyMessage,
    RequestMessage,
    Rows,
    Verdict,
)
from runtime.supervise.report import report

_ME: Final = "learner"
_SAVE_S: Final = 2.0
_WAIT_MS: Final = 200
_NICE: Final = 10


class Unfit(Exception):
    """This learner cannot serve that rig; says why."""


class LearnerProcess:
    """The conversation with one rig."""

    def __init__(self, config: RunConfig, endpoint: str, state: Path, stop: list[bool]) -> None:
        self._config = config
        self._settings = msgspec.convert(config.learner, LearnerSettings)
        self._client = LinkClient(endpoint, lambda: stop[0])
        self._state = state / "learner.npz"
        self._saved_s = time.monotonic()
        self._busy_s = 0.0
        self._done_here = 0
        self._mirrored = False
        self.of_use = False
        """Whether the rig has accepted anything that was done with its memory."""
        self._error_batch = time.time_ns()

    def run(self) -> None:
        """Attach, then learn until the run ends."""
        attached = self._ask(Attach())
        if not isinstance(attached, Attached):
            raise Unfit(f"unexpected answer to attach: {attached}")
        self._check(attached)
        self._run_id, self._lockstep = attached.run_id, attached.lockstep
        rig = self._config.rig
        self._mirror = Mirror(attached.capacity, len(rig.signals), len(rig.actuators), cyclic=attached.cyclic)
        self._agent = Agent(self._config, self._settings, self._mirror)
        torch.set_num_threads(1 if self._lockstep else self._settings.threads)
        rows = self._pull(closed=attached.closed, wait_ms=0)
        while rows.upto < rows.inserted:
            rows = self._pull(closed=attached.closed, wait_ms=0)
        restored = self._agent.restore(self._state)
        self._agent.catch_up()
        self._mirrored = True
        if attached.next_policy_id <= 1 and not restored:
            self._offer()
            self._tell_done(0)
        else:
            self._rejoin(attached, restored)
        report(_ME, "ready", "restored" if restored else "from the beginning")
        while not rows.ending:  # then nobody is left to answer
            self._learn(rows)
            rows = self._pull(closed=self._agent.handled, wait_ms=_WAIT_MS)
        self.save()

    def _check(self, attached: Attached) -> None:
        theirs = convert(parse_document(attached.config.decode(), "the rig's configuration"), ("rig",), Rig)
        if theirs != self._config.rig:
            raise Unfit(f"the rig at the other end, '{theirs.name}', is not described as in this configuration")

    def _rejoin(self, attached: Attached, restored: bool) -> None:
        """Take up a run that is under way."""
        agent = self._agent
        agent.policies = max(agent.policies, attached.next_policy_id - 1)
        agent.handled = min(agent.handled, attached.closed)
        if not restored:
            # New networks must not act before they have seen what their predecessor learned from.
            agent.handled = attached.closed
            owed = min((self._settings.updates_per_episode or 100) * attached.closed, 10 * self._settings.backlog)
            report(_ME, "warning", f"no saved state: {owed} updates on the rig's memory before the first policy")
            if agent.ready:
                self._update(owed)
                self._offer()
            self._tell_done(agent.handled)

    def _learn(self, rows: Rows) -> None:
        if rows.upto < rows.inserted:
            return  # still catching up
        agent, settings = self._agent, self._settings
        if settings.updates_per_transition is not None:
            self._learn_continuously(rows)
            return
        while agent.handled < rows.closed:
            episode = agent.handled + 1
            behind = rows.closed - episode
            if self._lockstep:
                self._ask(Confirm(episode, self._mirror.storage.digest()))
            agent.begin_episode(episode)
            updates = settings.updates_per_episode or 0
            if not self._lockstep and behind * updates > settings.backlog:
                updates = 0
            if agent.ready and updates:
                self._update(updates)
                if self._lockstep or not behind:
                    self._offer()
            agent.handled = episode
            self._tell_done(episode)
            self.save(at_most_every_s=_SAVE_S)

    def _learn_continuously(self, rows: Rows) -> None:
        agent, settings = self._agent, self._settings
        owed = int(rows.inserted * (settings.updates_per_transition or 0)) - agent.updates
        for episode in range(agent.handled + 1, rows.closed + 1):
            agent.begin_episode(episode)
        if agent.ready and owed > 0:
            self._update(min(owed, 100))
        if rows.closed > agent.handled:
            agent.handled = rows.closed
            self._offer()
            self._tell_done(rows.closed)
            self.save(at_most_every_s=_SAVE_S)

    def _update(self, updates: int) -> None:
        start = time.perf_counter()
        pieces = list(self._agent.learn(updates))
        self._busy_s += time.perf_counter() - start
        self._done_here += updates
        self._send_errors(pieces)

    def _send_errors(self, pieces: list[Replayed]) -> None:
        if not pieces:
            return
        self._error_batch += 1
        self._ask(
            Errors(self._error_batch),
            np.concatenate([p.slots for p in pieces]).astype("<i8").tobytes(),
            np.concatenate([p.generations for p in pieces]).astype("<u4").tobytes(),
            np.concatenate([p.abs_td for p in pieces]).astype("<f4").tobytes(),
        )

    def _offer(self) -> None:
        policy_id, model = self._agent.export(self._run_id)
        verdict = self._ask(Offer(policy_id, self._agent.updates), model)
        if isinstance(verdict, Verdict) and not verdict.accepted:
            report(_ME, "warning", f"policy {policy_id} refused at {verdict.stage}: {verdict.reason}")

    def _tell_done(self, episode: int) -> None:
        rate = self._done_here / self._busy_s if self._busy_s else 0.0
        self._ask(Done(episode, self._agent.updates, rate))
        self.of_use = True

    def _pull(self, closed: int, wait_ms: int) -> Rows:
        storage = self._mirror.storage
        rows, payloads = self._client.ask(Pull(storage.inserted, closed, wait_ms))
        if not isinstance(rows, Rows) or len(payloads) != 1:
            raise Unfit("the rig answered a pull with something else")
        if payloads[0]:
            slots = self._mirror.apply(payloads[0], rows.upto)
            if self._mirrored:
                self._agent.written(slots)
        return rows

    def _ask(self, request: RequestMessage, *payloads: bytes) -> ReplyMessage:
        return self._client.ask(request, *payloads)[0]

    def save(self, at_most_every_s: float = 0.0) -> None:
        """Write what to go on from."""
        if time.monotonic() - self._saved_s >= at_most_every_s:
            self._saved_s = time.monotonic()
            self._agent.save(self._state)

    def close(self) -> None:
        """Close the link."""
        self._client.close()


def learn(config: RunConfig, endpoint: str, state: Path | None) -> int:
    """Serve the rig at ``endpoint`` until its run ends; returns the exit code."""
    stop = [False]

    def request_stop(signum: int, frame: object) -> None:
        stop[0] = True

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    if state is not None:
        state.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="onrig-learner-") as passing:
        while True:
            process = LearnerProcess(config, endpoint, state or Path(passing), stop)
            try:
                process.run()
            except LinkClosed as error:
                if not stop[0]:
                    report(_ME, "error", str(error))
                    return ExitCode.HARDWARE
                return ExitCode.OK
            except Unfit as error:
                report(_ME, "error", str(error))
                return ExitCode.CONFIGURATION
            except RequestRejected as error:
                if not process.of_use:
                    report(_ME, "error", str(error))
                    return ExitCode.INTERNAL
                # The rig's memory is another one now (a new replay process): mirror that, with the same networks.
                process.save()
                report(_ME, "warning", f"{error}; attaching anew")
            else:
                return ExitCode.OK
            finally:
                process.close()


def main(arguments: list[str]) -> int:
    """Parse the arguments and learn: beside the loop, on what the others leave of the processor."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="learner")
    parser.add_argument("config", type=Path)
    parser.add_argument("endpoint")
    parser.add_argument("--state", type=Path)
    args = parser.parse_args(arguments)
    try:
        config = load_resolved(args.config)
    except ConfigError as error:
        report(_ME, "error", str(error))
        return ExitCode.CONFIGURATION
    if not config.lockstep:
        # Beside a real-time loop what carries bytes between it and the device comes first: kernel threads of the
        # ordinary class.  (SCHED_IDLE does worse: at 500 Hz 55 to 91 missed ticks in 2000 were measured, not 2 to 15.)
        os.nice(_NICE)
        leave_cpu(config.realtime)
    return learn(config, args.endpoint, args.state)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
