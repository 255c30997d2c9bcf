"""ACER with continuous actions (Wang et al. 2017, §5), with the networks of Novati and Koumoutsakos 2019 (App. A).

An update learns from segments of stored episodes.  The critic is a stochastic duelling network,

    Q(s, a) = V(s) + A(s, a) - mean_k A(s, u_k),   u_k ~ pi(.|s).

It yields two estimates of an action's value: Q^ret, with ratios truncated at 1, trains the critic, and Q^opc, without
truncation, trains the policy.  Let phi be the mean and the standard deviation of the policy.  Its gradient

    g = min(c, rho) (Q^opc - V) grad ln pi(a) + max(0, 1 - c / rho(a')) (Q(s, a') - V) grad ln pi(a'),   a' ~ pi(.|s),

with respect to phi, is limited so that the divergence from a slowly updated average policy grows by at most delta.

The segments of a minibatch pass through two programs in chunks of equal length: one program computes values; the other
accumulates the gradients of all chunks, and takes the step in the last chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import Minibatches
from onrig.learner.algorithms.refer import BehaviourSample, PolicyDistance, Refer, policy_distance
from onrig.learner.algorithms.refer_algorithm import (
    MIN_STD,
    ReferAlgorithm,
    common_std,
    initial_layer,
    inverse_softplus,
)
from onrig.learner.algorithms.segments import ChunkRecords, Steps, lay_out
from onrig.learner.algorithms.traced import Values
from onrig.learner.refer_settings import AcerConfig, ReferSettings
from onrig.learner.tape.array import Array
from onrig.learner.tape.densities import importance_ratio, log_density, score
from onrig.learner.tape.elementary import clip, concatenate, softplus, softsign, square
from onrig.learner.tape.executor import Run
from onrig.learner.tape.networks import Mlp
from onrig.learner.tape.optimiser import Adam, polyak_average
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.memory.layout import Slots

_CHUNK_STEPS: Final = 128
"""Maximum number of steps in a chunk."""
_FIRST_CHUNK_SECTION, _LAST_CHUNK_SECTION = 1, 2
"""Sections that run in the first and in the last chunk of an update."""


def project_step(g: Sequence[Array], k: Sequence[Array], delta: float) -> list[Array]:
    """Return the z nearest to ``g`` with k'z <= delta, where ``k`` is the gradient of the divergence (§3.3); all three
    are sequences of parts (rows, m)."""
    projections, squares = (
        reduce(add, ((a * b).row_sums() for a, b in zip(k, vector, strict=True))) for vector in (g, k)
    )
    excess = clip(projections - delta, 0.0, float("inf")) / clip(
        squares, float(np.finfo(np.float32).tiny), float("inf")
    )
    return [a - excess * b for a, b in zip(g, k, strict=True)]


_VALUE_OUTPUTS: Final = ("value", "advantage", "rho", "kl")
"""Outputs of the first program per step; the advantage is Q(s, a) - V(s)."""


class _Chunk(NamedTuple):
    """Steps that one run of a program processes."""

    x: Array
    """(R, n): standardised states."""
    mean: Array
    """(R, m): output of the current policy."""
    std: Array
    """(1, m)"""
    value: Array
    """(R, 1)"""
    fields: dict[str, Array]


class Acer(ReferAlgorithm):
    """Policies, average policies, values and advantages of S trials, with the update that trains them."""

    def __init__(
        self,
        config: AcerConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        refer: ReferSettings,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, in the order policy, value, advantage, update actions."""
        state, n, m, hidden = Layout(), n_observations, n_actions, config.hidden
        self._acer_config = config
        self._policy, self._average_policy = (
            Mlp(state, name, (n, *hidden, m), activation=softsign) for name in ("policy", "average")
        )
        self._std, self._average_std = common_std(state, m), common_std(state, m, "average_std")
        self._value = Mlp(state, "value", (n, *hidden, 1), activation=softsign)
        self._advantage = Mlp(state, "advantage", (n + m, *hidden, 1), activation=softsign)
        self._groups = (self._value.group, self._advantage.group, self._policy.group, self._std)
        rates = (config.lr, config.lr, config.policy_lr, config.policy_lr)
        self._adams = [Adam(state, group, lr=lr) for group, lr in zip(self._groups, rates, strict=True)]
        self._sums = [
            state.add(f"gradient/{group.flat_field.name}", 1, group.flat_field.size) for group in self._groups
        ]
        super().__init__(config, refer, n, m, state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            for net in (self._policy, self._value, self._advantage):
                net.draw(row, stream, initial_layer)
            self._average_policy.copy(row, self._policy)
            for group in (self._std, self._average_std):
                row[group.flat_field.slice] = inverse_softplus(config.std)

        self._values = self.forward(lambda tape, s, _: self._value(self._inputs(s)), n, 1)
        R = self._chunk_steps = min(_CHUNK_STEPS, config.batch * config.segment)
        columns = {"observation": n, "drawn": m, "acted_mean": m, "acted_std": m, "noise": (1 + config.samples) * m}
        columns |= dict.fromkeys((*_VALUE_OUTPUTS, "error", "q_opc", "step_weight", "annealing"), 1)
        self._chunks = ChunkRecords(R, columns)
        self._evaluate, self._learn = (self._bind_trace(trace) for trace in (self._trace_values, self._trace_update))

    def _bind_trace(self, trace: Callable[[Tape, _Chunk], None]) -> Run:
        tape = Tape(self.layout, self._chunks.layout)
        fields = {name: tape.read(field) for name, field in self._chunks.fields.items()}
        x = self._inputs(fields["observation"])
        trace(tape, _Chunk(x, *self._current_policy(x), self._value(x), fields))
        return self.bind(tape)

    def _current_policy(self, x: Array) -> tuple[Array, Array]:
        return self._policy(x), softplus(x.tape.read(self._std.fields[0]))

    def _action_value(self, x: Array, action: Array) -> Array:
        return self._advantage(concatenate(x, clip(action, -1.0, 1.0)))

    def _sample_actions(self, chunk: _Chunk) -> list[Array]:
        """Return a' and each u_k, as constants for gradients."""
        m, mean, std = self._m, chunk.mean.detach(), chunk.std.detach()
        noise = chunk.fields["noise"]
        return [mean + std * noise.columns(index, index + m) for index in range(0, noise.shape[1], m)]

    def _duelling_advantages(self, chunk: _Chunk, samples: Sequence[Array]) -> tuple[Array, Array]:
        """Return Q(s, a) - V(s), and the mean advantage of the samples."""
        mean_advantage = reduce(add, (self._action_value(chunk.x, sample) for sample in samples)) / float(len(samples))
        return self._action_value(chunk.x, chunk.fields["drawn"]) - mean_advantage, mean_advantage

    def _policy_distance(self, chunk: _Chunk) -> PolicyDistance:
        behaviour = BehaviourSample(chunk.fields["drawn"], chunk.fields["acted_mean"], chunk.fields["acted_std"])
        return policy_distance(self._settings, behaviour, chunk.mean.detach(), chunk.std.detach())

    def _trace_values(self, tape: Tape, chunk: _Chunk) -> None:
        """Trace the values of steps, and the current policy's distances from the behaviour policies."""
        advantage, _ = self._duelling_advantages(chunk, self._sample_actions(chunk)[1:])
        distance = self._policy_distance(chunk)
        for name, value in zip(_VALUE_OUTPUTS, (chunk.value, advantage, distance.rho, distance.kl), strict=True):
            tape.output(self._chunks.fields[name], value)

    def _trace_update(self, tape: Tape, chunk: _Chunk) -> None:
        """Trace the accumulation of gradients, and the step after the last chunk."""
        fields = chunk.fields
        sampled_action, *mean_samples = self._sample_actions(chunk)
        advantage, mean_advantage = self._duelling_advantages(chunk, mean_samples)
        rho = self._policy_distance(chunk).rho
        z = self._policy_step(chunk, sampled_action, self._action_value(chunk.x, sampled_action) - mean_advantage, rho)
        loss = -fields["error"] * ((1.0 + clip(rho, 0.0, 1.0)) * chunk.value + advantage)
        for ascent, parameter in zip(z, (chunk.mean, chunk.std), strict=True):
            loss = loss - (ascent.detach() * parameter).row_sums()
        gradients = tape.gradient((fields["step_weight"] * loss).sum(), self._groups)
        sums = [tape.read(field) for field in self._sums]
        with tape.section(_FIRST_CHUNK_SECTION):
            for total in sums:
                tape.emit("fill", total.shape, [], out=total, x=0.0)
        for total, gradient in zip(sums, gradients, strict=True):
            tape.emit("add_scaled", total.shape, [gradient], out=total, x=1.0)
        annealing = fields["annealing"].mean()  # the same in all rows
        with tape.section(_LAST_CHUNK_SECTION):
            for adam, total in zip(self._adams, sums, strict=True):
                adam.step(tape, total, annealing)
            polyak_average(tape, self._average_policy.group, self._policy.group, self._acer_config.tau)
            polyak_average(tape, self._average_std, self._std, self._acer_config.tau)

    def _policy_step(self, chunk: _Chunk, sampled_action: Array, advantage: Array, rho: Array) -> list[Array]:
        """Return the ascent direction of means and standard deviations, (rows, m) each, within the trust region."""
        c, fields, tape = self._acer_config.truncation, chunk.fields, sampled_action.tape
        mean, std = chunk.mean.detach(), chunk.std.detach()
        ratio = importance_ratio(
            log_density(sampled_action, mean, std),
            log_density(sampled_action, fields["acted_mean"], fields["acted_std"]),
        )
        gain = clip(rho, 0.0, c) * (fields["q_opc"] - chunk.value.detach())
        correction = clip(1.0 - c / ratio, 0.0, float("inf")) * advantage
        g = [
            gain * replayed_score + correction * sampled_score
            for replayed_score, sampled_score in zip(
                score(fields["drawn"], mean, std), score(sampled_action, mean, std), strict=True
            )
        ]
        average_mean, average_std = self._average_policy(chunk.x), softplus(tape.read(self._average_std.fields[0]))
        second_moment = square(average_std) + square(average_mean - mean)
        k = [(mean - average_mean) / square(std), 1.0 / std - second_moment / (square(std) * std)]
        return project_step(g, k, self._acer_config.divergence)

    def _pack(self, batches: Minibatches) -> None:
        """Do nothing: an update takes its segments from the memory."""

    def _step(self, batches: Minibatches, k: int, refer: Refer) -> Sequence[Values]:
        assert self._memory is not None
        assert batches.slots is not None
        slots = batches.slots[k]
        segments = self._memory.segments_around(slots, self._acer_config.segment)
        weight = np.ones(slots.shape) if batches.weights is None else batches.weights[k]
        steps = lay_out(segments, slots, weight, self._chunk_steps)
        end_values = self._end_values(segments.last_slots)
        chunks, reward = self._chunks, self._pack_steps(steps)
        self._evaluate(self.rows, chunks.rows, None)
        value, advantage, rho, kl = map(chunks.read, _VALUE_OUTPUTS)
        stored_index = np.nonzero(steps.is_present)[0], steps.slots[steps.is_present]
        refer.record(stored_index, rho[steps.is_present], kl[steps.is_present])
        q_ret, q_opc = (
            steps.retrace(reward, value, advantage, ratio, end_values, self._config.gamma)
            for ratio in (np.minimum(1.0, rho) ** (1.0 / self._m), np.ones_like(rho))
        )
        error = q_ret - (value + advantage)
        chunks.write(
            error=error, q_opc=q_opc, step_weight=steps.step_weight, annealing=np.full(error.shape, refer.annealing)
        )
        sections = np.zeros(chunks.rows.shape[1], np.uint32)
        sections[0] |= 1 << _FIRST_CHUNK_SECTION
        sections[-1] |= 1 << _LAST_CHUNK_SECTION
        self._learn(self.rows, chunks.rows, sections)
        refer.count_update()
        td, target = (np.take_along_axis(column, steps.drawn_indices, axis=1) for column in (error, q_ret))
        memory_index = np.arange(self.trials)[:, None], slots
        return td.astype(np.float32), target.astype(np.float32), refer.far[memory_index], refer.kl[memory_index]

    def _pack_steps(self, steps: Steps) -> Values:
        """Write steps into the records, and return their scaled rewards (S, N)."""
        assert self._memory is not None
        batch = self._memory.gather(steps.slots)
        behaviour = batch.behaviour
        assert behaviour is not None
        noise = np.zeros((*steps.slots.shape, 1 + self._acer_config.samples, self._m))
        for trial_noise, stream, n in zip(noise, self._streams, steps.is_present.sum(axis=1).tolist(), strict=True):
            trial_noise[:n] = stream.standard_normal((1 + self._acer_config.samples, n, self._m)).swapaxes(0, 1)
        self._chunks.begin(self.trials, steps.slots.shape[1], self.executor.dtype)
        self._chunks.write(
            observation=batch.observation,
            drawn=behaviour.drawn,
            acted_mean=behaviour.mean,
            acted_std=np.maximum(behaviour.std, MIN_STD),
            noise=noise,
        )
        return batch.reward * self._reward_scale[:, 0]

    def _end_values(self, slots: Slots) -> Values:
        """Return the end values of segments whose last steps are in ``slots`` (S, B), 0 where the task terminated."""
        assert self._memory is not None
        batch = self._memory.gather(slots)
        return np.where(batch.terminated, 0.0, self._values(batch.next_observation)[..., 0])

    def _mean_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        return self._policy.layers(self.rows[trial])
