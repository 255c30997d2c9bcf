"""Updates of the algorithms under ReF-ER in plain torch: losses of one record in float64, and Adam.

Parameters are named as in the algorithms' state, fields of a record as in their records.
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
    last_layer = sum(1 for key in p if key.startswith(f"{name}/weight")) - 1
    for layer in range(last_layer + 1):
        x = x @ p[f"{name}/weight{layer}"] + p[f"{name}/bias{layer}"]
        x = x if layer == last_layer else x / (1.0 + x.abs())
    return x


def log_density(a: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    return (-0.5 * ((a - mean) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)).sum(-1, keepdim=True)


def ratio(log_pi: torch.Tensor, log_mu: torch.Tensor) -> torch.Tensor:
    """Bounded ratio, with a gradient of the bounded ratio times that of ln pi."""
    rho = (log_pi - log_mu).detach().clamp(-7.0, 7.0).exp()
    return rho * (1.0 + log_pi - log_pi.detach())


def divergence(p: tuple[torch.Tensor, torch.Tensor], q: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    policy_distance = p[1].square() + (p[0] - q[0]).square()
    return ((q[1] / p[1]).log() + policy_distance / (2.0 * q[1].square()) - 0.5).sum(-1, keepdim=True)


def _policy_distance(
    g: Tensors, mean: torch.Tensor, std: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ratio, whether it is near, and KL(mu || pi)."""
    behaviour = g["acted_mean"], g["acted_std"]
    rho = ratio(log_density(g["drawn"], mean, std), log_density(g["drawn"], *behaviour))
    _, min_ratio, max_ratio, _ = g["rules"][0]
    return rho, ((rho > min_ratio) & (rho < max_ratio)).double(), divergence(behaviour, (mean, std))


def _lower(outputs: torch.Tensor, m: int) -> torch.Tensor:
    rows, columns = torch.tril_indices(m, m)
    lower_triangle = torch.zeros((len(outputs), m, m), dtype=outputs.dtype)
    lower_triangle[:, rows, columns] = torch.where(rows == columns, softplus(outputs), outputs)
    return lower_triangle


def quadratic(a: torch.Tensor, mean: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    lower_triangle = _lower(outputs, a.shape[1])
    return -0.5 * ((a - mean)[..., None] * lower_triangle).sum(-2).square().sum(-1, keepdim=True)


def _quadratic_advantage(a: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    variance_term = (_lower(out, a.shape[1]) * std[..., None]).square().sum((-2, -1))
    return quadratic(a, mean, out) + 0.5 * variance_term[:, None]


def _gaussian_advantage(a: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    m, policy_distance, positive = a.shape[1], a - mean, softplus(out)
    height, width_above, width_below = positive[:, :1], positive[:, 1 : 1 + m], positive[:, 1 + m :]
    exponent = (
        policy_distance.clamp(min=0.0).square() / width_above + policy_distance.clamp(max=0.0).square() / width_below
    )
    normalisers = [(width / (width + std.square())).sqrt() for width in (width_above, width_below)]
    expected = height * (0.5 * (normalisers[0] + normalisers[1])).prod(-1, keepdim=True)
    return height * (-0.5 * exponent.sum(-1, keepdim=True)).exp() - expected


ADVANTAGES = {"quadratic": _quadratic_advantage, "gaussian": _gaussian_advantage}


def naf(p: Tensors, g: Tensors, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and TD errors."""
    m = g["action"].shape[1]
    out = mlp(p, "network", g["observation"])
    value, mean, lower_triangle = out[:, :1], out[:, 1 : 1 + m], out[:, 1 + m :]
    _, is_near, kl = _policy_distance(g, mean, torch.full((1, m), 0.2, dtype=torch.float64))
    beta = error_weight = g["rules"][0, 0]
    if config.beta_on == "mean":
        mean, error_weight = mean.detach() + beta * (mean - mean.detach()), torch.ones(())
    target = g["reward"] + g["discount"] * mlp(p, "target", g["next_observation"])[:, :1].detach()
    td = target - value - quadratic(g["action"], mean, lower_triangle)
    return (error_weight * is_near * g["weight"] * 0.5 * td.square() + (1.0 - beta) * kl).mean(), td


def ddpg(p: Tensors, g: Tensors, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of both networks, neither of which learns from the other's, and TD errors."""
    x, frozen_parameters = g["observation"], {name: values.detach() for name, values in p.items()}
    mean = mlp(p, "actor", x).tanh()
    _, is_near, kl = _policy_distance(g, mean, torch.full((1, mean.shape[1]), 0.2, dtype=torch.float64))
    beta = g["rules"][0, 0]
    actor_loss = -beta * is_near * mlp(frozen_parameters, "critic", torch.cat((x, mean), 1)) + (1.0 - beta) * kl
    next_action = mlp(frozen_parameters, "target_actor", g["next_observation"]).tanh()
    next_action = mlp(frozen_parameters, "target_critic", torch.cat((g["next_observation"], next_action), 1))
    td = g["reward"] + g["discount"] * next_action - mlp(p, "critic", torch.cat((x, g["action"]), 1))
    return (actor_loss + g["weight"] * is_near * td.square()).mean(), td


def vracer(p: Tensors, g: Tensors, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and errors of the value."""
    m = g["drawn"].shape[1]
    out = mlp(p, "network", g["observation"]) if "window" not in g else _run_over_window(p, g, config)
    value, mean, std = out[:, :1], out[:, 1 : 1 + m], softplus(p["std/output"])
    rho, is_near, kl = _policy_distance(g, mean, std)
    advantage = torch.zeros_like(value)
    if config.advantage != "none":
        advantage = ADVANTAGES[config.advantage](g["drawn"], mean.detach(), std.detach(), out[:, 1 + m :])
    advantage_target = g["q_ret"] - value.detach()
    error, detached_ratio = advantage_target - advantage.detach(), rho.detach()
    loss = -rho * advantage_target - detached_ratio.clamp(max=1.0) * error * value - detached_ratio * error * advantage
    beta = g["rules"][0, 0]
    return (beta * is_near * g["weight"] * loss + (1.0 - beta) * kl).mean(), error


def _run_over_window(p: Tensors, g: Tensors, config: Any) -> torch.Tensor:
    """Outputs of cells over windows, row by row from the earliest existing step."""
    W, units = config.recurrent.window, config.recurrent.units
    n = g["observation"].shape[1]
    rows = []
    for row in g["window"]:
        window_observations, is_present, memory = row[: W * n].view(W, n), row[W * n : W * (n + 1)], row[W * (n + 1) :]
        for row_index in reversed(range(int(is_present.sum()))):
            x = (window_observations[row_index] - p["centre"][0]) / p["spread"][0]
            hidden_states = []
            for cell, u in enumerate(units):
                output, state, memory = memory[:u], memory[u : 2 * u], memory[2 * u :]
                gates = torch.cat((x, output)) @ p[f"network/weight{cell}"] + p[f"network/bias{cell}"][0]
                input_gate, forget_gate, candidate, output_gate = gates.chunk(4)
                state = forget_gate.sigmoid() * state + input_gate.sigmoid() * candidate.tanh()
                x = output_gate.sigmoid() * state.tanh()
                hidden_states += [x, state]
            memory = torch.cat(hidden_states)
        rows.append(x @ p[f"network/weight{len(units)}"] + p[f"network/bias{len(units)}"][0])
    return torch.stack(rows)


def acer(p: Tensors, g: Tensors, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss whose gradients are those of critic and policy at given errors, and Q(s, a) - V(s)."""
    x, drawn_action, m = g["observation"], g["drawn"], g["drawn"].shape[1]
    mean, std, value = mlp(p, "policy", x), softplus(p["std/output"]), mlp(p, "value", x)
    noise = g["noise"].view(len(x), -1, m)
    sampled, *other_samples = (mean.detach() + std.detach() * noise[:, k] for k in range(noise.shape[1]))

    def evaluate_advantage(a: torch.Tensor) -> torch.Tensor:
        return mlp(p, "advantage", torch.cat((x, a.clamp(-1.0, 1.0)), 1))

    mean_advantage = torch.stack([evaluate_advantage(u) for u in other_samples]).mean(0)
    advantage = evaluate_advantage(drawn_action) - mean_advantage
    policy_parameters = mean.detach().requires_grad_(), std.expand_as(mean).detach().requires_grad_()
    behaviour = g["acted_mean"], g["acted_std"]
    rho = ratio(log_density(drawn_action, *policy_parameters), log_density(drawn_action, *behaviour)).detach()
    truncation_excess = (
        1.0 - config.truncation / ratio(log_density(sampled, *policy_parameters), log_density(sampled, *behaviour))
    ).clamp(min=0.0)
    policy_gain = (
        rho.clamp(max=config.truncation) * (g["q_opc"] - value.detach()) * log_density(drawn_action, *policy_parameters)
    )
    policy_gain = policy_gain + truncation_excess.detach() * (
        evaluate_advantage(sampled) - mean_advantage
    ).detach() * log_density(sampled, *policy_parameters)
    average_policy = mlp(p, "average", x).detach(), softplus(p["average_std/output"]).detach()
    gain_gradient, k = (
        torch.cat(torch.autograd.grad(objective.sum(), policy_parameters), 1)
        for objective in (policy_gain, divergence(average_policy, policy_parameters))
    )
    excess = ((k * gain_gradient).sum(-1, keepdim=True) - config.divergence).clamp(min=0.0)
    z = gain_gradient - excess / k.square().sum(-1, keepdim=True).clamp(min=1e-38) * k
    critic_loss = -g["error"] * ((1.0 + rho.clamp(max=1.0)) * value + advantage)
    policy = (z * torch.cat((mean, std.expand_as(mean)), 1)).sum(-1, keepdim=True)
    return (g["step_weight"] * (critic_loss - policy)).sum(), advantage


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
        self._n_steps = 0

    def step(self, p: Tensors, gradients: Tensors, annealing: float) -> None:
        self._n_steps += 1
        b1, b2 = self._betas
        for name in self.names:
            g, values, lr = gradients[name], p[name], self._lr * annealing
            if "weight" in name and self._coupled:
                g = g + self._decay * values
            elif "weight" in name:
                values = values * (1.0 - lr * self._decay)
            first_moment, second_moment = self._moments.get(name, (torch.zeros_like(g), torch.zeros_like(g)))
            first_moment, second_moment = b1 * first_moment + (1.0 - b1) * g, b2 * second_moment + (1.0 - b2) * g * g
            self._moments[name] = first_moment, second_moment
            root = (second_moment / (1.0 - b2**self._n_steps)).sqrt() + self._eps
            p[name] = values - lr * first_moment / (1.0 - b1**self._n_steps) / root


def apply_update(p: Tensors, loss: torch.Tensor, leaves: Tensors, adams: list[Adam], annealing: float) -> None:
    """Make a step of each optimiser down the gradient of a loss by the leaves."""
    gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    for adam in adams:
        adam.step(p, gradients, annealing)
