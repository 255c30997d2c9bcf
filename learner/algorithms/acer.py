"""ACER with continuous actions (Wang et al. 2017, §5), with the networks of Novati and Koumoutsakos 2019 (App. A).

An update learns along segments of stored episodes.  The critic is a stochastic duelling network,

    Q(s, a) = V(s) + A(s, a) - mean_k A(s, u_k),   u_k ~ pi(.|s),

and it gives two estimates of what an action was worth: Q^ret, with ratios cut to 1, which trains the critic, and Q^opc,
without any, for the policy.  With phi the mean and the standard deviation of the policy, its gradient

    g = min(c, rho) (Q^opc - V) grad ln pi(a) + max(0, 1 - c / rho(a')) (Q(s, a') - V) grad ln pi(a'),   a' ~ pi(.|s),

with respect to phi is cut so that it leads away from an average policy, which follows slowly, by delta at the most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from onrig.learner.algorithms import State
from onrig.learner.algorithms.densities import importance_ratio, kl_divergence, log_density
from onrig.learner.algorithms.torch_host import (
    LEAST_STD,
    Host,
    MinibatchTensors,
    common_std,
    initial_vectors,
    with_common_std,
)
from onrig.learner.algorithms.torch_refer import Refer
from onrig.learner.algorithms.returns import retrace
from onrig.learner.autograd import Blocks, Nets, action_value_layout, softsign_outputs
from onrig.learner.networks import Layout, mlp_layout, padded
from onrig.learner.refer_settings import AcerConfig, ReferSettings
from onrig.learner.trajectories import Chain
from onrig.runtime.replay.memory.layout import Slots
from onrig.runtime.replay.memory.order.uniforms import restore_streams, words_of_streams

_AT_ONCE: Final = 640
"""The most experiences that pass the networks at once: a trial's rounding must not depend on the number of others'."""


class Steps(NamedTuple):
    """Segments one behind the other, each trial's in N places, some of them empty at the end."""

    slots: Slots
    """(S, N)"""
    present: NDArray[np.bool_]
    """(S, N)"""
    share: NDArray[np.floating]
    """(S, N): weight of the segment over its length and the number of segments, 0 where empty.  As many draws lead to a
    segment as it has steps: so all stored experiences count equally, however long their episodes are."""
    last: NDArray[np.int64]
    """(S, B): places of the segments' last steps."""
    drawn: NDArray[np.int64]
    """(S, B): places of the experiences around which they lie."""


def laid_out(segments: Chain, slots: Slots, weight: NDArray[np.floating], at_once: int) -> Steps:
    """Lay out the segments (S, B, T) around experiences in ``slots`` (S, B); N is a multiple of ``at_once``."""
    S = len(slots)
    lengths = segments.present.sum(axis=-1)
    total = lengths.sum(axis=1)
    N = -(-int(total.max()) // at_once) * at_once
    present = np.arange(N) < total[:, None]
    placed, share = np.zeros((S, N), np.int64), np.zeros((S, N))
    for s, n in enumerate(total.tolist()):
        placed[s, :n] = segments.slots[s][segments.present[s]]
        share[s, :n] = np.repeat(weight[s] / (len(weight[s]) * lengths[s]), lengths[s])
    first = np.cumsum(lengths, axis=1) - lengths
    within = (segments.slots == slots[..., None]).argmax(axis=-1)
    return Steps(placed, present, share, first + lengths - 1, first + within)


def projected(g: torch.Tensor, k: torch.Tensor, delta: float) -> torch.Tensor:
    """The z (..., 2 m) nearest to ``g`` with k'z <= delta, ``k`` the gradient of the divergence (§3.3)."""
    beyond = ((k * g).sum(-1, keepdim=True) - delta).clamp(min=0.0)
    return g - beyond / k.square().sum(-1, keepdim=True).clamp(min=torch.finfo(k.dtype).tiny) * k


class _Seen(NamedTuple):
    """What the networks say of some of the steps, R of each trial; with gradients of the three outputs that learn."""

    value: torch.Tensor
    """(S, R)"""
    advantage: torch.Tensor
    """(S, R): Q(s, a) - V(s)."""
    present: tuple[torch.Tensor, torch.Tensor]
    """Mean and standard deviation of the present policy, (S, R, m) each."""
    average: tuple[torch.Tensor, torch.Tensor]
    drawn: torch.Tensor
    """(S, R, m): a, before any clip."""
    rho: torch.Tensor
    sampled: torch.Tensor
    """(S, R, m): a'."""
    correction: torch.Tensor
    """(S, R): max(0, 1 - c / rho(a')) (Q(s, a') - V)."""
    reward: NDArray[np.floating]
    """(S, R): scaled."""


class Acer(Host):
    """Policies, average policies, values and advantages of S trials, and the update that trains them."""

    def __init__(
        self,
        config: AcerConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        refer: ReferSettings,
    ) -> None:
        """Initialise one trial from each of ``streams`` (policy, value, advantage, then the actions of updates)."""
        super().__init__(config, refer, n_observations, n_actions, len(streams))
        self._acer, self._streams = config, tuple(streams)
        self._body = mlp_layout(n_observations, n_actions, config.hidden)
        self._values = mlp_layout(n_observations, 1, config.hidden)
        self._advantages = action_value_layout(n_observations, n_actions, config.hidden)
        layout, vectors = with_common_std(self._body, initial_vectors(self._body, streams), config.std, n_actions)
        self._policy = Nets(layout, vectors, lr=config.policy_lr, dtype=torch.float32)
        self._value, self._advantage = (
            Nets(of, initial_vectors(of, streams), lr=config.lr, dtype=torch.float32, targets=False)
            for of in (self._values, self._advantages)
        )
        self._at_once = min(_AT_ONCE, padded(config.batch * config.segment))

    @property
    def _nets(self) -> dict[str, Nets]:
        return {"policy": self._policy, "value": self._value, "advantage": self._advantage}

    def _policy_of(self, blocks: Blocks, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = softsign_outputs(self._body, blocks[:-1], x)[..., : self._m]
        return mean, common_std(blocks, self._m).expand_as(mean)

    def _present(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._policy_of(self._policy.frozen, x)

    def _value_of(self, blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
        return softsign_outputs(self._values, blocks, x)[..., 0]

    def _advantages_of(self, blocks: Blocks, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """A(s, a) (S, K, R) of K actions (S, K, R, m) in each state, clipped as the world applies them."""
        S, K, R, m = actions.shape
        given = pad(actions.clamp(-1.0, 1.0), (0, padded(m) - m))
        pairs = torch.cat((x[:, None].expand(-1, K, -1, -1), given), dim=-1)
        return softsign_outputs(self._advantages, blocks, pairs.view(S, K * R, -1))[..., 0].view(S, K, R)

    def _update(self, drawn: MinibatchTensors, refer: Refer) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._stored is not None
        segments = self._stored.around(drawn.slots, self._acer.segment)
        steps = laid_out(segments, drawn.slots, drawn.weight.numpy(), self._at_once)
        noise = self._noise(steps.present)
        pieces = [slice(at, at + self._at_once) for at in range(0, steps.slots.shape[1], self._at_once)]
        seen = [self._look(steps.slots[:, at], steps.present[:, at], noise[:, :, at], refer) for at in pieces]
        q_ret, q_opc = self._worth(seen, steps, self._end_values(segments.last))
        error = q_ret - torch.cat([piece.value + piece.advantage for piece in seen], dim=1).detach()

        share = torch.tensor(steps.share, dtype=torch.float32)
        for net in self._nets.values():
            net.clear()
        for at, piece in zip(pieces, seen, strict=True):
            e, z = error[:, at], self._step_of_policy(piece, q_opc[:, at])
            critics = -e * ((1.0 + piece.rho.clamp(max=1.0)) * piece.value + piece.advantage)
            up = share[:, at, None] * z
            torch.autograd.backward(((share[:, at] * critics).sum(), *piece.present), (None, *(-up).chunk(2, dim=-1)))
        for net in self._nets.values():
            net.step()
        self._policy.follow(self._acer.tau)
        refer.count()
        places = torch.from_numpy(steps.drawn)
        return error.gather(1, places), q_ret.gather(1, places)

    def _noise(self, present: NDArray[np.bool_]) -> torch.Tensor:
        """N(0, 1) for a' and each u_k, (S, 1 + K, N, m), 0 where empty."""
        noise = torch.zeros((len(present), 1 + self._acer.samples, present.shape[1], self._m))
        for s, (stream, n) in enumerate(zip(self._streams, present.sum(axis=1).tolist(), strict=True)):
            noise[s, :, :n] = torch.from_numpy(stream.standard_normal((len(noise[s]), n, self._m)))
        return noise

    def _look(self, slots: Slots, present: NDArray[np.bool_], noise: torch.Tensor, refer: Refer) -> _Seen:
        """Pass steps through the networks, and note how far the policies that acted are."""
        assert self._stored is not None
        taken, c = self._stored.gather(slots), self._acer.truncation
        assert taken.behaviour is not None
        x = self._inputs(taken.observation)
        drawn, mu, spread = (
            torch.tensor(part, dtype=torch.float32)
            for part in (taken.behaviour.drawn, taken.behaviour.mean, taken.behaviour.std)
        )
        acted = mu, spread.clamp(min=LEAST_STD)
        policy = self._policy_of(self._policy.online, x)
        value = self._value_of(self._value.online, x)
        with torch.no_grad():
            average = self._policy_of(self._policy.target, x)
            mean, std = policy
            samples = mean[:, None] + std[:, None] * noise
            apart = refer.apart(drawn, acted, policy)
            sampled = samples[:, 0]
            log_mu = log_density(sampled, *acted)
            beyond = (1.0 - c / importance_ratio(log_density(sampled, mean, std), log_mu)).clamp(min=0.0)
            worth = self._advantages_of(self._advantage.frozen, x, samples[:, :1])[:, 0]
        refer.note((np.nonzero(present)[0], slots[present]), apart.rho.numpy()[present], apart.kl.numpy()[present])
        both = torch.cat((drawn[:, None], samples[:, 1:]), dim=1)
        of_action, *of_samples = self._advantages_of(self._advantage.online, x, both).unbind(1)
        # One by one: the rounding of a mean over an outer axis depends on the number of trials.
        around = sum(of_samples[1:], start=of_samples[0]) / len(of_samples)
        return _Seen(
            value,
            of_action - around,
            policy,
            average,
            drawn,
            apart.rho,
            sampled,
            beyond * (worth - around.detach()),
            taken.reward * self._reward_scale,
        )

    def _end_values(self, slots: Slots) -> NDArray[np.floating]:
        """Value of where the segments lead whose last steps are in ``slots`` (S, B), 0 where the task terminated."""
        assert self._stored is not None
        taken = self._stored.gather(slots)
        with torch.no_grad():
            value = self._value_of(self._value.frozen, self._inputs(taken.next_observation))
        return np.where(taken.terminated, 0.0, value[:, : slots.shape[1]].numpy())

    def _worth(
        self, seen: Sequence[_Seen], steps: Steps, end_values: NDArray[np.floating]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Q^ret and Q^opc of all steps, (S, N) each, 0 where empty."""
        value, advantage, rho = (
            torch.cat(parts, dim=1).detach().numpy()
            for parts in zip(*((piece.value, piece.advantage, piece.rho) for piece in seen), strict=True)
        )
        reward = np.concatenate([piece.reward for piece in seen], axis=1)
        trace = np.minimum(1.0, rho) ** (1.0 / self._m)
        worth = torch.zeros((2, *value.shape))
        for s, n in enumerate(steps.present.sum(axis=1).tolist()):
            after, end = np.arange(1, n + 1), np.zeros(n)
            after[steps.last[s]], end[steps.last[s]] = -1, end_values[s]
            for estimate, ratio in zip(worth[:, s], (trace[s, :n], np.ones(n)), strict=True):
                q = retrace(reward[s, :n], value[s, :n], ratio, end, after, self._config.gamma, advantage[s, :n])
                estimate[:n] = torch.from_numpy(q)
        return worth[0], worth[1]

    def _step_of_policy(self, seen: _Seen, q_opc: torch.Tensor) -> torch.Tensor:
        """Ascent of means and standard deviations, (S, R, 2 m), within the trust region."""
        phi = [part.detach().requires_grad_() for part in seen.present]
        ahead = seen.rho.clamp(max=self._acer.truncation) * (q_opc - seen.value.detach())
        better = ahead * log_density(seen.drawn, phi[0], phi[1])
        better = better + seen.correction * log_density(seen.sampled, phi[0], phi[1])
        g, k = (
            torch.cat(torch.autograd.grad(objective.sum(), phi), dim=-1)
            for objective in (better, kl_divergence(*seen.average, phi[0], phi[1]))
        )
        return projected(g, k, self._acer.divergence)

    def _mean_layers(self) -> tuple[Layout, NDArray[np.floating], int]:
        return self._body, self._policy.vectors()[:, 0, : self._body.n_parameters], 0

    def state(self) -> State:
        """Copy of everything needed to resume training but the notes beside the slots."""
        return super().state() | {"streams": words_of_streams(self._streams)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        super().restore(state)
        restore_streams(self._streams, state["streams"])
