"""A rig as a gymnasium environment: a twin in lockstep or real time, emulated firmware, or hardware."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import gymnasium
import msgspec
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from onrig.runtime.config.problem import START, ConfigError, Problem
from onrig.runtime.explore.settings import NoExploration
from onrig.runtime.images import unpack_images
from onrig.runtime.link.endpoint import Link
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.process_settings import Staleness
from onrig.runtime.record import Flag, Rule, Step
from onrig.runtime.replay.scoring import terms_of
from onrig.runtime.run_checks import findings
from onrig.runtime.run_config import MAX_EPISODES, RunConfig, record_layout
from onrig.runtime.run_loading import resolved_text
from onrig.runtime.shm.exchange import Sample
from onrig.runtime.supervise.run_folder import fresh_folder, write_run_folder
from onrig.tools.beginning import read_beginning
from onrig.tools.load import load_for_rig
from onrig.tools.plugins import plugin_records, third_party_plugins
from onrig.tools.trainers.rig import RigProcess, RunEnded
from onrig.tools.trainers.spaces import action_space, image_shape, observation_space

Observation = NDArray[np.float32] | NDArray[np.uint8]
Action = NDArray[np.float32]
_MEMORY_BYTES: Final = 64_000_000
_STEP_S: Final = 10.0
_STEP_PERIODS: Final = 20
_HASH_BYTES: Final = 8
_MAX_STARTS: Final = 3
"""Maximum number of attempts to begin an episode in a reset, because a busy machine may miss the first lease."""
Info = dict[str, Any]


def make(
    config: str | Path,
    device: str | None = None,
    pace: str | float | None = None,
    render_mode: str | None = None,
    *,
    overrides: Sequence[str] = (),
    run_dir: str | Path | None = None,
    si: bool = False,
    reset_timeout_s: float = 60.0,
) -> RigEnv:
    """Return the rig of a configuration as an environment; its processes start with the first ``reset``.

    ``config`` is the path or the name of a shipped configuration. ``device`` is a port that replaces the
    configuration's device. ``pace`` is ``lockstep``, ``realtime``, or a multiple of real time as a number or text.
    ``overrides`` are as for `onrig run --set`. ``run_dir`` is the run folder (default: ``runs/NAME-DATE-TIME``). With
    ``si``, observations and actions are in SI units instead of normalised by the rig's ranges. Raises ConfigError with
    every problem.
    """
    set_pace = () if pace is None else (f"device.pace={_pace_setting(pace)}",)
    run_config = load_for_rig(str(config), ("local_learner=false", *overrides, *set_pace), port=device)
    run = for_trainer(run_config)
    kwargs = {
        "config": str(config), "device": device, "pace": pace, "overrides": tuple(overrides), "si": si,
        "reset_timeout_s": reset_timeout_s,
    }  # fmt: skip
    folder = None if run_dir is None else Path(run_dir)
    name = Path(str(config)).resolve().stem
    env = RigEnv(run, name, folder, render_mode, si=si, reset_timeout_s=reset_timeout_s)
    env_id = f"onrig/{name}-{env.config_hash}-v0"
    env.spec = EnvSpec(env_id, entry_point="onrig:make", nondeterministic=not run.lockstep, kwargs=kwargs)
    return env


def _pace_setting(pace: str | float) -> str:
    """Return the value of the setting ``device.pace``."""
    try:
        return f"{{scaled: {float(pace):g}}}"
    except ValueError:
        return str(pace)


def for_trainer(config: RunConfig) -> RunConfig:
    """Return a run's configuration in which the trainer replaces policy, exploration and learner.

    Budgets and limits remain. A memory that keeps all experiences becomes a FIFO of bounded size, because the trainer
    determines the number of episodes. Raises ConfigError.
    """
    selection = config.selection
    if selection.capacity is None and parse_strategy(selection.strategy).keeper.keeps_all:
        selection = msgspec.structs.replace(selection, strategy="FIFO[Uniform]", capacity_bytes=_MEMORY_BYTES)
    run = msgspec.structs.replace(
        config,
        actor="trainer",
        exploration=NoExploration(budgets=config.exploration.budgets),
        selection=selection,
        episodes=MAX_EPISODES,
        local_learner=False,
        evaluate_every=0,
        policy=None,
        probation=None,
        staleness=Staleness(),
        link=Link(),
    )
    messages = [message for _, message in findings(run)]
    try:
        image_shape(run)
    except ValueError as error:
        messages.append(f"{error}, at task.inputs")
    problems = [Problem("environment configuration", START, message) for message in messages]
    if problems:
        raise ConfigError(problems)
    return run


class _Units:
    """Units of observations and actions: normalised by the rig's ranges, or SI."""

    def __init__(self, config: RunConfig, *, si: bool) -> None:
        self._si: Final = si
        self._signals: Final = Normalisation.from_signals(config.signals)
        self._image_shape: Final = image_shape(config)
        self.actuators: Final = Normalisation.from_signals(config.rig.actuators)

    def observation(self, values: NDArray[np.float64]) -> Observation:
        """Convert an observation (n,) in SI units to the environment's units or to images (images, rows, columns)."""
        if self._image_shape is not None:
            return unpack_images(values, self._image_shape[1] * self._image_shape[2]).reshape(self._image_shape)
        return (values if self._si else self._signals.normalise(values)).astype(np.float32)

    def action_si(self, action: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert an action (m,) to SI units."""
        return action if self._si else self.actuators.to_si(action)


class RigEnv(gymnasium.Env[Observation, Action]):
    """Environment whose episodes are the task's, run on the device with the shield and recorded in a run folder.

    Observation (n,) and action (m,) are float32, normalised by the rig's ranges unless ``si``; the shield limits
    actions beyond these ranges. An observation of images is (images, rows, columns) uint8, in the order of the task's
    inputs. ``reward`` is the task's reward in raw units.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"]}  # noqa: RUF012 (declared so by gymnasium.Env)

    def __init__(
        self,
        config: RunConfig,
        name: str,
        run_dir: Path | None = None,
        render_mode: str | None = None,
        *,
        si: bool = False,
        reset_timeout_s: float = 60.0,
    ) -> None:
        """Prepare an environment for ``config``, a result of ``for_trainer``; ``name`` is used for the run folder."""
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode: expected rgb_array or human, got {render_mode!r}")
        self.config, self.render_mode = config, render_mode
        self.metadata = {**self.metadata, "render_fps": round(config.rate_hz)}
        self.config_hash = hashlib.blake2b(resolved_text(config).encode(), digest_size=_HASH_BYTES).hexdigest()
        self.run_dir: Path | None = run_dir
        """Run folder, once the run has started."""
        self._name, self._reset_timeout_s = name, reset_timeout_s
        self._layout = record_layout(config)
        self._terms = terms_of(config, self._layout)
        self._units = _Units(config, si=si)
        self.observation_space: Any = observation_space(config, si=si)
        self.action_space: Any = action_space(config, si=si)
        self._rig: RigProcess | None = None
        self._step: Step | None = None
        self._screen: Any = None
        self._closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode after ending the current one; the first call starts the run.

        With a ``seed``, the starts, targets and twin's noise of this and the following episodes equal those of a run
        with that seed. ``timeout_s`` in ``options`` replaces ``reset_timeout_s``. Raises RunEnded with the reason if
        the rig does not reach the start in time.
        """
        super().reset(seed=seed)
        if self._closed:
            raise RunEnded("the environment is closed: create a new one")
        timeout_s = float((options or {}).get("timeout_s", self._reset_timeout_s))
        if self._rig is None:
            self._rig = self._start()
        self._step = None
        deadline_s = time.monotonic() + timeout_s
        for _ in range(_MAX_STARTS):
            sample = self._rig.begin(seed, deadline_s - time.monotonic())
            _, observation, info = self._take_sample(sample)
            if not sample.is_over:
                return observation, info
        reasons = "; ".join(self._rig.messages[-2:]) or f"see {self.run_dir}"
        raise RunEnded(f"{_MAX_STARTS} episodes in a row ended at their first sample: {reasons}")

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        """Apply an action, and return the transition.

        An action that arrives too late takes effect in the next period, and ``info["held"]`` is true. If samples were
        missed in the meantime, the reward is the sum over ``info["periods"]`` periods. Raises RuntimeError before
        ``reset`` and after the end of an episode, and RunEnded if the run has ended.
        """
        if self._rig is None or self._step is None:
            raise RuntimeError("no episode: call reset() first")
        values = np.asarray(action, np.float64).reshape(len(self.config.rig.actuators))
        target_action = self._units.action_si(values)
        timeout_s = max(_STEP_S, _STEP_PERIODS * self.config.wall_period_ns * 1e-9)
        if self.config.lockstep:
            timeout_s = self.config.barrier_timeout_s + _STEP_S
        self._acted_ns = time.monotonic_ns()
        sample = self._rig.act(self._step.tick, tuple(target_action.tolist()), timeout_s)
        previous_periods, previous_reward = self._episode_totals
        previous_step, observation, info = self._take_sample(sample)
        info["periods"] = sample.periods - previous_periods
        flags = 0
        if sample.is_over:
            assert self._step is not None
            flags, self._step = self._step.flags, None
            info["messages"] = self._rig.messages[-4:]
        reward = sample.reward - previous_reward
        if self._terms is not None and info["periods"]:
            reward = float(self._terms.score(self._rig.records_up_to(sample, info["periods"]))["reward"][:-1].sum())
        elif previous_step is not None and info["periods"] == 1:
            reward = previous_step.reward  # avoids the rounding of the sum
        terminated = bool(flags & Flag.TERMINATED)
        return observation, reward, terminated, sample.is_over and not terminated, info

    def normalised_action(self, si: NDArray[np.floating]) -> Action:
        """Normalise actions (..., m) in SI units, such as ``info["applied"]``, in the way a memory stores them."""
        return self._units.actuators.normalise(np.asarray(si)).astype(np.float32)

    def render(self) -> Any:
        """Return a rendered frame (h, w, 3) uint8 of the rig for ``rgb_array``; update the window for ``human``."""
        if self.render_mode is None:
            return None
        if self._screen is None:
            from onrig.tools.trainers.screen import Screen

            self._screen = Screen(self.config, self.render_mode)
        return self._screen.show(self._shown_step)

    def close(self) -> None:
        """End the run: the device is disarmed, and the run folder is completed."""
        self._closed, self._step = True, None
        rig, self._rig = self._rig, None
        if rig is not None:
            rig.close()
        if self._screen is not None:
            self._screen.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    _shown_step: Step | None = None
    _episode_start_us = _acted_ns = 0
    _episode_totals = 0, 0.0
    """The episode's number of periods and return up to the latest sample."""

    def _start(self) -> RigProcess:
        config, folder = self.config, self.run_dir or fresh_folder(Path("runs"), self._name)
        line = config.device.line
        resolved_config, files, facts = read_beginning(config)
        write_run_folder(folder, resolved_config, {**plugin_records(third_party_plugins(config)), **facts}, files)
        self.run_dir = folder
        return RigProcess(folder, None if line is None else line.address, self._layout)

    def _take_sample(self, sample: Sample) -> tuple[Step | None, Observation, Info]:
        """Read a sample.

        Returns the step of the period before it (None at an episode's start), the observation and the info.
        """
        assert self._rig is not None
        received_ns = time.monotonic_ns()
        first_record, last_record = self._rig.records(sample)
        self._episode_totals = sample.periods, sample.reward
        step = self._shown_step = self._step = self._layout.step(last_record)
        previous_step = self._layout.step(first_record) if sample.periods else None
        observation = self._units.observation(np.array(step.input or step.observation))
        if previous_step is None:
            self._episode_start_us = step.t_device_us
        times = {"device_us": step.t_device_us - self._episode_start_us}
        if not self.config.lockstep:  # in lockstep, only the device's clock is meaningful
            times |= {"acted_ns": self._acted_ns, "sample_sent_ns": sample.sent_ns, "received_ns": received_ns}
        info: Info = {"observation": np.array(step.observation), "step": sample.periods, "times": times}
        if previous_step is not None:
            info |= _action_info(previous_step)
        return previous_step, observation, info


def _action_info(step: Step) -> Info:
    """Return the entries of ``info`` that describe what the shield and the device did with an action."""
    return {
        "proposed": np.array(step.policy),
        "filtered": np.array(step.commanded),
        "applied": np.array(step.applied),
        "rule": Rule(step.rule).name.lower(),
        "margin": step.margin,
        "held": bool(step.flags & Flag.HELD),
        "valid": not step.flags & Flag.INVALID,
        "lateness_us": step.lateness_ns / 1e3,
        "command_delay_us": step.tau_us,
        "missed": step.missed,
    }
