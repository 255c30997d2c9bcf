"""A run's curves as TensorBoard event files, with training episodes as steps.

The files can be written repeatedly, even during the run: each call replaces the run's earlier files.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime.files import read_file
from onrig.runtime.policy.contract import METADATA_KEY, ModelRefused, decode_contract
from onrig.runtime.policy.onnx_wire import read_model
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.latest import MAX_POLICY_BYTES
from onrig.runtime.view.run_view import Columns, RunFiles, Values, count_by_episode, read_run

SUFFIX: Final = ".onrig"


class Scalar(NamedTuple):
    """One value of one curve."""

    tag: str
    episode: int
    value: float
    t_unix_s: float


def write_curves(folder: Path, config: RunConfig, out: Path) -> int:
    """Write ``out/NAME-OF-RUN/events.out.tfevents...`` and return the number of values.

    Raises ImportError if tensorboardX is missing, and OSError if the file cannot be written.
    """
    from tensorboardX import SummaryWriter  # type: ignore[import-untyped, unused-ignore]

    files = read_run(folder, config)
    target = out / folder.resolve().name
    values = list(scalars(files))
    for path in target.glob(f"events.out.tfevents.*{SUFFIX}"):
        path.unlink()
    writer = SummaryWriter(str(target), filename_suffix=SUFFIX)
    try:
        for s in values:
            writer.add_scalar(s.tag, s.value, s.episode, walltime=s.t_unix_s)
    finally:
        writer.close()
    return len(values)


def scalars(m: RunFiles) -> Iterator[Scalar]:
    """Yield every value of every curve, curve by curve, omitting NaN."""
    start_s = _run_start_s(m)
    for kind, columns in (("train", m.train), ("eval", m.evaluation)):
        for name in ("return", "mean_reward", "normalized", "exploration", "interventions", "missed_ticks"):
            if kind == "eval" and name == "exploration":
                continue
            yield from _curve_scalars(f"{kind}/{name}", columns, columns[name], m, start_s)
    yield from _curve_scalars("train/policy", m.train, m.train["policy_id"], m, start_s)
    yield from _update_scalars(m, start_s)
    for field, tag in (("rule", "interventions"), ("cause", "missed")):
        for name, counts in count_by_episode(m.events, field, "missed" if field == "cause" else None).items():
            for episode, n in sorted(counts.items()):
                yield Scalar(f"{tag}/{name}", episode, float(n), _episode_end_s(m.train, episode, m, start_s))


def _curve_scalars(tag: str, columns: Columns, values: Values, m: RunFiles, start_s: float) -> Iterator[Scalar]:
    for episode, value in zip(columns["episode"].tolist(), values.tolist(), strict=True):
        if np.isfinite(value):
            yield Scalar(tag, int(episode), value, _episode_end_s(columns, int(episode), m, start_s))


def _episode_end_s(columns: Columns, episode: int, m: RunFiles, start_s: float) -> float:
    """Return the Unix time of an episode's end.

    This is the run's start plus the time since the first training episode or, in lockstep, plus the virtual time. For
    an unknown episode, it is the run's start.
    """
    times = columns["t_mono_ns"]
    indices = np.flatnonzero(columns["episode"] == episode)
    if not len(indices) or not len(m.train["t_mono_ns"]):
        return start_s
    zero = 0.0 if m.config.lockstep else float(m.train["t_mono_ns"][0])
    return start_s + (float(times[indices[0]]) - zero) / 1e9


def _update_scalars(m: RunFiles, start_s: float) -> Iterator[Scalar]:
    """Yield the training step of each episode's policy, as stated in the policy's contract."""
    steps: dict[int, int | None] = {}
    for episode, policy in zip(m.train["episode"].tolist(), m.train["policy_id"].tolist(), strict=True):
        number = int(policy)
        if number not in steps:
            steps[number] = _training_step(m.folder / "policies" / f"{number}.onnx")
        step = steps[number]
        if step is not None:
            yield Scalar(
                "learner/updates", int(episode), float(step), _episode_end_s(m.train, int(episode), m, start_s)
            )


def _training_step(path: Path) -> int | None:
    try:
        return decode_contract(read_model(read_file(path, MAX_POLICY_BYTES)).metadata[METADATA_KEY]).training_step
    except (OSError, ModelRefused, KeyError, msgspec.DecodeError):
        return None


def _run_start_s(m: RunFiles) -> float:
    """Return the Unix time of the run's start; 0 if it is unknown."""
    if m.events:
        return m.events[0].t_unix_s
    try:
        return datetime.strptime(str(m.meta.get("started")), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return 0.0
