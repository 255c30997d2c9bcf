"""What must hold when a learner dies: the loop goes on, nothing kept is lost, another learner takes over."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from learner.mirror import Mirror
from runtime.config.resolve import capacity_of, load_resolved
from runtime.exit_codes import ExitCode
from runtime.link.client import LinkClient
from runtime.link.messages import Attach, Attached, Pull, Rows
from runtime.shm.board import Word
from tests.processes.rig import CONTROL, ENDLESS, LEARNER, REPLAY, Run


class Observer:
    """A learner that does nothing but mirror the rig's memory."""

    def __init__(self, run: Run) -> None:
        self._client = LinkClient(f"ipc://{run.shm}/learner", lambda: False)
        attached, _ = self._client.ask(Attach())
        assert isinstance(attached, Attached)
        rig = load_resolved(run.folder / "config.yaml").rig
        self.mirror = Mirror(attached.capacity, len(rig.signals), len(rig.actuators), cyclic=attached.cyclic)

    def pull(self, wait_ms: int) -> Rows:
        """Apply what is new."""
        rows, payloads = self._client.ask(Pull(self.mirror.storage.inserted, closed=1 << 32, wait_ms=wait_ms))
        assert isinstance(rows, Rows)
        self.mirror.apply(payloads[0], rows.upto)
        return rows

    def close(self) -> None:
        self._client.close()


def test_the_loop_goes_on_under_its_last_policy_and_another_learner_takes_over(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS) as run:
        first, control, replay = run.child(LEARNER), run.child(CONTROL), run.child(REPLAY)
        run.until(lambda: run.word(Word.POLICY) >= 3, "the third policy to act")
        run.process.kill(signal.SIGSTOP)  # so that nobody starts another one yet
        first.kill()
        first.wait()
        run.until(lambda: run.word(Word.POLICY) == run.policies()[-1], "what it offered last to act")
        last, episode = run.word(Word.POLICY), run.word(Word.EPISODE)
        run.until(lambda: run.word(Word.EPISODE) >= episode + 5, "five more episodes")
        assert run.word(Word.POLICY) == last
        run.process.kill(signal.SIGCONT)
        second = run.child(LEARNER, other_than=first)
        run.until(lambda: len(run.events("learner_attached")) == 2, "another learner to attach")
        run.until(lambda: run.word(Word.POLICY) >= last + 2, "its policies to act")
        assert run.policies() == list(range(1, run.policies()[-1] + 1))
        assert not any(process.ended for process in (second, control, replay))


def test_whoever_attaches_receives_the_whole_memory_and_every_write_after_it(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS) as run:
        run.until(lambda: run.word(Word.EPISODE) > 25, "the memory to be written over")
        observer = Observer(run)
        capacity = capacity_of(load_resolved(run.folder / "config.yaml"))
        rows = observer.pull(0)
        assert observer.mirror.storage.stored == capacity == 500
        assert rows.upto > capacity
        run.process.kill(signal.SIGINT)
        while not rows.ending:
            rows = observer.pull(1000)
        observer.close()
        assert run.ended() == ExitCode.INTERRUPTED
        buffer = msgspec.convert(run.summary()["buffer"], dict[str, object])
        assert buffer["digest"] == observer.mirror.storage.digest().hex()


def test_in_lockstep_a_new_learner_mirrors_the_memory_bit_for_bit_and_the_run_completes(tmp_path: Path) -> None:
    settings = ("episodes=60", "task.episode_s=1", "learner.updates_per_episode=10", "evaluate_every=0")
    with Run(tmp_path / "run", "pendulum", *settings) as run:
        first = run.child(LEARNER)
        run.until(lambda: run.word(Word.BARRIER) >= 5, "the fifth barrier")
        first.kill()
        assert run.ended() == ExitCode.OK
        assert len(run.events("learner_attached")) == 2
        summary = run.summary()
        assert summary["episodes"] == 60
        assert summary["transitions"] == 60 * 50
        assert summary["mirror_mismatches"] == 0  # compared at every barrier, by hash
        assert len(run.rows()) == 60
