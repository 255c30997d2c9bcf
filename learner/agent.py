"""The learning agent of one rig: algorithm and sampler, updates, policies, and the state to resume from."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.native import executor
from onrig.learner.algorithms import (
    Behaviour,
    Exportable,
    MemoryAccess,
    Minibatches,
    UsesWholeMemory,
    Window,
    algorithm_for,
)
from onrig.learner.algorithms.on_policy import OnPolicy
from onrig.learner.mirror import Mirror
from onrig.learner.notes import Notes
from onrig.learner.policy_batches import PolicyBatches
from onrig.learner.samplers import Draw, ReplayView, Sampler, SamplerContext, sampler_for, sub_state
from onrig.learner.settings import LearnerSettings
from onrig.runtime.files import open_file, replace_own_file
from onrig.runtime.memory.keepers.keeper import FEEDBACK, Signal
from onrig.runtime.memory.layout import Slots
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.replay.seeds import FIRST_EPISODE
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps

_UPDATES_PER_DRAW: Final = 100
"""Maximum number of updates per draw, for samplers whose draws do not depend on the previous update."""
MAX_CHUNK_EXPERIENCES: Final = 65_536
"""Maximum number of experiences in a chunk; a single minibatch may be larger."""


def read_networks(path: Path, algorithm: str = "") -> dict[str, NDArray[np.generic]]:
    """Read the network and optimiser arrays from a networks file or from a learner's saved state.

    Unless ``algorithm`` is empty, only that algorithm's arrays are returned.  Raises OSError, or ValueError if the file
    is of a different kind.
    """
    try:
        with open_file(path, None) as file, np.load(file, allow_pickle=False) as archive:
            return {k: archive[k] for k in archive.files if k.startswith(f"{algorithm}/" if algorithm else "")}
    except (EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}") from None


class ReplayedChunk(NamedTuple):
    """Replayed experiences, in order, with the feedback signals from their updates."""

    slots: Slots
    generations: NDArray[np.uint32]
    values: NDArray[np.float32]
    """(kinds, n): one row for each key of ``Agent.feedback``."""


class Agent:
    """A single trial of the algorithm, which learns from a mirror of the rig's memory."""

    def __init__(self, config: RunConfig, settings: LearnerSettings, mirror: Mirror) -> None:
        self._config, self._settings, self._mirror = config, settings, mirror
        rig = config.rig
        self._algorithm = algorithm_for(
            settings, len(config.signals), len(rig.actuators), [stream(config.seed, Role.NETWORKS)]
        )
        # Checked once: `isinstance` on a Protocol takes tens of microseconds.
        self._exportable = self._algorithm if isinstance(self._algorithm, Exportable) else None
        self._prefix = f"{settings.algorithm}/"
        self._notes: Notes | None = None
        if isinstance(self._algorithm, UsesWholeMemory):
            self._notes = Notes(1, mirror.storage.capacity)
            self._algorithm.bind_memory(
                MemoryAccess(self._notes, self._gather, mirror.next_slots, mirror.segments_around)
            )
        size = settings.algorithm_config.batch_steps
        self._batches = PolicyBatches(mirror.storage, size) if size else None
        self._sampler = self._build_sampler()
        self._n_seen_writes = 0
        self._memory = b""
        """Id of the memory that the sampler's state refers to."""
        self.sampler_was_reset = False
        """Whether the sampler's state was reset because it belonged to a different memory."""
        required_signals = parse_strategy(config.selection.strategy).keeper.required_signals | {Signal.TD_ERROR}
        self.feedback: Final = {kind: signal for kind, signal in FEEDBACK.items() if signal in required_signals}
        """Feedback signals sent to the rig: the TD error (for display) and the signals that the retention strategy
        requires."""
        self.newest_policy_id = 0
        """Id of the newest policy that the rig admitted."""
        self.updates_when_offered = 0
        """Value of ``updates`` when a policy was last offered."""
        self.n_withheld = 0
        """Number of consecutive policies that failed the screening."""
        self.last_completed_episode = 0
        """Last training episode whose updates are complete."""
        self._updates_before_run = 0
        """Number of updates made before the run's first episode, to train the initial networks or on seeded
        experiences."""

    @property
    def updates(self) -> int:
        """Number of updates since the run's first episode began."""
        return self._algorithm.updates - self._updates_before_run

    @property
    def n_seen_writes(self) -> int:
        """Number of memory writes that the sampler has been notified of."""
        return self._n_seen_writes

    @property
    def has_minibatch(self) -> bool:
        """Whether the memory holds enough experiences to learn from."""
        return self._mirror.storage.stored >= self._settings.first_update_at

    def _build_sampler(self) -> Sampler:
        config, capacity, rig = self._config, self._mirror.storage.capacity, self._config.rig
        view = ReplayView(self._gather, self._algorithm.policy, self._age, len(config.signals), len(rig.actuators))
        return sampler_for(
            parse_strategy(config.selection.strategy),
            stream(config.seed, Role.SAMPLER),
            SamplerContext.of_run(config, self._settings, capacity, view),
        )

    def _reset_sampler(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Clear the per-experience notes and rebuild the sampler for a different memory, but keep what the sampler has
        learned."""
        if self._notes is not None:
            self._notes.clear()
        self._sampler, self._n_seen_writes = self._build_sampler(), 0
        learned_state = {name: state[name] for name in self._sampler.learned_state() if name in state}
        if learned_state:
            with contextlib.suppress(ValueError):  # the saved networks have a different size
                self._sampler.restore(self._sampler.state() | learned_state)
        self.sampler_was_reset = True

    @property
    def batches(self) -> PolicyBatches:
        """On-policy batches, used in place of minibatches drawn from the memory."""
        assert self._batches is not None
        return self._batches

    def _age(self, slots: Slots) -> NDArray[np.float64]:
        storage, config = self._mirror.storage, self._config
        steps = episode_steps(config.task, config.rate_hz)
        steps_done = (storage.episode[slots] - 1.0) * steps + storage.step[slots]
        age: NDArray[np.float64] = steps_done / (config.episodes * steps)
        return np.where(storage.episode[slots] >= FIRST_EPISODE, 0.0, age)  # seeded experiences predate the run

    def _gather(self, slots: Slots) -> Minibatches:
        experiences, _ = self._mirror.gather(Draw(slots, None), for_view=True)
        behaviour, window = experiences.behaviour, experiences.window
        return Minibatches(
            experiences.observation[0],
            experiences.action[0],
            experiences.reward[0],
            experiences.next_observation[0],
            experiences.terminated[0],
            behaviour=None if behaviour is None else Behaviour(*(field[0] for field in behaviour)),
            window=None if window is None else Window(*(field[0] for field in window)),
        )

    def attach_memory(self, memory: bytes, lineage: Mapping[bytes, int]) -> None:
        """Record the id of the rig's memory, and bring the sampler and the on-policy batches into line with it.

        ``lineage`` gives the number of writes that this memory shares with each earlier one.  The sampler is reset if
        it has been notified of writes that this memory lacks or may lack.
        """
        n_inserted = self._mirror.storage.inserted
        n_shared = n_inserted if memory == self._memory else lineage.get(self._memory, 0)
        if self._n_seen_writes > n_shared:  # the rig returned to a checkpoint, which invalidates the sampler's state
            self._reset_sampler(self._sampler.learned_state())
        if self._batches is not None and self._memory not in (b"", memory, *lineage):
            self._batches.skip_stored()
        elif self._batches is not None:
            self._batches.rewind(n_shared)
        self._memory = memory

    def catch_up(self) -> None:
        """Notify the sampler of all experiences in the mirror that it has not seen, each slot once."""
        self.on_write(self._mirror.storage.changed_since(self._n_seen_writes))

    def on_write(self, slots: Slots) -> None:
        """Notify the sampler of new experiences in the mirror."""
        if self._notes is not None:
            self._notes.on_write(0, slots)
        self._sampler.on_write(slots)
        self._n_seen_writes = self._mirror.storage.inserted

    def begin_episode(self, episode: int, episode_return: float = math.nan) -> None:
        """Begin the updates that follow a training episode.

        ``episode_return``: the episode's undiscounted return in raw units; NaN if unknown.
        """
        self._sampler.on_episode_end(episode_return)
        self._sampler.begin_episode(episode)

    def learn(self, updates: int) -> Iterator[ReplayedChunk]:
        """Run ``updates`` batch updates in chunks, and yield the replayed experiences of each chunk."""
        max_updates_per_draw = min(_UPDATES_PER_DRAW, max(1, MAX_CHUNK_EXPERIENCES // self._settings.batch))
        updates_per_draw = 1 if self._sampler.required_signals else max_updates_per_draw
        while updates > 0:
            n = min(updates_per_draw, updates)
            updates -= n
            draw = self._sampler.draw(self._settings.batch, n)
            minibatches, generations = self._mirror.gather(draw)
            slots, generations = draw.slots.reshape(-1), generations.copy()
            signals = self._algorithm.update(minibatches).of_trial(0)
            self._sampler.on_update(slots, signals)
            values = np.array([signals.feedback_values(signal) for signal in self.feedback.values()], np.float32)
            yield ReplayedChunk(slots, generations, values)

    def learn_from_batches(self, heartbeat: Callable[[], object]) -> None:
        """Learn from the complete batches, calling ``heartbeat`` at intervals."""
        algorithm = cast(OnPolicy, self._algorithm)
        for batch, first_slot in self.batches.take_complete():
            remaining_fraction = 1.0 - float(self._age(np.array([first_slot]))[0])
            algorithm.learn(batch, max(0.0, remaining_fraction), heartbeat)

    def export(self, run_id: str) -> bytes:
        """Return the current policy as ONNX bytes, with the rig's next policy id.

        Raises ValueError for an algorithm whose policies a rig cannot run.
        """
        if self._exportable is None:
            raise ValueError(f"the policies of {self._settings.algorithm} cannot run on a rig")
        contract = contract_for(
            self._config.rig,
            self._config.rate_hz,
            policy_id=self.newest_policy_id + 1,
            parent_run=run_id,
            training_step=self._algorithm.updates,
            behaviour=self._exportable.behaviour,
            signals=self._config.signals,
        )
        return self._exportable.policy_graph(0, contract)

    def save(self, path: Path, run: str = "") -> None:
        """Atomically and durably save everything needed to resume learning, except the memory, which the rig owns.

        ``run``: identity of the rig's run.
        """
        state = {f"{self._prefix}{k}": v for k, v in self._algorithm.state().items()}
        state |= {f"sampler/{k}": v for k, v in self._sampler.state().items()}
        if self._notes is not None:
            state |= {f"notes/{k}": v for k, v in self._notes.state().items()}
        if self._batches is not None:
            state |= {f"batches/{k}": v for k, v in self._batches.state().items()}
        counts = {
            "policies": self.newest_policy_id,
            "offered": self.updates_when_offered,
            "handled": self.last_completed_episode,
            "seen": self._n_seen_writes,
        }
        counts |= {"earlier": self._updates_before_run} if self._updates_before_run else {}
        counts |= {"withheld": self.n_withheld} if self.n_withheld else {}
        state |= {name: np.array(count) for name, count in counts.items()}
        state["memory"] = np.frombuffer(self._memory, np.uint8)
        state["run"] = np.frombuffer(run.encode(), np.uint8)
        state["executor"] = np.frombuffer(msgspec.json.encode(executor()), np.uint8)
        archive = io.BytesIO()
        np.savez(archive, **state)  # type: ignore[arg-type]
        replace_own_file(path, archive.getbuffer(), durable=True)

    def load_initial(self, path: Path) -> None:
        """Start from the networks and optimisers of another run; raise OSError, or ValueError if they do not fit."""
        try:
            self._algorithm.restore(sub_state(read_networks(path), self._prefix))
            self.mark_run_start()
        except KeyError as error:
            raise ValueError(f"{path}: {error} is missing") from None

    def mark_run_start(self) -> None:
        """Reset ``updates`` to 0."""
        self._updates_before_run = self._algorithm.updates

    def restore(self, path: Path) -> bool:
        """Restore a saved state; return False and change nothing if it is missing or does not fit.

        If only the sampler's part does not fit, for example because the memory has grown, the sampler is reset
        (``sampler_was_reset``).
        """
        try:
            # Opened here because numpy does not close a file that is not an archive.
            with open_file(path, None) as file, np.load(file, allow_pickle=False) as archive:
                state = {k: archive[k] for k in archive.files}
            newest_policy_id, last_completed_episode, n_seen_writes = (
                int(state[k]) for k in ("policies", "handled", "seen")
            )
            updates_when_offered = int(state.get("offered", np.array(0)))  # missing in states of earlier versions
            self._restore_networks(state)
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
            return False
        self.newest_policy_id, self.updates_when_offered, self.last_completed_episode, self._n_seen_writes = (
            newest_policy_id,
            updates_when_offered,
            last_completed_episode,
            n_seen_writes,
        )
        self._updates_before_run = int(state.get("earlier", np.array(0)))
        self.n_withheld = int(state.get("withheld", np.array(0)))
        self._memory = state.get("memory", np.zeros(0)).astype(np.uint8).tobytes()
        try:
            if self._notes is not None:
                self._notes.restore(sub_state(state, "notes/"))
            self._sampler.restore(sub_state(state, "sampler/"))
        except (KeyError, ValueError):
            self._reset_sampler(sub_state(state, "sampler/"))
        return True

    def _restore_networks(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore the algorithm and its batches; raise KeyError or ValueError, and change nothing, if either does not
        fit."""
        previous = self._algorithm.state()
        try:
            self._algorithm.restore(sub_state(state, self._prefix))
            if self._batches is not None:
                self._batches.restore(sub_state(state, "batches/"))
        except (KeyError, ValueError):
            self._algorithm.restore(previous)
            raise
