"""Requirements of a configured run.

This module imports the configuration packages, which need working wheels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from onrig.learner import trajectories
from onrig.learner.settings import learner_settings
from onrig.runtime.memory.strategy import parse_sampling, parse_strategy
from onrig.runtime.run_config import RunConfig, capacity_of, layout_of, record_layout
from onrig.runtime.supervise.segments import shared_bytes
from onrig.runtime.task import episode_steps
from onrig.tools.doctor.finding import Needs

_CHECKPOINT_GROWTH: Final = 3.5
"""Maximum size of the rows on disk, as a multiple of their size in memory (``onrig.runtime.replay.checkpoint``)."""
_ORDER_BYTES_PER_SLOT: Final = 3 * 16
"""Bytes of the order segments on disk per slot."""
_STAMP_BYTES_PER_SLOT: Final = 12
_SOCKETS_BYTES: Final = 64 << 10
_LOG_BYTES_PER_RECORD_BYTE: Final = 2.0
"""Upper estimate of the log's bytes per byte of a record, including names and timestamps."""
_POLICY_BYTES: Final = 64 << 10
"""Assumed size of a policy, of which each training episode adds one; those of the shipped networks are smaller."""
_RIG_BYTES: Final = 300 << 20
"""Locked memory of the control, replay and supervisor processes, measured on a small x86 machine."""
_LEARNER_BYTES: Final = 300 << 20


def determine_needs(config: RunConfig, name: str, folder: Path, port: str | None) -> Needs:
    """Determine the requirements of a run; ``port`` replaces the configured device."""
    record = record_layout(config)
    memory = capacity_of(config) * (layout_of(config).row_bytes + _STAMP_BYTES_PER_SLOT)
    if port is None and config.device.port is not None:
        port = config.device.port.path
    listens = config.link.listen is not None
    return Needs(
        config=name,
        realtime=not config.lockstep,
        rate_hz=1e9 / config.wall_period_ns,
        priority=config.realtime.priority,
        cpu=config.realtime.cpu,
        lock_memory=config.realtime.lock_memory,
        port=port,
        listens=listens,
        keys=Path(config.link.keys).expanduser() if listens and config.link.keys is not None else None,
        learner=config.local_learner,
        folder=folder,
        disk_bytes=disk_bytes(config, record.size),
        shm_bytes=shared_bytes(config) + _SOCKETS_BYTES,
        memory_bytes=_RIG_BYTES + memory + (_LEARNER_BYTES + learner_bytes(config) if config.local_learner else 0),
    )


def learner_bytes(config: RunConfig) -> int:
    """Estimate the learner's memory for experiences: the mirror, links, and bookkeeping of sampler and algorithm."""
    settings = learner_settings(config.learner)
    sampling = parse_sampling(parse_strategy(config.selection.strategy).sampling)
    row_bytes = layout_of(config).row_bytes + _STAMP_BYTES_PER_SLOT + sampling.bytes_per_slot
    link_bytes = trajectories.BYTES_PER_SLOT if settings.algorithm_config.needs_links else 0.0
    return round(capacity_of(config) * (row_bytes + link_bytes + settings.note_bytes))


def complete_run_bytes(config: RunConfig) -> int:
    """Estimate the maximum disk space of a complete run."""
    return disk_bytes(config, record_layout(config).size)


def disk_bytes(config: RunConfig, record_bytes: int) -> int:
    """Estimate the maximum size of a complete run's folder: memory, policies and log."""
    evaluations = config.episodes // config.evaluate_every if config.evaluate_every else 0
    ticks = (config.episodes + evaluations) * (episode_steps(config.task, config.rate_hz) + 1)
    row_bytes = layout_of(config).row_bytes + _STAMP_BYTES_PER_SLOT
    slots = min(capacity_of(config), config.episodes * episode_steps(config.task, config.rate_hz))
    memory = slots * (_CHECKPOINT_GROWTH * row_bytes + _ORDER_BYTES_PER_SLOT)
    return round(memory + config.episodes * _POLICY_BYTES + _log_bytes(config, ticks * record_bytes))


def _log_bytes(config: RunConfig, record_bytes: int) -> float:
    """Estimate the size of the log, including the disk space that it keeps free for the memory."""
    if config.log.mcap is False:
        return 0.0
    log_bytes = record_bytes * _LOG_BYTES_PER_RECORD_BYTE / config.log.decimation
    return config.log.keep_free_bytes + min(log_bytes, config.log.max_bytes or log_bytes)
