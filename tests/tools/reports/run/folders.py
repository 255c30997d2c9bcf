"""Synthetic run folders, as left by runs."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np

from onrig.hw.messages import CommandLayout, StateLayout
from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.record import Miss, Rule
from onrig.runtime.replay.accounts.figures import TimingFile
from onrig.runtime.replay.checkpoint.manifest import identity_of
from onrig.runtime.replay.checkpoint.writer import CheckpointWriter
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import save_resolved
from onrig.runtime.run_state.episodes import COLUMNS
from onrig.runtime.shm.frame_log import LoggedFrame
from onrig.runtime.supervise.last_moments import frames_jsonl, records_csv
from onrig.tools.load import load
from tests.runtime.policy import models
from tests.runtime.samples import episode, records, state

STARTED_S = 1_700_000_000.0
EVENTS: tuple[dict[str, object], ...] = (
    {"kind": "learner_attached", "learner": "local", "pushes": True},
    {"kind": "policy_admitted", "policy": 1, "learner": "local"},
    {"kind": "policy_refused", "policy": 2, "stage": "shapes", "reason": "output is <b>wide</b>"},
    {"kind": "policy_rolled_back", "policy": 3, "reason": "worse by 0.2"},
    {"kind": "tick", "episode": 2, "tick": 240, "rule": "envelope", "missed": 0, "cause": "none"},
    {"kind": "tick", "episode": 2, "tick": 250, "rule": "none", "missed": 3, "cause": "host"},
    {"kind": "tick", "episode": 4, "tick": 800, "rule": "none", "missed": 2, "cause": "link"},
    {
        "kind": "transition",
        "source": "control",
        "message": "running -> fault",
        "before": "running",
        "event": "trip",
        "state": "fault",
        "fault": "device_lease",
    },
)
SUMMARY: dict[str, object] = {
    "exit_reason": "completed",
    "fault": None,
    "episodes": 6,
    "ticks": 1206,
    "missed_ticks": 5,
    "tick_us": {"p50": 100.0, "p99": 250.4, "p999": 900.0, "max": 5000.0},
    "lateness_us": {"p50": 40.0, "p99": 130.0, "p999": 300.0, "max": 900.0},
    "interventions": 12,
    "buffer": {"capacity": 500, "stored": 300, "bytes": 9600},
    "policies": {"offered": 3, "admitted": 2, "refused": 1, "rolled_back": 1, "active": 1},
    "learner": {"updates": 600, "updates_per_s": 50.0},
    "peak_rss_mb": {"control": 70.0, "replay": 80.0},
}


def load_config(*overrides: str) -> RunConfig:
    return load("pendulum", ["selection={strategy: 'FIFO[Uniform]', capacity: 500}", "episodes=6", *overrides])


def write_run(folder: Path, *overrides: str) -> RunConfig:
    """A run of six episodes with everything except a memory and post-mortems."""
    config = load_config(*overrides)
    folder.mkdir(exist_ok=True)
    save_resolved(config, folder / "config.yaml")
    (folder / "summary.json").write_bytes(msgspec.json.encode(SUMMARY))
    meta = {
        "git_revision": "abc",
        "git_dirty": False,
        "versions": {"python": "3"},
        "command": ["/x/onrig", "run", "pen dulum"],
        "started": "2023-11-14T22:13:20+0000",
    }
    (folder / "meta.json").write_bytes(msgspec.json.encode(meta))
    with (folder / "episodes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for k in range(1, 7):
            writer.writerow([k, "train", 200, -100.0 * k, -0.5, 0.1 * k, 0.9, k % 2, 0, 1, k * 4_000_000_000])
            writer.writerow([k, "eval", 200, -90.0, -0.4, 0.12 * k, 0.0, 0, 0, 1, k * 4_000_000_000 + 1])
    write_events(folder, EVENTS)
    timing = TimingFile(folder / "timing.json", lockstep=config.lockstep)
    rows = records(50)
    rows["tick_ns"], rows["stage_ns"] = 150_000, 10_000
    timing.add(rows)
    timing.write()
    return config


def write_events(folder: Path, events: tuple[dict[str, object], ...]) -> None:
    lines = [msgspec.json.encode({"t_unix_s": STARTED_S + k, **event}) for k, event in enumerate(events)]
    (folder / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def write_policy(folder: Path, config: RunConfig, *, updates: int = 40) -> None:
    from onrig.runtime.policy.contract import contract_for

    (folder / "policies").mkdir(exist_ok=True)
    contract = contract_for(config.rig, config.rate_hz, policy_id=1, parent_run="", training_step=updates)
    (folder / "policies" / "1.onnx").write_bytes(models.serialized(models.policy(contract=contract)))


def write_memory(folder: Path, config: RunConfig, n: int = 300) -> None:
    """A checkpoint of ``n`` experiences: angles from -3 to 3 rad, velocities from 0 to 29 rad/s."""
    memory = Memory(config)
    memory.insert(TransitionBuilder(config.rig).add(episode(n)))
    writer = CheckpointWriter(folder / "buffer", identity_of(memory, config.seed), None)
    writer.write(memory, {})
    writer.wait()
    writer.close()


def write_post_mortem(folder: Path, config: RunConfig, *, name: str = "001-device_lease", n: int = 40) -> Path:
    """The last moments before a fault, with an intervention, missed ticks and a lost frame."""
    post_mortem_folder = folder / "post-mortem" / name
    post_mortem_folder.mkdir(parents=True)
    period_ns = config.wall_period_ns
    rows = records(n)
    rows["t_receive_ns"] = rows["t_mono_ns"] = 10**12 + np.arange(n) * period_ns
    rows["rule"][5:8], rows["missed"][20], rows["miss"][20] = Rule.ENVELOPE, 2, Miss.LINK
    rows["tick_ns"], rows["lateness_ns"] = 150_000, 40_000
    (post_mortem_folder / "records.csv").write_bytes(records_csv(rows, config.rig))
    frames = []
    for k in [k for k in range(n) if k != 20]:
        t_ns = int(rows["t_receive_ns"][k])
        frames.append(LoggedFrame(t_ns, StateLayout(2, 1).encode(state(k + 1))))
        frames.append(LoggedFrame(t_ns + 1000, CommandLayout(1).encode(k + 1, (0,))))
    (post_mortem_folder / "frames.jsonl").write_bytes(frames_jsonl(frames, config.rig))
    fault_content = {
        "fault": "device_lease",
        "cause": "no command reached the device <i>for long</i>",
        "hint": "look at the line",
        "detail": "it was so",
        "t_mono_ns": int(rows["t_receive_ns"][-1]) + period_ns,
        "t_unix_s": STARTED_S + 60,
        "state": "running",
        "episode": 4,
        "tick": 39,
        "policy": 1,
        "virtual_time": False,
        "transitions": [{"t_mono_ns": int(rows["t_receive_ns"][3]), "state": "running"}],
    }
    (post_mortem_folder / "fault.json").write_bytes(msgspec.json.encode(fault_content))
    return post_mortem_folder
