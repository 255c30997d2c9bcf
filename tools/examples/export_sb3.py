"""A policy from Stable-Baselines3 on a rig: ``python -m onrig.tools.examples.export_sb3 CONFIG FILE.onnx``.

The program creates an agent (DDPG, TD3, SAC or PPO), trains it for ``--steps`` on the configuration's twin, and writes
the best actor as ONNX with the contract that the rig requires. ``docs/third-party-policies.md`` explains the program
line by line. ``export`` supports any feed-forward torch network.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onrig.hw.transport import LinkError
from onrig.learner.settings import learner_settings
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import replace_file
from onrig.runtime.policy.admission import Refused
from onrig.runtime.policy.contract import (
    INPUT_NAME,
    METADATA_KEY,
    OUTPUT_NAME,
    PolicyContract,
    Signal,
    contract_for,
    encode_contract,
)
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.run_config import RunConfig
from onrig.runtime.scoring import measure_of
from onrig.sim.envs import TwinEnv
from onrig.sim.evaluation import admission_verdict, evaluate
from onrig.tools.load import load, print_problems
from onrig.tools.terminal import complain

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

OPSET: Final = 17
IR_VERSION: Final = 8
"""ONNX versions that every supported onnxruntime can read."""
ALGORITHMS: Final = ("ddpg", "td3", "sac", "ppo")
EVALUATE_EVERY: Final = 2000
"""Number of training steps between evaluations."""
NOISE: Final = 0.3
"""Sigma of the exploration noise, whose standard deviation reaches 0.57 of an action's half-range."""
_ACTIVATIONS: Final[Mapping[type[nn.Module], tuple[str, tuple[tuple[str, str], ...]]]] = {
    nn.ReLU: ("Relu", ()),
    nn.Tanh: ("Tanh", ()),
    nn.Sigmoid: ("Sigmoid", ()),
    nn.ELU: ("Elu", (("alpha", "alpha"),)),
    nn.LeakyReLU: ("LeakyRelu", (("alpha", "negative_slope"),)),
}
"""ONNX operator for each torch module, with pairs of corresponding attributes."""


def actor_of(policy: nn.Module) -> list[nn.Module]:
    """Return the actor of a Stable-Baselines3 policy, from normalised observations to actions in [-1, 1].

    Raises ValueError for a policy with state-dependent exploration or a feature extractor other than Flatten.
    """
    parts = dict(policy.named_modules())
    for name, part in parts.items():
        if getattr(part, "use_sde", False):
            raise ValueError("state-dependent exploration (use_sde) is not exported")
        if name.endswith("features_extractor") and any(True for _ in part.parameters()):
            raise ValueError(f"the feature extractor {type(part).__name__} has parameters; only Flatten is exported")
    if "action_net" in parts:  # PPO and A2C: the mean of a Gaussian, clipped to the action space
        return [*parts["mlp_extractor.policy_net"].children(), parts["action_net"], nn.Hardtanh(-1.0, 1.0)]
    if "actor.latent_pi" in parts:  # SAC: the squashed mean
        return [*parts["actor.latent_pi"].children(), parts["actor.mu"], nn.Tanh()]
    return list(parts["actor.mu"].children())  # DDPG and TD3: tanh is the last module


def export(network: Sequence[nn.Module], contract: PolicyContract) -> bytes:
    """Export a network to ONNX with its contract, as a map from observation (1, n) to action (1, m), float32, SI units.

    ``network`` itself maps normalised observations to normalised actions, in which [-1, 1] represents the range
    [low, high] of the contract's signals. Raises ValueError for an unsupported module.
    """
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    value = INPUT_NAME

    def constant(name: str, array: NDArray[np.generic]) -> str:
        constants.append(numpy_helper.from_array(np.asarray(array, np.float32, order="C"), name))
        return name

    def node(operator: str, *inputs: str, **attributes: float) -> None:
        nonlocal value
        output = f"value{len(nodes)}"
        nodes.append(helper.make_node(operator, [value, *inputs], [output]))
        nodes[-1].attribute.extend(helper.make_attribute(name, number) for name, number in attributes.items())
        value = output

    centre, half_range = _centre_and_half_range(contract.observations)
    node("Sub", constant("observation_centre", centre))
    node("Div", constant("observation_half_range", half_range))
    for i, module in enumerate(network):
        if isinstance(module, nn.Linear):
            weight = module.weight.detach().numpy()
            bias = np.zeros(len(weight)) if module.bias is None else module.bias.detach().numpy()
            node("Gemm", constant(f"weight{i}", weight), constant(f"bias{i}", bias), transB=1)
        elif isinstance(module, nn.Hardtanh):
            low, high = np.array(module.min_val), np.array(module.max_val)
            node("Clip", constant(f"low{i}", low), constant(f"high{i}", high))
        elif type(module) in _ACTIVATIONS:
            operator, attributes = _ACTIVATIONS[type(module)]
            node(operator, **{name: float(getattr(module, module_name)) for name, module_name in attributes})
        elif not isinstance(module, nn.Flatten | nn.Identity):
            raise ValueError(f"module {i}, {type(module).__name__}, is not supported")
    centre, half_range = _centre_and_half_range(contract.actions)
    node("Mul", constant("action_half_range", half_range))
    node("Add", constant("action_centre", centre))
    nodes[-1].output[0] = OUTPUT_NAME

    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, [1, len(contract.observations)])],
        [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, [1, len(contract.actions)])],
        constants,
    )
    model = helper.make_model(
        graph,
        producer_name="stable-baselines3",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    helper.set_model_props(model, {METADATA_KEY: encode_contract(contract)})
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _centre_and_half_range(signals: Sequence[Signal]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    low, high = (np.array([getattr(s, end) for s in signals], dtype=np.float64) for end in ("low", "high"))
    return 0.5 * (low + high), 0.5 * (high - low)


def agent_for(config: RunConfig, algorithm: str, seed: int) -> BaseAlgorithm:
    """Create a new agent for the configuration's twin. Raises ImportError if Stable-Baselines3 is missing.

    The agent uses the reward scale, the discount and, except for PPO, the target rate of the configuration's DDPG
    learner.
    """
    import stable_baselines3
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise

    learner = learner_settings(config.learner).ddpg
    env = TwinEnv(config.rig, config.task, config.device.twin or {}, config.rate_hz, reward_scale=learner.reward_scale)
    settings: dict[str, Any] = {"gamma": learner.gamma, "policy_kwargs": {"net_arch": [64, 64]}}
    if algorithm != "ppo":
        settings |= {"tau": learner.tau, "batch_size": 64, "train_freq": 2}
    if algorithm in ("ddpg", "td3"):
        # White noise mostly averages out within a swing, but this process keeps its direction for about six periods.
        zero_action = np.zeros(len(config.rig.actuators))
        settings["action_noise"] = OrnsteinUhlenbeckActionNoise(zero_action, zero_action + NOISE, theta=0.15, dt=1.0)
    make: Callable[..., BaseAlgorithm] = getattr(stable_baselines3, algorithm.upper())
    agent = make("MlpPolicy", env, seed=seed, device="cpu", **settings)
    agent.set_logger(Logger(None, []))  # the default logger creates a folder
    return agent


class UnfitModelError(ValueError):
    """Raised if the rig would refuse the policy."""


def train(agent: BaseAlgorithm, steps: int, contract: PolicyContract, config: RunConfig, path: Path) -> None:
    """Train in intervals, print the policy's score after each, and keep the best policy in ``path``.

    The score is measured in one noise-free episode on the twin, with the exported policy and the rig's tick; the first
    score is the untrained policy's. Raises UnfitModelError, LinkError if the twin stops answering, and OSError.
    """
    best_score, started_s, measure = -math.inf, time.monotonic(), measure_of(config.task)
    while True:
        n_steps = int(agent.num_timesteps)
        with torch.no_grad():
            model = export(actor_of(agent.policy), msgspec.structs.replace(contract, training_step=n_steps))
        (row,) = evaluate(config, PolicySession(model), contract.policy_id, 1, config.seed)
        if row.score > best_score:
            verdict = admission_verdict(model, config)
            if isinstance(verdict, Refused):
                raise UnfitModelError(f"the rig would refuse the policy in the {verdict.stage} check: {verdict.reason}")
            replace_file(path, model)
            best_score = row.score
        elapsed_s = time.monotonic() - started_s
        remaining_text = f", {elapsed_s * (steps - n_steps) / n_steps:.0f} s left" if 0 < n_steps < steps else ""
        score, best_text = (f"{value:.4g}" for value in (row.score, best_score))
        print(
            f"{n_steps:7d} steps: {measure.column} {score}, best {best_text}; {elapsed_s:.0f} s{remaining_text}",
            flush=True,
        )
        if n_steps >= steps:
            return
        agent.learn(min(EVALUATE_EVERY, steps - n_steps), reset_num_timesteps=False)


def parser() -> argparse.ArgumentParser:
    """Build the program's argument parser."""
    p = argparse.ArgumentParser(prog="python -m onrig.tools.examples.export_sb3", description=__doc__)
    p.add_argument("config", help="path or shipped name of a configuration with a twin")
    p.add_argument("file", type=Path, help="file for the policy (ONNX)")
    p.add_argument("--algorithm", choices=ALGORITHMS, default="ddpg")
    p.add_argument("--steps", type=int, default=0, help="training steps on the twin (default: none)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument(
        "--id",
        type=int,
        default=1,
        help="id of the policy; a rig assigns its own number (default: 1)",
    )
    return p


def main(arguments: list[str]) -> int:
    """Create, train, evaluate, export and check a policy, and return the exit code."""
    args = parser().parse_args(arguments)
    try:
        config = load(args.config, [])
    except ConfigError as error:
        return print_problems(error)
    if config.device.twin is None:
        return complain("export_sb3", f"{args.config} uses a port: expected a twin to train on")
    torch.set_num_threads(1)  # small networks gain nothing from more threads
    try:
        agent = agent_for(config, args.algorithm, args.seed)
    except ImportError as error:
        remedy = "pip install 'stable-baselines3>=2.4'"
        return complain("export_sb3", f"{error}; install it with {remedy}", ExitCode.PREFLIGHT)
    parent_run = f"stable-baselines3-{args.algorithm}"
    contract = contract_for(
        config.rig, config.rate_hz, policy_id=args.id, parent_run=parent_run, training_step=0, signals=config.signals
    )
    try:
        train(agent, args.steps, contract, config, args.file)
    except UnfitModelError as error:
        return complain("export_sb3", str(error))
    except LinkError as error:
        return complain("export_sb3", str(error), ExitCode.HARDWARE)
    except OSError as error:
        return complain("export_sb3", f"{args.file}: cannot be written: {error.strerror or error}")
    except KeyboardInterrupt:
        return complain("export_sb3", f"interrupted; {args.file} contains the best policy so far", ExitCode.INTERRUPTED)
    print(f"{args.file} contains the best policy.  Continue with:")
    for verb in ("check", "eval"):
        print(f"  onrig policy {verb} {args.file} {args.config}")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
