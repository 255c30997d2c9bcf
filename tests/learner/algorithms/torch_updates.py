"""Updates of the algorithms under ReF-ER in plain torch: losses of one record in float64, and Adam.

Parameters are named as in the algorithms' state; what a record holds, as in their records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import softplus

Tensors = dict[str, torch.Tensor]


def mlp(p: Mapping[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    """Linear outputs behind softsign units."""
    last = sum(1 for key in p if key.startswith(f"{name}/weight")) - 1
    for at in range(last + 1):
        x = x @ p[f"{name}/weight{at}"] + p[f"{name}/bias{at}"]
        x = x if at == last else x / (1.0 + x.abs())
    return x


def log_density(a: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    return (-0.5 * ((a - mean) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)).sum(-1, keepdim=True)


def ratio(log_pi: torch.Tensor, log_mu: torch.Tensor) -> torch.Tensor:
    """Bounded, with the gradient of the bounded one times that of ln pi."""
    rho = (log_pi - log_mu).detach().clamp(-7.0, 7.0).exp()
    return rho * (1.0 + log_pi - log_pi.detach())


def divergence(p: tuple[torch.Tensor, torch.Tensor], q: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    policy_distance = p[1].square() + (p[0] - q[0]).square()
    return ((q[1] / p[1]).log() + policy_distance / (2.0 * q[1].square()) - 0.5).sum(-1, keepdim=True)


def _policy_distance(
    g: Tensors, mean: torch.Tensor, std: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ratio, whether it is near, and KL(mu || pi)."""
    acted = g["acted_mean"], g["acted_std"]
    rho = ratio(log_density(g["drawn"], mean, std), log_density(g["drawn"], *acted))
    _, least, greatest, _ = g["rules"][0]
    return rho, ((rho > least) & (rho < greatest)).double(), divergence(acted, (mean, std))


def _lower(outputs: torch.Tensor, m: int) -> torch.Tensor:
    rows, columns = torch.tril_indices(m, m)
    lower = torch.zeros((len(outputs), m, m), dtype=outputs.dtype)
    lower[:, rows, columns] = torch.where(rows == columns, softplus(outputs), outputs)
    return lower


def quadratic(a: torch.Tensor, mean: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    lower = _lower(outputs, a.shape[1])
    return -0.5 * ((a - mean)[..., None] * lower).sum(-2).square().sum(-1, keepdim=True)


def _quadratic_advantage(a: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    spread = (_lower(out, a.shape[1]) * std[..., None]).square().sum((-2, -1))
    return quadratic(a, mean, out) + 0.5 * spread[:, None]


def _gaussian_advantage(a: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    m, policy_distance, positive = a.shape[1], a - mean, softplus(out)
    height, above, below = positive[:, :1], positive[:, 1 : 1 + m], positive[:, 1 + m :]
    exponent = policy_distance.clamp(min=0.0).square() / above + policy_distance.clamp(max=0.0).square() / below
    halves = [(width / (width + std.square())).sqrt() for width in (above, below)]
    expected = height * (0.5 * (halves[0] + halves[1])).prod(-1, keepdim=True)
    return height * (-0.5 * exponent.sum(-1, keepdim=True)).exp() - expected


ADVANTAGES = {"quadratic": _quadratic_advantage, "gaussian": _gaussian_advantage}


def naf(p: Tensors, g: Tensors, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and TD errors."""
    m = g["action"].shape[1]
    out = mlp(p, "network", g["observation"])
    value, mean, lower = out[:, :1], out[:, 1 : 1 + m], out[:, 1 + m :]
    _, near, kl = _policy_distance(g, mean, torch.full((1, m), 0.2, dtype=torch.float64))
    beta = own = g["rules"][0, 0]
    if config.beta_on == "mean":
        mean, own = mean.detach() + beta * (mean - mean.detach()), torch.ones(())
    target = g["reward"] + g["discount"] * mlp(p, "target", g["next_observation"])[:, :1].detach()
    td = target - value - quadratic(g["action"], mean, lower)
    return (own * near * g["weight"] * 0.5 * td.square() + (1.0 - beta) * kl).mean(), td


def ddpg(p: Tensors, g: Tensors, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of both networks, none of which learns from the other's, and TD errors."""
    x, frozen = g["observation"], {name: values.detach() for name, values in p.items()}
    mean = mlp(p, "actor", x).tanh()
    _, near, kl = _policy_distance(g, mean, torch.full((1, mean.shape[1]), 0.2, dtype=torch.float64))
    beta = g["rules"][0, 0]
    of_actor = -beta * near * mlp(frozen, "critic", torch.cat((x, mean), 1)) + (1.0 - beta) * kl
    after = mlp(frozen, "target_actor", g["next_observation"]).tanh()
    after = mlp(frozen, "target_critic", torch.cat((g["next_observation"], after), 1))
    td = g["reward"] + g["discount"] * after - mlp(p, "critic", torch.cat((x, g["action"]), 1))
    return (of_actor + g["weight"] * near * td.square()).mean(), td


def vracer(p: Tensors, g: Tensors, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and errors of the value."""
    m = g["drawn"].shape[1]
    out = mlp(p, "network", g["observation"]) if "window" not in g else _over_window(p, g, config)
    value, mean, std = out[:, :1], out[:, 1 : 1 + m], softplus(p["std/output"])
    rho, near, kl = _policy_distance(g, mean, std)
    advantage = torch.zeros_like(value)
    if config.advantage != "none":
        advantage = ADVANTAGES[config.advantage](g["drawn"], mean.detach(), std.detach(), out[:, 1 + m :])
    ahead = g["q_ret"] - value.detach()
    error, known = ahead - advantage.detach(), rho.detach()
    loss = -rho * ahead - known.clamp(max=1.0) * error * value - known * error * advantage
    beta = g["rules"][0, 0]
    return (beta * near * g["weight"] * loss + (1.0 - beta) * kl).mean(), error


def _over_window(p: Tensors, g: Tensors, config: Any) -> torch.Tensor:
    """Outputs of cells over windows, row by row from the earliest step that there is."""
    W, units = config.recurrent.window, config.recurrent.units
    n = g["observation"].shape[1]
    rows = []
    for row in g["window"]:
        seen, present, memory = row[: W * n].view(W, n), row[W * n : W * (n + 1)], row[W * (n + 1) :]
        for at in reversed(range(int(present.sum()))):
            x = (seen[at] - p["centre"][0]) / p["spread"][0]
            kept = []
            for cell, u in enumerate(units):
                output, state, memory = memory[:u], memory[u : 2 * u], memory[2 * u :]
                gates = torch.cat((x, output)) @ p[f"network/weight{cell}"] + p[f"network/bias{cell}"][0]
                let_in, keep, candidate, let_out = gates.chunk(4)
                state = keep.sigmoid() * state + let_in.sigmoid() * candidate.tanh()
                x = let_out.sigmoid() * state.tanh()
                kept += [x, state]
            memory = torch.cat(kept)
        rows.append(x @ p[f"network/weight{len(units)}"] + p[f"network/bias{len(units)}"][0])
    return torch.stack(rows)


def acer(p: Tensors, g: Tensors, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss whose gradients are those of critic and policy at given errors, and Q(s, a) - V(s)."""
    x, drawn, m = g["observation"], g["drawn"], g["drawn"].shape[1]
    mean, std, value = mlp(p, "policy", x), softplus(p["std/output"]), mlp(p, "value", x)
    noise = g["noise"].view(len(x), -1, m)
    sampled, *others = (mean.detach() + std.detach() * noise[:, k] for k in range(noise.shape[1]))

    def worth(a: torch.Tensor) -> torch.Tensor:
        return mlp(p, "advantage", torch.cat((x, a.clamp(-1.0, 1.0)), 1))

    around = torch.stack([worth(u) for u in others]).mean(0)
    advantage = worth(drawn) - around
    phi = mean.detach().requires_grad_(), std.expand_as(mean).detach().requires_grad_()
    acted = g["acted_mean"], g["acted_std"]
    rho = ratio(log_density(drawn, *phi), log_density(drawn, *acted)).detach()
    beyond = (1.0 - config.truncation / ratio(log_density(sampled, *phi), log_density(sampled, *acted))).clamp(min=0.0)
    better = rho.clamp(max=config.truncation) * (g["q_opc"] - value.detach()) * log_density(drawn, *phi)
    better = better + beyond.detach() * (worth(sampled) - around).detach() * log_density(sampled, *phi)
    average = mlp(p, "average", x).detach(), softplus(p["average_std/output"]).detach()
    up, k = (
        torch.cat(torch.autograd.grad(objective.sum(), phi), 1) for objective in (better, divergence(average, phi))
    )
    over = ((k * up).sum(-1, keepdim=True) - config.divergence).clamp(min=0.0)
    z = up - over / k.square().sum(-1, keepdim=True).clamp(min=1e-38) * k
    critics = -g["error"] * ((1.0 + rho.clamp(max=1.0)) * value + advantage)
    policy = (z * torch.cat((mean, std.expand_as(mean)), 1)).sum(-1, keepdim=True)
    return (g["step_weight"] * (critics - policy)).sum(), advantage


Loss = Callable[[Tensors, Tensors, Any], tuple[torch.Tensor, torch.Tensor]]


class Adam:
    """Kingma and Ba 2015, with decay of some parameters: decoupled, or as a gradient."""

    def __init__(
        self,
        names: list[str],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decay: float = 0.0,
        coupled: bool = False,
    ) -> None:
        self.names, self._lr, self._betas, self._eps, self._decay, self._coupled = names, lr, betas, eps, decay, coupled
        self._moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._taken = 0

    def step(self, p: Tensors, gradients: Tensors, annealing: float) -> None:
        self._taken += 1
        b1, b2 = self._betas
        for name in self.names:
            g, values, lr = gradients[name], p[name], self._lr * annealing
            if "weight" in name and self._coupled:
                g = g + self._decay * values
            elif "weight" in name:
                values = values * (1.0 - lr * self._decay)
            first, second = self._moments.get(name, (torch.zeros_like(g), torch.zeros_like(g)))
            first, second = b1 * first + (1.0 - b1) * g, b2 * second + (1.0 - b2) * g * g
            self._moments[name] = first, second
            root = (second / (1.0 - b2**self._taken)).sqrt() + self._eps
            p[name] = values - lr * first / (1.0 - b1**self._taken) / root


def updated(p: Tensors, loss: torch.Tensor, leaves: Tensors, adams: list[Adam], annealing: float) -> None:
    """Take a step of each down the gradient of a loss by the leaves."""
    gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    for adam in adams:
        adam.step(p, gradients, annealing)
