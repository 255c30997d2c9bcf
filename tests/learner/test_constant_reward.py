"""Test of every algorithm: with a reward of 1 in every step its values are known, however episodes end.

A truncated episode continues unobserved: 1 / (1 - gamma).  Terminated by time, which policies observe: the finite
sums.  Terminated at random, in any step with probability p: 1 / (1 - gamma (1 - p)), whatever the share of longer
episodes in the memory.  In trials, and on the way from a rig's records to its learner.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.agent import Agent
from onrig.learner.algorithm_config import algorithm_names
from onrig.learner.algorithms import Minibatches, Signals
from onrig.learner.algorithms.acer import Acer
from onrig.learner.algorithms.actor_critic import ActorCritic
from onrig.learner.algorithms.vracer import Vracer
from onrig.learner.mirror import Mirror
from onrig.learner.settings import LearnerSettings, rig_problems
from onrig.learner.trials.engine import world_trials
from onrig.learner.trials.step_run import Evaluation, StepRun
from onrig.learner.trials.worlds import Bools, Spaces, StepResult, Values
from onrig.runtime.explore.settings import NoExploration, OwnNoise
from onrig.runtime.memory.settings import Selection
from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.record import Flag, RecordLayout
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig, layout_of
from onrig.runtime.run_loading import load_run

GAMMA: Final = 0.9
P: Final = 0.1
"""Probability of a termination in a step."""
TIME_LIMIT: Final = 6
"""Steps until time terminates."""
TRUNCATED: Final = 12
STD: Final = 0.45
"""Standard deviation of the policies that acted."""
CASES: Final = ("truncated", "by time", "at random")
LENGTHS: Final = np.ceil(np.log(1.0 - (np.arange(20) + 0.5) / 20) / math.log(1.0 - P)).astype(int)
"""Quantiles of the geometric distribution: any 20 episodes of them have its mean, in any order."""
CAPACITY: Final = 2 * int(LENGTHS.sum())
"""Number of experiences before learning starts."""
EXPECTED: Final = {
    "truncated": [1.0 / (1.0 - GAMMA)],
    "by time": [(1.0 - GAMMA ** (TIME_LIMIT - k)) / (1.0 - GAMMA) for k in range(TIME_LIMIT)],
    "at random": [1.0 / (1.0 - GAMMA * (1.0 - 1.0 / float(LENGTHS.mean())))],
}
"""Values of the states for which they differ."""


class AlgorithmCase(NamedTuple):
    """An algorithm with settings under which it converges in a few updates."""

    section: dict[str, Any]
    updates: int = 300
    """Number of batches, if it learns from those of its own policies; values are means over the last half of them."""
    tolerance: float = 0.3
    """Tolerance of a value; the largest is 10.  Means over batches with few terminations are off by up to 0.25; the
    larger of two noisy values is above both (DQN, Rainbow), the smaller one below (TD3, SAC; DroQ by 0.4 with a dropout
    of 0.01)."""
    refer: dict[str, Any] | None = None
    algorithm: str = ""
    """Name of the case, if the algorithm has several."""


FAST_SETTINGS: Final[dict[str, Any]] = {"gamma": GAMMA, "reward_scale": 1.0}
SMALL_NETWORK: Final[dict[str, Any]] = FAST_SETTINGS | {"hidden": [16, 16], "lr": 1e-2}
DDPG: Final[dict[str, Any]] = FAST_SETTINGS | {"critic_lr": 1e-2, "critic_decay": 0.0, "tau": 0.2}
ACER: Final[dict[str, Any]] = SMALL_NETWORK | {"batch": 6, "lr": 2e-2, "std": STD, "samples": 1}
ON_POLICY_SETTINGS: Final[dict[str, Any]] = FAST_SETTINGS | {
    "hidden": [16, 16],
    "steps": 128,
    "batch": 32,
    "filter": False,
}
PPO: Final[dict[str, Any]] = ON_POLICY_SETTINGS | {"lr": 1e-2, "anneal": False}
NO_REFER_RULES: Final[dict[str, Any]] = {"rules": "none", "standardise": False}
UNDER_TEST: Final[dict[str, AlgorithmCase]] = {
    "ddpg": AlgorithmCase(DDPG),
    "ddpg, ReF-ER": AlgorithmCase(DDPG, refer=NO_REFER_RULES, algorithm="ddpg"),
    "dqn": AlgorithmCase(
        FAST_SETTINGS | {"batch": 256, "lr": 5e-3, "weight_decay": 0.0, "target_every": 5, "levels": 2}
    ),
    "td3": AlgorithmCase(SMALL_NETWORK | {"batch": 64, "tau": 0.2, "targets": "every"}),
    "sac": AlgorithmCase(SMALL_NETWORK | {"batch": 32, "tau": 0.2, "temperature": 1e-6}),
    "redq": AlgorithmCase(SMALL_NETWORK | {"batch": 32, "tau": 0.2, "temperature": 1e-6, "critics": 3, "delay": 1}),
    "droq": AlgorithmCase(SMALL_NETWORK | {"batch": 32, "tau": 0.2, "temperature": 1e-6, "dropout": 0.001}),
    # Without targets, values rise as fast as they are learned.
    "crossq": AlgorithmCase(
        SMALL_NETWORK | {"batch": 128, "lr": 2e-2, "beta1": 0.9, "critics": 1, "subset": 1, "temperature": 1e-6}
    ),
    "rlpd": AlgorithmCase(SMALL_NETWORK | {"batch": 32, "tau": 0.2, "temperature": 1e-6, "critics": 3, "delay": 1}),
    "rainbow": AlgorithmCase(
        SMALL_NETWORK | {"batch": 32, "levels": 2, "n_steps": 3, "target_every": 5, "returns": [0.0, 12.0]}, updates=200
    ),
    "naf": AlgorithmCase(SMALL_NETWORK | {"batch": 16, "tau": 0.2}, refer=NO_REFER_RULES),
    "vracer": AlgorithmCase(
        SMALL_NETWORK | {"batch": 32, "std": STD, "retrace_every": 1}, refer={"standardise": False}
    ),
    "vracer, recurrent": AlgorithmCase(
        FAST_SETTINGS
        | {"lr": 4e-2, "batch": 32, "std": STD, "retrace_every": 1, "recurrent": {"units": [8], "window": 3}},
        updates=200,
        refer={"standardise": False},
        algorithm="vracer",
    ),
    "acer": AlgorithmCase(ACER | {"segment": 100}, updates=200, refer=NO_REFER_RULES),
    "acer, cut segments": AlgorithmCase(
        ACER | {"segment": 4, "batch": 12, "lr": 1e-2}, updates=200, refer=NO_REFER_RULES, algorithm="acer"
    ),
    "ppo": AlgorithmCase(PPO | {"epochs": 5}, updates=16),
    "ppo-er": AlgorithmCase(PPO | {"epochs": 3, "depth": 2, "draw": "uniform"}, updates=16, algorithm="ppo"),
    "trpo": AlgorithmCase(ON_POLICY_SETTINGS | {"value_lr": 1e-2}, updates=16),
}


class EpisodeGenerator:
    """Lengths of the episodes of a case, and their observations."""

    def __init__(self, case: str) -> None:
        self._case, self._rng = case, np.random.default_rng(0)
        self._lengths: list[int] = []
        self._actions = [itertools.cycle((-1.0, 1.0 / 3.0, -1.0 / 3.0, 1.0)) for _ in range(2)]
        self.terminates: Final = case != "truncated"

    def length(self) -> int:
        """Length of the next episode."""
        if self._case != "at random":
            return TIME_LIMIT if self.terminates else TRUNCATED
        self._lengths = self._lengths or self._rng.permutation(LENGTHS).tolist()
        return self._lengths.pop()

    def observe(self, step: int) -> tuple[float, float]:
        """Observation at a step: the time if it terminates, otherwise nothing that distinguishes states."""
        return (1.0 - 2.0 * step / TIME_LIMIT if self._case == "by time" else 0.5), 0.0

    def recorded_action(self, *, is_last: bool) -> float:
        """Recorded action of a step, whatever was requested: each action ends equally many episodes; otherwise one that
        ended fewer by chance would have a higher value."""
        return next(self._actions[is_last])


def probe_states_of(case: str) -> NDArray[np.float32]:
    """States whose values are in ``EXPECTED``, repeated to the same number in every case: (LIMIT, 2)."""
    observe = EpisodeGenerator(case).observe
    return np.array([observe(k % len(EXPECTED[case])) for k in range(TIME_LIMIT)], np.float32)


class ValueRecorder:
    """Values that an algorithm of S trials gives to ``probes`` (S, LIMIT, 2) while it learns."""

    def __init__(self, algorithm: Any, probes: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch) -> None:
        self._algorithm, self._probes = algorithm, probes
        self._recorded: list[NDArray[np.float64]] = []
        """Sums of values of each update, and their numbers: (2, S, LIMIT)."""
        name = "learn" if isinstance(algorithm, ActorCritic) else "update"
        original_learn = getattr(algorithm, name)

        def learn_and_record(batch: Any, *args: Any) -> Any:
            signals = original_learn(batch, *args)
            has_state_values = isinstance(algorithm, ActorCritic | Acer)
            self._recorded += [self._state_values()] if has_state_values else self._replayed_values(batch, signals)
            return signals

        monkeypatch.setattr(algorithm, name, learn_and_record)

    def _state_values(self) -> NDArray[np.float64]:
        algorithm = self._algorithm
        values = (
            algorithm._values(algorithm._inputs(self._probes))
            if isinstance(algorithm, ActorCritic)
            else algorithm._values(self._probes)
        )[..., 0].astype(np.float64)
        return np.stack((values, np.ones_like(values)))

    def _replayed_values(self, batches: Minibatches, signals: Signals) -> list[NDArray[np.float64]]:
        """Values of the replayed states, or of the actions: the target minus the error."""
        algorithm = self._algorithm
        if isinstance(algorithm, Vracer):
            assert batches.slots is not None
            value = algorithm._value[np.arange(algorithm.trials)[:, None], batches.slots]
        else:
            assert signals.target is not None
            value = signals.target - signals.td
        matches = np.abs(batches.observation[:, :, :, None, 0] - self._probes[None, :, None, :, 0]) < 1e-3
        return list(np.stack((np.where(matches, value[..., None], 0.0).sum(axis=2), matches.sum(axis=2)), axis=1))

    def check(self, case: str, tolerance: float, trial: int = 0) -> None:
        """Compare means over the last half of the updates with what is expected."""
        total, count = np.sum(self._recorded[len(self._recorded) // 2 :], axis=0)[:, trial, : len(EXPECTED[case])]
        np.testing.assert_allclose(total / count, EXPECTED[case], rtol=0.0, atol=tolerance, err_msg=case)


class ConstantWorld:
    """An environment with a reward of 1 in every step; trial s has the s-th case."""

    def __init__(self, actors: int) -> None:
        self.spaces: Final = Spaces(2, 1, None, 10_000)
        self._episodes = [[EpisodeGenerator(case) for _ in range(actors)] for case in CASES]
        self._terminates = np.array([[episodes.terminates for episodes in row] for row in self._episodes])
        self._left, self._step = (np.zeros(self._terminates.shape, np.int64) for _ in range(2))

    def begin(self, mask: Bools) -> Values:
        """Begin episodes."""
        for s, e in np.argwhere(mask).tolist():
            self._left[s, e], self._step[s, e] = self._episodes[s][e].length(), 0
        return self._observe()

    def step(self, action: NDArray[np.floating], mask: Bools) -> StepResult:
        """Take a step with every actor."""
        self._step += 1
        has_ended, no_flags = self._step >= self._left, np.zeros(self._left.shape, np.bool_)
        is_terminated, is_truncated = has_ended & self._terminates, has_ended & ~self._terminates
        recorded_action = np.empty((*has_ended.shape, 1))
        for (s, e), is_last in np.ndenumerate(has_ended):
            recorded_action[s, e] = self._episodes[s][e].recorded_action(is_last=bool(is_last))
        return StepResult(
            self._observe(), np.ones(has_ended.shape), is_terminated, is_truncated, recorded_action, no_flags, no_flags
        )

    def close(self) -> None:
        """Nothing to release."""

    def _observe(self) -> Values:
        observation = np.empty((*self._step.shape, 2), np.float32)
        for (s, e), k in np.ndenumerate(self._step):
            observation[s, e] = self._episodes[s][e].observe(int(k))
        return observation


def settings_of(name: str) -> LearnerSettings:
    case = UNDER_TEST[name]
    algorithm = case.algorithm or name
    section: dict[str, Any] = {"algorithm": algorithm, algorithm: case.section}
    return msgspec.convert(section if case.refer is None else section | {"refer": case.refer}, LearnerSettings)


def test_every_algorithm_is_under_test() -> None:
    assert {case.algorithm or name for name, case in UNDER_TEST.items()} == set(algorithm_names())


@pytest.mark.parametrize("name", UNDER_TEST)
def test_values_in_trials(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, (_, updates, tolerance, *_) = settings_of(name), UNDER_TEST[name]
    batch_steps = settings.algorithm_config.batch_steps
    steps, first = (updates * batch_steps, 0) if batch_steps else (CAPACITY + updates, CAPACITY)
    run = StepRun("gym:Constant-v0", steps, Evaluation(steps), random_steps=first, learner=settings)
    trials = world_trials(run, [0, 1, 2], lambda roles: ConstantWorld(len(roles)))
    recorder = ValueRecorder(trials.algorithm, np.stack([probe_states_of(case) for case in CASES]), monkeypatch)
    trials.train(steps)
    for trial, case in enumerate(CASES):
        recorder.check(case, tolerance, trial)


def record_episodes(case: str, steps: int, config: RunConfig, rng: np.random.Generator) -> NDArray[np.void]:
    """Step records of complete episodes with at least ``steps`` transitions, as written by the loop."""
    episodes, layout = EpisodeGenerator(case), RecordLayout.for_rig(config.rig, behaviour=config.stochastic)
    closing_flags = Flag.NO_ACTION | (Flag.TERMINATED if episodes.terminates else Flag.TRUNCATED)
    parts: list[NDArray[np.void]] = []
    tick = 0
    while tick < steps + len(parts):
        n = episodes.length() + 1
        rows = np.zeros(n, layout.dtype)
        rows["episode"] = len(parts) + 1
        rows["tick"] = rows["frame"] = np.arange(tick, tick + n)
        tick += n
        half_range = [signal.high for signal in config.signals]
        rows["observation"] = np.array([episodes.observe(k) for k in range(n)]) * half_range
        recorded_action = [[episodes.recorded_action(is_last=k == n - 2)] for k in range(n)]
        rows["applied"] = np.array(recorded_action) * config.rig.actuators[0].high
        if config.stochastic:
            rows["drawn"], rows["std"] = STD * rng.standard_normal((n, 1)), STD
            rows["explored"] = rows["applied"]  # the policy's action is the only one
        rows["reward"], rows["policy_id"] = 1.0, 1
        rows["flags"][-1] = closing_flags
        parts.append(rows)
    return np.concatenate(parts)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [name for name in UNDER_TEST if not rig_problems(settings_of(name), 1)])
def test_values_on_a_rig(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, (_, updates, tolerance, *_) = settings_of(name), UNDER_TEST[name]
    algorithm_config = settings.algorithm_config
    steps = updates * algorithm_config.batch_steps or CAPACITY
    config = msgspec.structs.replace(
        load_run("pendulum"),
        selection=Selection("FIFO[Uniform]", steps + 100),
        exploration=OwnNoise() if settings.stochastic else NoExploration(),
    )
    memory, builder = Memory(config), TransitionBuilder(config.rig)
    storage = memory.storage
    mirror = Mirror(
        storage.capacity,
        layout_of(config),
        cyclic=True,
        successors=algorithm_config.successors,
        window=algorithm_config.window,
        needs_episodes=algorithm_config.needs_episodes,
    )
    agent = Agent(config, settings, mirror)
    recorder = ValueRecorder(agent._algorithm, probe_states_of(case)[None], monkeypatch)
    memory.insert(builder.add(record_episodes(case, steps, config, np.random.default_rng(0))))
    rows = storage.rows(storage.changed_since(0)).astype("<u4").tobytes()
    agent.on_write(mirror.apply(rows, storage.inserted))
    if algorithm_config.batch_steps:
        agent.learn_from_batches(lambda: None)
    else:
        assert sum(len(batch.slots) for batch in agent.learn(updates)) == updates * settings.batch
    recorder.check(case, tolerance)
