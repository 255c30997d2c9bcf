"""Policy evaluation without a rig: admission verdict, and episodes on an in-process lockstep twin.

A lockstep run uses the same modules, so the same policy and seed give the same rows, bit for bit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.messages import State
from onrig.hw.rig import Camera
from onrig.hw.session import DeviceSession
from onrig.hw.transport import LinkError, LoopbackTransport
from onrig.runtime.control.connection import apply_limits
from onrig.runtime.control.episode import begin_episode, policy_action_source
from onrig.runtime.control.tick import Tick
from onrig.runtime.files import open_file
from onrig.runtime.images import ImageValues
from onrig.runtime.policy.admission import Admitted, Refused, admit
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.random_streams import Role, device_seed
from onrig.runtime.record import Kind, Step
from onrig.runtime.replay.learners.admission_terms import admission_limits, required_contract, standard_probes
from onrig.runtime.replay.scoring import Records, terms_of
from onrig.runtime.run_config import Device, RunConfig, record_layout
from onrig.runtime.run_state.episodes import EpisodeAccounts, EpisodeRow
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.main import twin_options
from onrig.sim.twin.options import TwinOptions, sampled_options
from onrig.sim.twin.rendering import TwinCameras


def admission_verdict(model: bytes, config: RunConfig) -> Admitted | Refused:
    """Return the verdict of the admission check, as it would be on a rig with an empty memory."""
    contract = required_contract(config.rig, config.rate_hz, stochastic=config.stochastic, signals=config.signals)
    return admit(model, contract, standard_probes(contract, config.seed), admission_limits(config))


def read_model(path: Path, config: RunConfig) -> bytes | Refused:
    """Read a policy, or refuse an oversized file.  Raises OSError."""
    max_bytes = admission_limits(config).max_bytes
    with open_file(path, None) as file:
        data = file.read(max_bytes + 1)
        size = os.fstat(file.fileno()).st_size
    return data if len(data) <= max_bytes else Refused("size", f"{size} bytes, at most {max_bytes} allowed")


def lockstep_device(config: RunConfig) -> TwinDevice:
    """Return an in-process lockstep twin with the configuration of a run.

    Line faults and latency, which the twin's process would inject, are omitted: commands act immediately.  The twin can
    be reset between episodes even if the run's twin cannot.
    """
    options = msgspec.structs.replace(twin_options(config), reset=True)
    return TwinDevice(config.rig, options, config.task.all_starts, time_scale=0.0)


class ImagesOfTwin:
    """Images that the cameras of an in-process twin see at its last sample."""

    failure: Final = ""

    def __init__(self, device: TwinDevice, cameras: tuple[Camera, ...]) -> None:
        self._device, self._cameras = device, TwinCameras(cameras)

    def read(self) -> tuple[ImageValues, ...]:
        return self._cameras.observe(self._device.options.plant, self._device.plant_state)


def lockstep_session(config: RunConfig, twin: TwinDevice | None = None) -> DeviceSession:
    """Return a session with ``twin`` (default: a new :func:`lockstep_device`) under the limits of a run."""
    device = lockstep_device(config) if twin is None else twin
    reader = FrameReader()

    def handle(data: bytes) -> bytes:
        replies = []
        for body in reader.feed(data):
            replies += device.handle(body)
            if device.sample_due:
                replies.append(device.sample())
        return b"".join(map(encode_frame, replies))

    session = DeviceSession(LoopbackTransport(handle, name="twin"), config.rig, time)
    session.connect()
    session.configure(config.period_us, config.rig.lease_periods)
    apply_limits(config, session)
    return session


_POLICY_ID: Final = 1
"""Id recorded for the evaluated policy; the id in its contract may not fit into a record."""


def evaluate(
    config: RunConfig, policy: PolicySession, policy_id: int, episodes: int, seed: int
) -> Iterator[EpisodeRow]:
    """Yield the rows of evaluation episodes, recorded under ``policy_id``; see :func:`play`."""
    accounts = EpisodeAccounts(config.task, config.rate_hz, config.rig)
    for records in play(config, policy, episodes, seed):
        for row in accounts.add(records):
            yield row._replace(policy_id=policy_id)


def play(config: RunConfig, policy: PolicySession, episodes: int, seed: int) -> Iterator[Records]:
    """Yield the step records of evaluation episodes 1 ... ``episodes``, without noise.

    The device seed and targets of each episode equal those of the same episode in a run with ``seed``.  Raises
    LinkError if the twin stops answering (for example because its plant diverges).
    """
    device, pack = lockstep_device(config), record_packer(config)
    images = ImagesOfTwin(device, config.cameras) if config.cameras else None
    session = lockstep_session(config, device)
    tick = Tick(msgspec.structs.replace(config, seed=seed), images=images)
    for episode in range(1, episodes + 1):
        yield pack(play_episode(session, tick, policy, episode, seed))


def score_on_plants(
    config: RunConfig, model: bytes, options: TwinOptions, seed: int, *, native: bool = False
) -> Iterator[float]:
    """Yield a policy's score in one evaluation episode on each of the plants in ``options.samples``, or on the twin's.

    ``native``: whether the policy runs in C.  Raises ModelRefused for an unusable model, LinkError if a plant
    diverges, and PlantFailure for an exception in a plant's code.
    """
    policy, tick = PolicySession(model, native=native), Tick(msgspec.structs.replace(config, seed=seed))
    pack = record_packer(config)
    n_samples = len(next(iter(options.samples.values()))) if options.samples else 0
    for index in range(max(1, n_samples)):
        twin = msgspec.to_builtins(sampled_options(options, index) if n_samples else options)
        session = lockstep_session(msgspec.structs.replace(config, device=Device(twin=twin, pace="lockstep")))
        accounts = EpisodeAccounts(config.task, config.rate_hz, config.rig)
        (row,) = accounts.add(pack(play_episode(session, tick, policy, index + 1, seed)))
        yield row.score


def record_packer(config: RunConfig) -> Callable[[list[Step]], Records]:
    """Return a function that converts the steps of an episode to records, with all terms of the reward."""
    layout = record_layout(config)
    terms = terms_of(config, layout)

    def pack(steps: list[Step]) -> Records:
        records = layout.pack(steps)
        return records if terms is None else terms.score(records)

    return pack


def play_episode(session: DeviceSession, tick: Tick, policy: PolicySession, episode: int, seed: int) -> list[Step]:
    """Return the steps of one evaluation episode on a session's device; see :func:`play`."""
    tick.begin(episode, Kind.EVAL, [])
    session.arm()
    session.reset(device_seed(seed, Role.PLANT_EVAL, episode))
    steps = _episode(session, tick, policy)
    if steps[-1].fault:
        session.clear_fault()
    session.disarm()
    return steps


def _episode(session: DeviceSession, tick: Tick, policy: PolicySession) -> list[Step]:
    steps: list[Step] = []
    respond = begin_episode(tick, policy_action_source(tick, policy, _POLICY_ID))
    while True:
        state = _next_state(session)
        response = respond(state)
        steps.append(response.step)
        session.send_command(state.frame, response.command)
        if response.is_over:
            return steps


def _next_state(session: DeviceSession) -> State:
    state = session.wait_state(0)
    if state is None:
        raise LinkError("the twin sent no state frame")
    return state
