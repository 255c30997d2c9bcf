"""A learner that becomes silent: actions of the run between episodes, and messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from onrig.runtime.control import staleness
from onrig.runtime.control.frames import Stopped
from onrig.runtime.control.staleness import Silence, SilenceChange, SilenceCheck, expects_learner
from onrig.runtime.link.endpoint import Link
from onrig.runtime.process_settings import Staleness
from onrig.runtime.run_loading import load_run
from onrig.runtime.run_state.faults import FaultName, Halted
from onrig.runtime.shm.board import Word
from tests.runtime.control.test_loop import EPISODE, STEPS, Bench
from tests.runtime.samples import PENDULUM

S = 10**9
EPISODE_RECORDS = STEPS + 1


# -- the decision ------------------------------------------------------------------------------------------------------


def poll(listener: SilenceCheck, now_s: float, last_heard_s: float) -> Silence:
    return listener.poll(round(now_s * S), round(last_heard_s * S))


def test_silence_begins_after_its_time_and_each_change_is_reported_once() -> None:
    listener = SilenceCheck(Staleness(after_s=60.0), started_ns=100 * S)
    polls = [(150, 90), (160, 100), (160.1, 100), (200, 100), (201, 200.9), (202, 200.9), (300, 200.9)]
    assert [poll(listener, now, silence).change for now, silence in polls] == [
        SilenceChange.SAME,
        SilenceChange.SAME,
        SilenceChange.FELL_SILENT,
        SilenceChange.SAME,
        SilenceChange.CAME_BACK,
        SilenceChange.SAME,
        SilenceChange.FELL_SILENT,
    ]


def test_a_learner_that_was_never_heard_is_waited_for_from_the_start() -> None:
    listener = SilenceCheck(Staleness(after_s=60.0), started_ns=1000 * S)
    assert poll(listener, 1059, 0).silent_s == 59.0
    assert poll(listener, 1061, 0).change is SilenceChange.FELL_SILENT


@pytest.mark.parametrize(
    ("rules", "factor", "pauses"),
    [
        (Staleness(1.0, "keep", 0.3), 1.0, False),
        (Staleness(1.0, "lower", 0.3), 0.3, False),
        (Staleness(1.0, "fall_back", 0.3), 1.0, True),
    ],
)
def test_the_response_to_silence_ends_with_it(rules: Staleness, factor: float, *, pauses: bool) -> None:
    listener = SilenceCheck(rules, started_ns=0)
    quiet = poll(listener, 5, 0)
    assert (quiet.restraint, quiet.pauses) == (factor, pauses)
    silence = poll(listener, 5, 4.5)
    assert (silence.restraint, silence.pauses, silence.change) == (1.0, False, SilenceChange.CAME_BACK)


def test_a_learner_is_expected_if_one_may_connect_and_the_run_does_not_wait_for_it() -> None:
    realtime = load_run("pendulum", ["device.pace=realtime"])
    fixed = msgspec.structs.replace(realtime, local_learner=False)
    assert expects_learner(realtime)
    assert not expects_learner(PENDULUM), "lockstep"
    assert not expects_learner(fixed)
    assert expects_learner(msgspec.structs.replace(fixed, link=Link("tcp://*:5555", "keys")))


# -- in the loop -------------------------------------------------------------------------------------------------------


class QuietLearnerRig:
    """A paced loop whose learner is heard when the test says so."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> None:
        self.now_s = 1.0
        monkeypatch.setattr(staleness, "time", SimpleNamespace(monotonic_ns=lambda: round(self.now_s * S)))
        self.bench = Bench(folder, monkeypatch, *settings, lockstep=False)
        self.reports: list[tuple[str, str, dict[str, object]]] = []
        monkeypatch.setattr(staleness, "report", self._record_report)

    def _record_report(self, source: str, kind: str, message: str = "", **values: object) -> bool:
        self.reports.append((kind, message, values))
        return True

    def at_episode_end(self, episode: int, action: Callable[[], None]) -> None:
        """Trigger an action at the end of an episode."""
        previous_hook, closing_record = self.bench.ring.at_push, episode * EPISODE_RECORDS

        def push_and_act(n: int) -> None:
            previous_hook(n)
            if n == closing_record:
                action()

        self.bench.ring.at_push = push_and_act

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    def hear_learner(self) -> None:
        self.bench.board[Word.LEARNER_NS] = round(self.now_s * S)


def test_keep_continues_and_reports_the_silence_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = QuietLearnerRig(tmp_path, monkeypatch, "episodes=4")
    rig.at_episode_end(1, lambda: rig.advance(75.0))
    rig.at_episode_end(2, lambda: rig.advance(5.0))
    rig.at_episode_end(3, rig.hear_learner)
    rig.bench.loop.run()
    assert rig.bench.transitions == ["connected:ready", *EPISODE * 4, "completed:disconnected"]
    assert [(kind, values["what"], values["silent_s"]) for kind, _, values in rig.reports] == [
        ("warning", "learner_silent", 75.0),
        ("event", "learner_heard", 0.0),
    ]
    assert rig.reports[0][1] == f"the learner has been silent for 75 s; policy 1 has acted for {STEPS} ticks"


def test_lower_explores_less_from_the_next_episode_and_more_again_when_the_learner_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = "exploration={process: gaussian, std: 0.1, amplitude: [[1, 0.8]]}"
    rig = QuietLearnerRig(
        tmp_path, monkeypatch, "staleness={then: lower, factor: 0.25, after_s: 10}", noise, "episodes=3"
    )
    rig.at_episode_end(1, lambda: rig.advance(11.0))
    rig.at_episode_end(2, rig.hear_learner)
    amplitudes: list[float] = []
    explorer = rig.bench.loop._explorer
    previous_hook = rig.bench.ring.at_push

    def record_amplitude(n: int) -> None:
        previous_hook(n)
        if n % EPISODE_RECORDS == 10:
            amplitudes.append(explorer.amplitude(1.0)[0])

    rig.bench.ring.at_push = record_amplitude
    rig.bench.loop.run()
    assert amplitudes == [0.8, 0.2, 0.8]
    assert "exploration amplitude multiplied by 0.25" in rig.reports[0][1]


def test_fall_back_is_safe_between_episodes_and_continues_when_the_learner_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = QuietLearnerRig(tmp_path, monkeypatch, "staleness={then: fall_back, after_s: 10}")
    rig.at_episode_end(1, lambda: rig.advance(11.0))
    armed_states: list[bool] = []

    def wake_learner() -> None:
        armed_states.append(rig.bench.device.armed)
        rig.hear_learner()

    rig.bench.on_warning = wake_learner
    rig.bench.loop.run()
    assert armed_states == [False]
    pause_transitions = ["pause:paused", "resume:ready"]
    assert rig.bench.transitions == [
        "connected:ready",
        *EPISODE,
        *pause_transitions,
        *EPISODE * 2,
        "completed:disconnected",
    ]
    assert [values["what"] for _, _, values in rig.reports] == ["learner_silent", "learner_heard"]
    assert "paused: the learner has been silent for 11 s" in rig.bench.reports[0][1]


def test_an_operator_may_let_it_continue_for_an_episode_without_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = QuietLearnerRig(tmp_path, monkeypatch, "staleness={then: fall_back, after_s: 10}", "episodes=2")
    rig.advance(11.0)

    def person() -> None:
        rig.bench.board[Word.RESUME] += 1

    rig.bench.on_warning = person
    rig.bench.loop.run()
    assert rig.bench.transitions.count("pause:paused") == 2
    assert [values["what"] for _, _, values in rig.reports] == ["learner_silent"]


def test_without_a_learner_or_an_operator_the_run_ends_disarmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = QuietLearnerRig(
        tmp_path, monkeypatch, "staleness={then: fall_back, after_s: 10}", "supervision.resume_timeout_s=0"
    )
    rig.at_episode_end(1, lambda: rig.advance(11.0))
    with pytest.raises(Halted, match="the learner has been silent for 11 s") as error:
        rig.bench.loop.run()
    assert error.value.fault is FaultName.NOT_RESUMED
    assert rig.bench.transitions[-2:] == ["pause:paused", "expired:disconnected"]
    assert not rig.bench.device.armed


def test_a_stop_is_obeyed_while_waiting_for_the_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = QuietLearnerRig(tmp_path, monkeypatch, "staleness={then: fall_back, after_s: 10}")
    rig.advance(11.0)
    rig.bench.on_warning = lambda: rig.bench.board.__setitem__(Word.STOP, 1)
    with pytest.raises(Stopped):
        rig.bench.loop.run()
    assert rig.bench.transitions[-2:] == ["pause:paused", "stop:disconnected"]


def test_in_lockstep_silence_is_not_monitored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, "staleness={then: fall_back, after_s: 1}")
    monkeypatch.setattr(staleness, "time", SimpleNamespace(monotonic_ns=lambda: 1 << 60))
    bench.loop.run()
    assert "pause:paused" not in bench.transitions
