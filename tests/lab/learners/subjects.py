"""Subjects of ``python -m tests.lab.learner``, each in a separate process on one torch thread.

One function per subject prepares the timed call of a case.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import torch

from onrig.learner.algorithm_settings import NETWORK_SIZES, DdpgConfig, Td3Config
from onrig.learner.algorithms import algorithm_for
from onrig.learner.sac_settings import SacConfig
from onrig.learner.settings import learner_settings
from onrig.learner.trials.engine import Trials, run_trials
from onrig.learner.trials.memories import Memories
from onrig.learner.trials.rows import contents_for
from onrig.runtime.run_config import RunConfig, capacity_of
from onrig.runtime.task import episode_steps
from onrig.tools.bench.replay.buffers import Floats, random_transitions
from onrig.tools.bench.timing import Timings, disable_collector, measure, measure_with_stalls
from onrig.tools.load import load
from onrig.tools.workers import Channel, Unavailable
from tests.lab.learners.cases import (
    JAX_PEER,
    LARGE,
    LIMIT,
    MODULES,
    ONRIG,
    PEER,
    STORED,
    STRATEGY_EPISODES,
    WARM_UP,
    LearnerCase,
    Product,
    Work,
    products,
)

Build = Callable[[LearnerCase, int, int], Callable[[], object]]
"""Function that builds the timed call from a case, the updates per call and a seed; raises ``Unavailable``."""


class Subject:
    """The subject measured in this process."""

    def __init__(self, build: Build) -> None:
        self._build: Final = build
        self._calls: Final[dict[LearnerCase, Callable[[], object]]] = {}
        self._strategy: Strategy | None = None

    def time(self, case: LearnerCase, updates: int, calls: int, limit_ns: int, seed: int) -> Timings:
        """Return the processor times of calls with ``updates`` updates each, up to ``calls`` calls or ``limit_ns``."""
        run = self._calls.get(case)
        if run is None:
            run = self._calls[case] = self._build(case, updates, seed)
            disable_collector()
        timed = run
        gc.collect()
        if case.work is Work.LARGE:
            timings = measure_with_stalls(lambda _: timed(), range(calls), limit_ns)
            return Timings(timings.busy_calls, timings.spans)
        return Timings(measure(lambda _: timed(), range(calls), limit_ns, clock=time.process_time_ns))

    def play(self, strategy: str, trials: int, done: int, episodes: int) -> Timings:
        """Advance the trials of one strategy to their state after ``done`` episodes, and time ``episodes`` complete
        ones."""
        if self._strategy is None:
            self._strategy = Strategy(strategy, trials)
        self._strategy.forward_to(done)
        self._strategy.durations(WARM_UP)
        return self._strategy.durations(episodes)


def limit(case: LearnerCase, updates: int, seed: int) -> Callable[[], object]:
    """Limit of the machine: only the matrix products of the update, or one large product.

    The products of the update run ``updates`` times per call, the large one once.
    """
    generator = torch.Generator().manual_seed(seed)

    def kernel(product: Product) -> Callable[[], object]:
        shapes = (product.rows, product.inner), (product.inner, product.columns), (product.rows, product.columns)
        a, b, out = (torch.rand((case.trials, *shape), generator=generator) for shape in shapes)
        return partial(torch.bmm, a, b, out=out)

    if case.work is Work.LARGE:
        left, right = (torch.rand((LARGE, LARGE), generator=generator) for _ in range(2))
        return partial(torch.mm, left, right, out=torch.empty_like(left))
    kernels = [kernel(product) for product in products(case)]

    def run() -> None:
        for _ in range(updates):
            for do in kernels:
                do()

    return run


def onrig(case: LearnerCase, updates: int, seed: int) -> Callable[[], object]:
    """Build Onrig's algorithm, with full memories if it samples its own minibatches, one per trial."""
    streams = [np.random.default_rng([seed, 3, s]) for s in range(case.trials)]
    algorithm = algorithm_for(case.settings, case.shape.n_obs, case.shape.n_act, streams)
    memories = full_memories(case, seed)
    if case.work is Work.UPDATE:
        minibatches, _ = memories.draw(updates)
        return partial(algorithm.update, minibatches)
    return lambda: algorithm.update(memories.draw(updates)[0])


def full_memories(case: LearnerCase, seed: int) -> Memories:
    """Fill FIFO[Uniform] memories with ``STORED`` random transitions; raises ``Unavailable`` for unknown sizes."""
    config = load(case.rig, ["selection.strategy=FIFO[Uniform]", f"selection.capacity={STORED}"])
    n, m = case.shape.n_obs, case.shape.n_act
    if (len(config.rig.signals), len(config.rig.actuators)) != (n, m):
        raise Unavailable(f"{case.rig} is not of sizes {case.shape}")
    memories = Memories(contents_for(config, case.settings, is_noisy=False), range(case.trials))
    t = random_transitions(STORED, n, m, seed)
    rows = np.column_stack((t.observation, t.action, t.next_observation, t.reward / STORED, t.exploration))
    memories.insert(np.broadcast_to(rows.astype(np.float32), (case.trials, *rows.shape)))
    return memories


def stable_baselines3(case: LearnerCase, updates: int, seed: int, package: str = PEER) -> Callable[[], object]:
    """Build Stable-Baselines3 or sbx with our sizes, batch, gamma, tau and step sizes, its own buffer and ``train``.

    Its DDPG differs in three points: the critic receives the action at its input instead of its second layer (a few
    more weights), both networks share one step size (no effect on speed), and there is no weight decay (additional work
    in Onrig only).
    """
    if case.trials != 1:
        raise Unavailable("it has no trial axis")
    import gymnasium
    from gymnasium.spaces import Box
    from stable_baselines3.common.logger import Logger

    class Nowhere(gymnasium.Env[Floats, Floats]):
        """Environment that only has spaces."""

        observation_space = Box(-1.0, 1.0, (case.shape.n_obs,), np.float32)
        action_space = Box(-1.0, 1.0, (case.shape.n_act,), np.float32)

    config = case.settings.algorithm_config
    if isinstance(config, DdpgConfig):
        actor, critic = NETWORK_SIZES[config.network]
        lr = config.critic_lr
    elif isinstance(config, Td3Config | SacConfig):
        actor = critic = config.hidden
        lr = config.lr
    else:
        raise Unavailable(f"it is not asked for {case.algorithm}")
    library = importlib.import_module(MODULES[package])
    own = {"device": "cpu"} if package == PEER else {}
    model = getattr(library, case.algorithm.upper())(
        "MlpPolicy",
        Nowhere(),
        learning_rate=lr,
        batch_size=config.batch,
        gamma=config.gamma,
        tau=config.tau,
        buffer_size=STORED,
        policy_kwargs={"net_arch": {"pi": list(actor), "qf": list(critic)}},
        seed=seed,
        **own,
    )
    model.set_logger(Logger(None, []))
    t = random_transitions(STORED, case.shape.n_obs, case.shape.n_act, seed)
    add = model.replay_buffer.add
    for i in range(STORED):
        one = t.select(i, 1)  # adds the axis of the single environment
        add(one.observation, one.next_observation, one.action, one.reward / STORED, one.terminated, [{}])
    if case.work is Work.UPDATE:
        same = model.replay_buffer.sample(
            config.batch * (1 if package == PEER else updates)
        )  # sbx samples all minibatches at once
        model.replay_buffer.sample = lambda *_, **__: same
    return partial(model.train, gradient_steps=updates, batch_size=config.batch)


class Strategy:
    """Trials of one strategy, whose memories are filled with random rows to skip time."""

    def __init__(self, strategy: str, trials: int) -> None:
        self._config: Final = config_of(strategy)
        settings = learner_settings(self._config.learner)
        self._trials: Final[Trials] = run_trials(self._config, settings, range(trials))
        self._n_trials: Final = trials
        self._random: Final = np.random.default_rng(trials)

    def forward_to(self, done: int) -> None:
        """Skip to the state after ``done`` episodes without updates; schedules and sizes are those of that point.

        A memory is filled at most once, and its contents have not been replayed; this does not affect the duration of a
        draw, even if it is ordered by error.
        """
        trials, memories = self._trials, self._trials.memories
        steps = episode_steps(self._config.task, self._config.rate_hz)
        enough = -(-capacity_of(self._config) // steps)
        for _ in range(min(done + 1 - int(trials.episodes[0]), enough)):
            rows = self._random.uniform(-1.0, 1.0, (self._n_trials, steps, memories.width)).astype(np.float32)
            memories.insert(rows)
        trials.episodes[:], trials.steps = done + 1, done * steps

    def durations(self, episodes: int) -> Timings:
        """Time complete episodes, by wall clock and processor time."""
        calls, busy_calls = [], []
        for _ in range(episodes):
            busy, start = time.process_time_ns(), time.perf_counter_ns()
            self._trials.advance()
            calls.append(time.perf_counter_ns() - start)
            busy_calls.append(time.process_time_ns() - busy)
        return Timings(calls, busy_calls=busy_calls)


def config_of(strategy: str) -> RunConfig:
    """Return the pendulum's configuration with ``strategy``, for a full-length experiment."""
    return load("pendulum", [f"selection.strategy={strategy}", f"episodes={STRATEGY_EPISODES}"])


BUILDS: Final[dict[str, Build]] = {
    ONRIG: onrig,
    PEER: stable_baselines3,
    JAX_PEER: partial(stable_baselines3, package=JAX_PEER),
    LIMIT: limit,
}


def start_up(subject: str) -> Subject:
    """Import the subject's library; raises ``Unavailable`` if this fails."""
    build = BUILDS[subject]
    torch.set_num_threads(1)
    try:
        importlib.import_module(MODULES[subject])
    except ImportError as error:
        raise Unavailable(f"cannot be imported: {error}") from error
    return Subject(build)


if __name__ == "__main__":
    Channel().serve(lambda: start_up(sys.argv[1]))
