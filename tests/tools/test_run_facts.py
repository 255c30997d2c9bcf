"""One run, described by its progress, its live figures and its files in the same words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.run_state.report import Report
from onrig.runtime.view.reader import ViewReader
from onrig.runtime.view.run_view import read_run
from onrig.tools.display import progress_line
from onrig.tools.load import load
from onrig.tools.run_description import describe_bounds
from onrig.tools.run_facts import facts_from_counters, facts_from_files, facts_from_progress, facts_from_summary
from tests.runtime.samples import records
from tests.runtime.view.live import LiveRun

SUMMARY = {
    "exit_reason": "completed",
    "episodes": 30,
    "normalized_last20": 0.5,
    "ticks": 12000,
    "missed_ticks": 2,
    "interventions": 1,
    "faults": 0,
    "tick_us": {"p50": 150.0, "p99": 1417.0, "p999": None, "max": 5000.0},
    "buffer": {"capacity": 20000, "stored": 60, "bytes": 640000},
    "learner": {"updates": 500, "updates_per_s": 1500.0},
    "policies": {"offered": 4, "admitted": 3, "refused": 1, "rolled_back": 0, "active": 7},
    "dropped_records": 0,
    "actuators": "safe: shown by a state frame from the device",
}
PROGRESS: dict[str, float | int | str | bool | None] = {
    "episode": 30,
    "normalized": 0.5,
    "ticks": 12000,
    "missed": 2,
    "updates": 500,
    "updates_per_s": 1500.0,
    "policy": 7,
    "stored": 60,
}


def test_a_summary_in_words() -> None:
    assert facts_from_summary(load("pendulum"), SUMMARY).words() == {
        "ended": "completed",
        "episodes": "30 of 500",
        "performance": "normalised reward 0.50",
        "policy": "policy 7",
        "ticks": "12,000 ticks, 2 missed",
        "time of a tick": "p50 150 µs, p99 1.42 ms, max 5 ms",
        "shield": "acted in 1 tick",
        "faults": "none",
        "memory": "60 of 20,000 experiences, 640 kB",
        "learner": "500 updates, 1500/s",
        "policies": "3 of 4 admitted, 1 refused",
        "actuators": "safe: shown by a state frame from the device",
    }


def test_progress_and_summary_agree() -> None:
    config = load("pendulum")
    progress, summary = facts_from_progress(config, PROGRESS).words(), facts_from_summary(config, SUMMARY).words()
    for name in ("episodes", "performance", "policy", "learner", "ticks"):
        assert progress[name] == summary[name]
    line = progress_line(config, Report("replay", "progress", "", PROGRESS), 60.0)
    assert line.startswith("episode 30 of 500, normalised reward 0.50, policy 7, 60 of ")
    assert line.endswith(" experiences, 500 updates, 1500/s, 12,000 ticks, 2 missed, 15 min 40 s left")


@pytest.mark.parametrize("values", [{}, {"normalized": None, "policy": "[/x]", "episode": None, "stored": "x"}])
def test_figures_missing_in_a_report_are_left_out(values: dict[str, object]) -> None:
    assert facts_from_progress(load("pendulum"), values).line().startswith("0 of ")


def test_live_figures_include_the_causes(tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", tmp_path / "shm") as live:
        rows = records(50, episode=3)
        rows["rule"][:2], rows["missed"][9], rows["miss"][9] = 6, 3, 1
        live.push(rows)
        live.telemetry.poll(1e9)
        with ViewReader.attach(live.running) as view:
            figures = view.figures()
            assert figures is not None
            words = facts_from_counters(view.config, figures, 7).words()
    assert words["ticks"] == "50 ticks, 3 missed: 3 link"
    assert words["shield"].startswith("acted in 2 ticks: 2 ")
    assert words["policies"] == "3 of 4 admitted, 1 refused"


def test_the_episodes_of_a_killed_run_are_known(tmp_path: Path) -> None:
    (tmp_path / "episodes.csv").write_text(
        "episode,kind,steps,return,mean_reward,normalized,exploration,interventions,missed_ticks,policy_id,t_mono_ns\n"
        "1,train,200,-1,-0.1,0.25,0,0,0,1,0\n1,eval,200,-1,-0.1,0.75,0,0,0,1,0\n"
    )
    facts = facts_from_files(read_run(tmp_path, load("pendulum")))
    assert facts.words() == {"episodes": "1 of 500", "performance": "normalised reward 0.25, 0.75 evaluated"}


def test_policies_withheld_by_the_learner_are_counted(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode(SUMMARY))
    event = b'{"t_unix_s":1.0,"kind":"policy_withheld","source":"learner","message":"it scores too little"}\n'
    (tmp_path / "events.jsonl").write_bytes(2 * event)
    facts = facts_from_files(read_run(tmp_path, load("pendulum")))
    assert facts.words()["policies"] == "3 of 4 admitted, 1 refused, 2 withheld by the learner"


def test_the_promise_names_the_limit_and_how_it_is_kept() -> None:
    assert describe_bounds(load("pendulum")) == "velocity ±15 rad/s (proved)"
    measured_config = load("pendulum", ["limits.predicted=null", "limits.envelope={velocity: {low: -5, high: 6}}"])
    assert describe_bounds(measured_config) == "velocity −5 to 6 rad/s (measured)"
    unlimited_config = msgspec.structs.replace(
        measured_config, limits=msgspec.structs.replace(measured_config.limits, envelope={})
    )
    assert describe_bounds(unlimited_config) == "nothing"
