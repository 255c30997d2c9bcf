"""Contradictory limits, schedules that go backwards, budgets too small, unknown processes: a line each, exit 2.

``tests/runtime/test_run_checks.py`` has everything else that a run is refused for.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.explore.schedule import is_quiet, noisy_episodes
from onrig.runtime.explore.settings import Quiet
from onrig.tools.cli import main
from tests.runtime.spoiled import replace_and_locate

VALID_RUN = """\
rig: pendulum
task: swingup
device:
  twin: {plant: {kind: pendulum}}
  pace: lockstep
rate_hz: 50
episodes: 500
learner: {ddpg: {}, updates_per_episode: 100}
limits:
  range: {voltage: [-2.5, 2.5]}
  rate_per_s: {voltage: 100}
  envelope: {velocity: {low: -15, high: 15}}
  fallback: {kind: damp, actuator: voltage, observation: velocity, full_at: 2.0}
exploration:
  process: ou
  over: episodes
  amplitude: [[1, 1.0], [500, 0.1]]
"""

CASES = {
    # name: (text in the valid run, its replacement with the culprit after «, message)
    "envelope upside down": ("{low: -15, high: 15}", "«{low: 15, high: -15}", "expected low < high"),
    "nothing to be near to": (
        "limits:\n  range: {voltage: [-2.5, 2.5]}\n  rate_per_s: {voltage: 100}\n"
        "  envelope: {velocity: {low: -15, high: 15}}\n"
        "  fallback: {kind: damp, actuator: voltage, observation: velocity, full_at: 2.0}\nexploration:\n",
        "exploration:\n  near_envelope: «{from: 0.3}\n",
        "limits.envelope is required as well",
    ),
    "backwards": ("[[1, 1.0], [500, 0.1]]", "[[500, 1.0], «[1, 0.1]]", "episodes must increase, got 1"),
    "standing still": ("[[1, 1.0], [500, 0.1]]", "[[1, 1.0], «[1, 0.1]]", "episodes must increase, got 1"),
    "backwards for one actuator": (
        "[[1, 1.0], [500, 0.1]]",
        "{voltage: [[9, 1.0], [10, 0.5], «[2, 0.1]]}",
        "episodes must increase, got 2",
    ),
    "backwards over steps": (
        "over: episodes\n  amplitude: [[1, 1.0], [500, 0.1]]",
        "over: steps\n  amplitude: [[0, 1.0], [900, 0.5], «[800, 0.1]]",
        "steps must increase, got 800",
    ),
    "before the beginning": (
        "over: episodes\n  amplitude: [[1, 1.0], [500, 0.1]]",
        "over: seconds\n  amplitude: [[«-1, 1.0], [900, 0.5]]",
        "expected 0 or more, got -1",
    ),
    "over what there is not": ("over: episodes", "over: «ticks", "one of episodes, seconds, steps"),
    "hour below one episode": (
        "process: ou",
        "process: ou\n  budgets: {hour: {energy_s: «3.9}}",
        "3.9 is less than one episode may use (4)",
    ),
    "a duty cycle below one episode": (
        "process: ou",
        "process: ou\n  budgets: {hour: {driven_s: «3.9}}",
        "3.9 is less than one episode may use (4)",
    ),
    "session below one episode": (
        "process: ou",
        "process: ou\n  budgets: {session: {wear_strokes: «199}}",
        "199 is less than one episode may use (200)",
    ),
    "hour below its episode's": (
        "process: ou",
        "process: ou\n  budgets: {episode: {interventions: 50}, hour: {interventions: «40}}",
        "40 is less than one episode may use (50)",
    ),
    "session below its hour's": (
        "process: ou",
        "process: ou\n  budgets: {hour: {trips: «9}, session: {trips: 5}}",
        "9 per hour exceeds the session's budget of 5",
    ),
    "back-off that takes nothing": ("process: ou", "process: ou\n  back_off: {least: «1}", "between 0 and 1, got 1"),
    "unknown process": ("process: ou", "process: «pink", "one of epsilon_greedy, gaussian, none, ou, own, parameter"),
    "no noise from a process": ("process: ou", "process: ou\n  gain: «0", "expected a positive number, got 0"),
    "a twin that cannot go back, in lockstep": (
        "{plant: {kind: pendulum}}",
        "{plant: {kind: pendulum}, reset: «false}",
        "in lockstep the twin must be able to reset itself",
    ),
}


def test_the_run_these_cases_spoil_is_sound(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(VALID_RUN)
    assert main(["check", str(tmp_path / "run.yaml")]) == 0


@pytest.mark.parametrize("case", CASES)
def test_contradictions_are_reported_at_their_place_and_nothing_starts(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, message = CASES[case]
    text, location = replace_and_locate(VALID_RUN, old, new)
    path, folder = tmp_path / "run.yaml", tmp_path / "run"
    path.write_text(text)
    for arguments in (["check", str(path)], ["run", str(path), "--run-dir", str(folder)]):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert line.startswith(f"{path}:{location}: ")
        assert message in line
        assert captured.out == ""
    assert not folder.exists()


@given(
    st.lists(st.integers(0, 10_000), min_size=2, max_size=8, unique=True),
    st.data(),
    st.sampled_from(["episodes", "steps", "seconds"]),
)
@settings(max_examples=25)
def test_the_first_backward_point_of_a_schedule_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], xs: list[int], data: st.DataObject, schedule_unit: str
) -> None:
    xs = data.draw(st.permutations(xs))
    backward_indices = [i for i, (a, b) in enumerate(itertools.pairwise(xs), 1) if b <= a]
    points = "".join(f"\n    - [{x}, 0.5]" for x in xs)
    text = VALID_RUN.replace(
        "over: episodes\n  amplitude: [[1, 1.0], [500, 0.1]]", f"over: {schedule_unit}\n  amplitude:{points}"
    )
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert main(["check", str(path)]) == (2 if backward_indices else 0)
    lines = capsys.readouterr().err.splitlines()
    first_line = VALID_RUN[: VALID_RUN.index("  amplitude")].count("\n") + 2
    assert [line.split(": ")[0] for line in lines] == [f"{path}:{first_line + i}:7" for i in backward_indices]


@given(st.integers(2, 12), st.data(), st.integers(0, 200))
@settings(max_examples=50)
def test_noisy_episodes_are_those_that_are_not_quiet(quiet_every: int, data: st.DataObject, episodes: int) -> None:
    quiet = Quiet(quiet_every, data.draw(st.integers(1, quiet_every - 1)))
    assert noisy_episodes(quiet, episodes) == sum(not is_quiet(quiet, e) for e in range(1, episodes + 1))
    assert noisy_episodes(None, episodes) == episodes
