"""SAC (Haarnoja et al. 2018) in plain torch, with a learned temperature; `on_link.py` uses it."""

import copy

import torch
from td3 import network
from torch import nn
from torch.nn.functional import softplus


class Sac:
    """Actor (n) to (m), normalised: the mode of a squashed Gaussian; rewards are multiplied by ``scale``."""

    def __init__(self, n, m, *, gamma=0.95, tau=0.01, lr=1e-3, scale=1e-2, width=64):
        torch.set_num_threads(1)
        self.gamma, self.tau, self.scale, self.updates = gamma, tau, scale, 0
        self.actor = nn.Sequential(*network(n, width, width, m), nn.Tanh())  # what the rig runs
        self.spread = nn.Sequential(*network(n, width, width, m))  # logarithm of the standard deviation
        self.critics = nn.ModuleList(nn.Sequential(*network(n + m, width, width, 1)) for _ in range(2))
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.tensor(-3.0))
        policy = [*self.actor.parameters(), *self.spread.parameters()]
        self.steps = [torch.optim.Adam(p, lr) for p in (policy, self.critics.parameters(), [self.log_alpha])]

    def sample(self, s):
        """Actions (B, m) and their log-densities (B,)."""
        gaussian = torch.distributions.Normal(self.actor[:-1](s), self.spread(s).clamp(-5, 1).exp())
        x = gaussian.rsample()
        squashing = 2 * (0.6931 - x - softplus(-2 * x))  # log of the derivative of tanh
        return torch.tanh(x), (gaussian.log_prob(x) - squashing).sum(1)

    def update(self, observation, action, reward, next_observation, terminated):
        """One update on arrays of B experiences; returns the TD errors (B,) of the first critic."""
        given = (observation, action, self.scale * reward, next_observation, terminated)
        s, a, r, after, over = (torch.as_tensor(x, dtype=torch.float32) for x in given)
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            then, density = self.sample(after)
            value = torch.minimum(*(c(torch.cat([after, then], 1))[:, 0] for c in self.targets)) - alpha * density
            target = r + self.gamma * (1 - over) * value
        errors = [target - c(torch.cat([s, a], 1))[:, 0] for c in self.critics]
        self._descend(1, sum(e.square().mean() for e in errors))
        chosen, density = self.sample(s)
        value = torch.minimum(*(c(torch.cat([s, chosen], 1))[:, 0] for c in self.critics))
        self._descend(0, (alpha * density - value).mean())
        self._descend(2, -self.log_alpha * (density.detach().mean() - a.shape[1]))  # aims at an entropy of -m
        for old, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
            old.data.lerp_(new.data, self.tau)
        self.updates += 1
        return errors[0].detach().numpy()

    def _descend(self, which, loss):
        self.steps[which].zero_grad()
        loss.backward()
        self.steps[which].step()
