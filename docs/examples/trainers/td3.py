"""TD3 (Fujimoto et al. 2018) in plain torch; the other examples use it as well."""

import copy
import itertools

import numpy as np
import torch
from torch import nn


def network(n, *widths):
    """Return layers of these widths with ReLU in between."""
    layers = []
    for fan_in, fan_out in itertools.pairwise((n, *widths)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return layers[:-1]


class Td3:
    """Actor (n) to (m), normalised, and two critics; rewards are multiplied by ``scale``."""

    def __init__(self, n, m, *, gamma=0.95, tau=0.01, lr=1e-3, scale=1e-3, width=64):
        torch.set_num_threads(1)
        self.gamma, self.tau, self.scale, self.updates = gamma, tau, scale, 0
        self.actor = nn.Sequential(*network(n, width, width, m), nn.Tanh())
        self.critics = nn.ModuleList(nn.Sequential(*network(n + m, width, width, 1)) for _ in range(2))
        self.targets = copy.deepcopy((self.actor, self.critics))
        self.steps = [torch.optim.Adam(net.parameters(), lr) for net in (self.actor, self.critics)]

    def act(self, observation, noise=0.0):
        """Action (m,) with Gaussian noise, clipped."""
        with torch.no_grad():
            action = self.actor(torch.as_tensor(observation, dtype=torch.float32)).numpy()
        return np.clip(action + noise * np.random.randn(*action.shape), -1, 1).astype(np.float32)

    def update(self, observation, action, reward, next_observation, terminated):
        """One update on arrays of B experiences; returns the TD errors (B,) of the first critic."""
        given = (observation, action, self.scale * reward, next_observation, terminated)
        s, a, r, after, over = (torch.as_tensor(x, dtype=torch.float32) for x in given)
        with torch.no_grad():
            actor, critics = self.targets
            then = (actor(after) + (0.2 * torch.randn_like(a)).clamp(-0.5, 0.5)).clamp(-1, 1)
            value = torch.minimum(*(c(torch.cat([after, then], 1)) for c in critics))[:, 0]
            target = r + self.gamma * (1 - over) * value
        errors = [target - c(torch.cat([s, a], 1))[:, 0] for c in self.critics]
        self._descend(self.steps[1], sum(e.square().mean() for e in errors))
        self._descend(self.steps[0], -self.critics[0](torch.cat([s, self.actor(s)], 1)).mean())
        for kept, learned in zip(self.targets, (self.actor, self.critics), strict=True):
            for old, new in zip(kept.parameters(), learned.parameters(), strict=True):
                old.data.lerp_(new.data, self.tau)
        self.updates += 1
        return errors[0].detach().numpy()

    @staticmethod
    def _descend(step, loss):
        step.zero_grad()
        loss.backward()
        step.step()
