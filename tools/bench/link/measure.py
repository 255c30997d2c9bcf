"""Measurements of ``onrig bench link`` over each endpoint; the rig's end runs in a separate process."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from onrig.learner.agent import Agent
from onrig.learner.attachment import Attachment
from onrig.learner.mirror import Mirror
from onrig.learner.settings import learner_settings
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.link.client import LinkClient
from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import LearnerKeys
from onrig.runtime.link.messages import Offer, Verdict
from onrig.runtime.memory.layout import Layout
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.shm.latest import SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment
from onrig.tools.bench.link.network import LossyLink
from onrig.tools.bench.link.rig_end import RigEnd, RigEndProcess, new_policy_admission, random_policy, with_memory

_UPDATES_PER_POLICY: Final = 5
_MEMORY_CAPACITY: Final = 2000


class Endpoint(NamedTuple):
    """Endpoint of the rig."""

    name: str
    number: int
    """Index of the endpoint."""
    keys: LearnerKeys | None


class Latency(NamedTuple):
    """Policy latencies (ns)."""

    export_ns: list[int]
    offer_ns: list[int]
    """Times from the offer to the verdict, spent on link, admission and slot."""
    load_ns: list[int]
    """Times for reading the policy from the slot, building it and warming it up."""

    @property
    def total_ns(self) -> list[int]:
        """Times from the last gradient step until the policy is ready for the loop's next tick."""
        return [sum(parts) for parts in zip(self.export_ns, self.offer_ns, self.load_ns, strict=True)]


class Snapshot(NamedTuple):
    """Measurements from mirroring a complete memory."""

    n_experiences: int
    seconds: float
    is_complete: bool
    """Whether the mirror received all of the rig's experiences."""


def memory_config(capacity: int) -> RunConfig:
    """Return the configuration of the measured memory and networks."""
    return with_memory(load_run("pendulum"), "FIFO[Uniform]", capacity)


class AdmissionTimes(NamedTuple):
    """Admission times in ns: wall clock and processor time."""

    wall_ns: list[int]
    cpu_ns: list[int]


def admission(n_policies: int, folder: Path) -> AdmissionTimes:
    """Time the admission of untrained policies in this process, without a link."""
    durations = AdmissionTimes([], [])
    with RigEnd(memory_config(_MEMORY_CAPACITY), folder) as end:
        end.fill(_MEMORY_CAPACITY)
        policy_admission = new_policy_admission(end, folder / "judged")
        observations = end.memory.storage.observation[:64]
        for n in range(1, n_policies + 1):
            contract = contract_for(
                end.config.rig, end.config.rate_hz, policy_id=n, parent_run="bench", training_step=n
            )
            model = random_policy(end.config, contract, seed=n)
            start_ns, start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            verdict = policy_admission.admit(model, observations)
            durations.cpu_ns.append(time.thread_time_ns() - start_cpu_ns)
            durations.wall_ns.append(time.perf_counter_ns() - start_ns)
            if not verdict.accepted and verdict.stage != "latency":
                raise RuntimeError(f"admission refused a policy of the benchmark: {verdict.stage}: {verdict.reason}")
    return durations


def latency(rig_end: RigEndProcess, endpoint: Endpoint, folder: Path, n_policies: int) -> tuple[Latency, int]:
    """Train, export, offer and load policies, and return the times and the number of refusals.

    The loop's policy switch does the loading: it reads the policy from the slot, builds it and warms it up.
    """
    config = memory_config(_MEMORY_CAPACITY)
    client = LinkClient(rig_end.endpoints[endpoint.number], lambda: False, endpoint.keys)
    times, n_refused = Latency([], [], []), 0
    try:
        link = Attachment(config, client, "push")
        attached = link.attach()
        while (rows := link.pull(0, 0)[0]).upto < rows.inserted:
            pass
        assert link.mirror is not None
        agent = Agent(config, learner_settings(config.learner), link.mirror)
        agent.catch_up()
        agent.newest_policy_id = attached.next_policy_id - 1
        switch = PolicySwitch(PolicySlot(Segment.attach(folder / "slot", SLOT_SCHEMA)))
        switch.install_newest()
        for _ in range(n_policies):
            for _ in agent.learn(_UPDATES_PER_POLICY):
                pass
            start_ns = time.perf_counter_ns()
            model = agent.export("bench")
            exported_ns = time.perf_counter_ns()
            verdict = link.ask(Offer(agent.updates), model)
            verdict_ns = time.perf_counter_ns()
            if not isinstance(verdict, Verdict) or not verdict.accepted:
                n_refused += 1
                continue
            agent.newest_policy_id = verdict.policy_id
            switch.install_newest()
            ready_ns = time.perf_counter_ns()
            if switch.policy_id != verdict.policy_id:
                raise RuntimeError(f"policy {verdict.policy_id} was admitted but is not in the slot")
            for durations, ns in zip(
                times, (exported_ns - start_ns, verdict_ns - exported_ns, ready_ns - verdict_ns), strict=True
            ):
                durations.append(ns)
    finally:
        client.close()
    return times, n_refused


def snapshot(rig_end: RigEndProcess, endpoint: Endpoint, capacity: int, address: str | None = None) -> Snapshot:
    """Mirror a complete memory from scratch."""
    client = LinkClient(address or rig_end.endpoints[endpoint.number], lambda: False, endpoint.keys)
    try:
        link = Attachment(memory_config(capacity), client, "watch")
        link.attach()
        start = time.perf_counter()
        while (rows := link.pull(0, 0)[0]).upto < rows.inserted:
            pass
        seconds = time.perf_counter() - start
        assert link.mirror is not None
        return Snapshot(link.mirror.storage.stored, seconds, link.mirror.storage.inserted == rows.inserted)
    finally:
        client.close()


def replication_rate(rig_end: RigEndProcess, endpoint: Endpoint, capacity: int, n_experiences: int) -> float:
    """Measure the maximum rate at which experiences are replicated from the rig's memory to a mirror (1/s)."""
    client = LinkClient(rig_end.endpoints[endpoint.number], lambda: False, endpoint.keys)
    try:
        link = Attachment(memory_config(capacity), client, "watch")
        target = link.attach().inserted + n_experiences
        while (rows := link.pull(0, 0)[0]).upto < rows.inserted:
            pass
        start = time.perf_counter()
        rig_end.feed(n_experiences)
        while rows.upto < target:
            rows = link.pull(1 << 40, 1000)[0]
        return n_experiences / (time.perf_counter() - start)
    finally:
        client.close()


def wire_bytes(rig_end: RigEndProcess, endpoint: Endpoint, capacity: int) -> float:
    """Measure the bytes on the wire per experience of a snapshot, summed over both directions; NaN for ipc.

    All overhead except that of tcp is included.
    """
    if endpoint.number == 0:
        return math.nan
    with LossyLink(parse_tcp(rig_end.endpoints[endpoint.number]).port) as proxy:
        proxied_snapshot = snapshot(rig_end, endpoint, capacity, proxy.endpoint)
        return proxy.n_forwarded_bytes / proxied_snapshot.n_experiences


def payload_bytes(capacity: int) -> int:
    """Return the size of one experience as a row, in bytes."""
    mirror = Mirror(capacity, Layout(2, 1), cyclic=True)
    return int(mirror.storage.rows(np.zeros(1, np.int64)).nbytes)
