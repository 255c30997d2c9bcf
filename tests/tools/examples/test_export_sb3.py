"""Export of a network not trained by Onrig."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onrig.runtime.policy.admission import Admitted
from onrig.runtime.policy.contract import METADATA_KEY, contract_for
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.replay.learners.admission_terms import standard_probes
from onrig.runtime.run_config import RunConfig
from onrig.sim.evaluation import admission_verdict
from onrig.tools.cli import main as onrig
from onrig.tools.examples import export_sb3
from onrig.tools.examples.export_sb3 import ALGORITHMS, actor_of, agent_for, export
from onrig.tools.load import load

CONFIG = load("pendulum", [])


def ddpg_layers(n: int, m: int) -> list[nn.Module]:
    """Layers that Stable-Baselines3 builds for DDPG from `MlpPolicy`."""
    torch.manual_seed(0)
    return [nn.Flatten(), nn.Linear(n, 400), nn.ReLU(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, m), nn.Tanh()]


def ppo_layers(n: int, m: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(n, 64), nn.Tanh(), nn.Linear(64, 64), nn.ELU(0.5), nn.Linear(64, m), nn.Hardtanh(-1.0, 1.0)]


def export_network(config: RunConfig, network: list[nn.Module], policy_id: int = 1) -> bytes:
    contract = contract_for(config.rig, config.rate_hz, policy_id=policy_id, parent_run="elsewhere", training_step=0)
    return export(network, contract)


def max_difference(config: RunConfig, network: list[nn.Module], model: bytes) -> float:
    """Largest difference between torch and the rig over the probe states, relative to an action's half range."""
    contract = contract_for(config.rig, config.rate_hz, policy_id=1, parent_run="", training_step=0)
    low, high = (np.array([getattr(s, end) for s in config.rig.signals]) for end in ("low", "high"))
    centre, half_range = 0.5 * (low + high), 0.5 * (high - low)
    session = PolicySession(model)
    largest = 0.0
    for state in standard_probes(contract, 0):
        session.observation[0] = state
        session.run()
        normalised = torch.tensor(((state - centre) / half_range)[None], dtype=torch.float32)
        with torch.no_grad():
            raw_action = nn.Sequential(*network)(normalised)[0].numpy()
        expected = [a.centre + a.half_range * w for a, w in zip(config.rig.actuators, raw_action, strict=True)]
        differences = [
            abs(x - y) / a.half_range for x, y, a in zip(session.action[0], expected, config.rig.actuators, strict=True)
        ]
        largest = max(largest, *differences)
    return largest


@pytest.mark.parametrize("make_layers", [ddpg_layers, ppo_layers])
@pytest.mark.parametrize("name", ["pendulum", "magman"])
def test_the_rig_computes_the_same_as_torch(name: str, make_layers: Callable[[int, int], list[nn.Module]]) -> None:
    config = load(name, [])
    network = make_layers(len(config.rig.signals), len(config.rig.actuators))
    model = export_network(config, network)
    assert max_difference(config, network, model) < 1e-5
    assert isinstance(admission_verdict(model, load(name, ["device.pace=lockstep"])), Admitted)


def test_onrig_policy_check_accepts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "third.onnx"
    path.write_bytes(export_network(CONFIG, ddpg_layers(2, 1)))
    assert onrig(["policy", "check", str(path), "pendulum"]) == 0
    assert "accepted: policy 1 of run 'elsewhere' after 0 training steps" in capsys.readouterr().out


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(ValueError, match="module 1, Softmax, is not supported"):
        export_network(CONFIG, [nn.Linear(2, 1), nn.Softmax(dim=1)])


class Agent(nn.Module):
    """The parts of a policy in Stable-Baselines3, by name."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for path, part in parts.items():
            module: nn.Module = self
            *folders, name = path.split("__")
            for folder in folders:
                if not hasattr(module, folder):
                    module.add_module(folder, nn.Module())
                module = getattr(module, folder)
            module.add_module(name, part)


def layer_names(network: list[nn.Module]) -> list[str]:
    return [type(module).__name__ for module in network]


def test_the_deciding_network_is_found_in_each_kind_of_policy() -> None:
    layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU())
    last_layer = nn.Linear(8, 1)
    tanh_network = nn.Sequential(*layers, last_layer, nn.Tanh())
    assert layer_names(actor_of(Agent(actor__mu=tanh_network))) == ["Linear", "ReLU", "Linear", "Tanh"]
    assert layer_names(actor_of(Agent(actor__latent_pi=layers, actor__mu=last_layer))) == [
        "Linear",
        "ReLU",
        "Linear",
        "Tanh",
    ]
    ppo = Agent(mlp_extractor__policy_net=layers, action_net=last_layer)
    assert layer_names(actor_of(ppo)) == ["Linear", "ReLU", "Linear", "Hardtanh"]


def test_a_lossy_conversion_is_refused() -> None:
    mu = nn.Sequential(nn.Linear(2, 1), nn.Tanh())
    with pytest.raises(ValueError, match="the feature extractor Linear has parameters"):
        actor_of(Agent(actor__mu=mu, actor__features_extractor=nn.Linear(2, 2)))
    noisy_agent = Agent(actor__mu=mu)
    object.__setattr__(noisy_agent, "use_sde", True)
    with pytest.raises(ValueError, match="use_sde"):
        actor_of(noisy_agent)


class Learner:
    """Learns nothing at first, then to push, which lifts the pendulum a little, and then forgets it."""

    def __init__(self, *, interrupted_at: int = 10_000) -> None:
        self.policy = Agent(actor__mu=nn.Sequential(nn.Linear(2, 1), nn.Tanh()))
        self.num_timesteps = 0
        self.interrupted_at = interrupted_at
        self.push(0.0)

    def push(self, gain: float) -> None:
        for weights in self.policy.parameters():
            nn.init.zeros_(weights)
        nn.init.constant_(list(self.policy.parameters())[1], gain)

    def learn(self, steps: int, *, reset_num_timesteps: bool) -> None:
        assert not reset_num_timesteps, "training would start over"
        self.num_timesteps += steps
        if self.num_timesteps >= self.interrupted_at:
            raise KeyboardInterrupt
        self.push(1.0 if self.num_timesteps == 4000 else 0.0)


def training_step(path: Path) -> int:
    (metadata,) = [p.value for p in onnx.load(str(path)).metadata_props if p.key == METADATA_KEY]
    step = msgspec.json.decode(metadata)["training_step"]
    assert isinstance(step, int)
    return step


def test_the_best_policy_is_kept_and_each_evaluation_has_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export_sb3, "agent_for", lambda *arguments: Learner())
    path = tmp_path / "p.onnx"
    assert export_sb3.main(["pendulum", str(path), "--steps", "7000"]) == 0
    assert training_step(path) == 4000
    *lines, last_line, check_line, evaluation = capsys.readouterr().out.splitlines()
    assert [line.split(" steps: normalized ")[0].strip() for line in lines] == ["0", "2000", "4000", "6000", "7000"]
    scores = [float(line.split("normalized ")[1].split(",")[0]) for line in lines]
    assert scores[2] > scores[0] == scores[1] == scores[3]
    assert [line.endswith(" s left") for line in lines] == [False, True, True, True, False]
    assert last_line == f"{path} contains the best policy.  Continue with:"
    assert onrig(check_line.split()[1:]) == 0
    capsys.readouterr()
    assert onrig([*evaluation.split()[1:], "--json"]) == 0
    normalised_score = msgspec.json.decode(capsys.readouterr().out)["summary"]["normalized"]
    assert normalised_score["mean"] == pytest.approx(scores[2], abs=5e-4)


def test_the_page_trains_with_options_that_exist() -> None:
    page = Path("docs/third-party-policies.md").read_text(encoding="utf-8")
    (words,) = [shlex.split(line, comments=True) for line in page.splitlines() if line.startswith("python -m")]
    assert words[:3] == ["python", "-m", export_sb3.__name__]
    assert export_sb3.parser().parse_args(words[3:]).steps > 0


def test_an_interrupted_training_keeps_the_best_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export_sb3, "agent_for", lambda *arguments: Learner(interrupted_at=6000))
    path = tmp_path / "p.onnx"
    assert export_sb3.main(["pendulum", str(path), "--steps", "8000"]) == 130
    assert training_step(path) == 4000
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(("algorithm", "has_noise"), [("td3", True), ("ppo", False)])
def test_an_agent_learns_at_the_scale_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, has_noise: bool
) -> None:
    sb3, noise = ModuleType("stable_baselines3"), ModuleType("stable_baselines3.common.noise")
    logger = ModuleType("stable_baselines3.common.logger")
    vars(logger)["Logger"] = lambda folder, formats: None
    vars(sb3)[algorithm.upper()] = lambda policy, env, **settings: SimpleNamespace(
        env=env, settings=settings, set_logger=lambda logger: None
    )
    vars(noise)["OrnsteinUhlenbeckActionNoise"] = lambda mean, sigma, **kwargs: (mean, sigma)
    for module in (sb3, ModuleType("stable_baselines3.common"), logger, noise):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    config = load("magman", ["learner.ddpg.gamma=0.9", "learner.ddpg.reward_scale=0.25"])
    agent = agent_for(config, algorithm, 3)
    assert agent.env.reward_scale == 0.25
    assert agent.settings["gamma"] == 0.9
    assert agent.settings["seed"] == 3
    assert ("action_noise" in agent.settings) == has_noise


def test_without_stable_baselines3_the_program_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_import(*arguments: object) -> None:
        raise ImportError("No module named 'stable_baselines3'")

    monkeypatch.setattr(export_sb3, "agent_for", fail_import)
    assert export_sb3.main(["pendulum", str(tmp_path / "p.onnx")]) == 3
    assert "pip install 'stable-baselines3" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_without_a_twin_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Path("configs/pendulum.yaml").read_text()
    path = tmp_path / "port.yaml"
    twin_start = config.index("  twin:")
    path.write_text(config[:twin_start] + "  port: {path: /dev/null}\n" + config[config.index("rate_hz") :])
    assert export_sb3.main([str(path), str(tmp_path / "p.onnx")]) == 2
    assert "uses a port: expected a twin to train on" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_policy_of_stable_baselines3_decides_the_same_on_the_rig(tmp_path: Path, algorithm: str) -> None:
    pytest.importorskip("stable_baselines3")
    path = tmp_path / "sb3.onnx"
    assert export_sb3.main(["pendulum", str(path), "--algorithm", algorithm]) == 0
    agent, session = agent_for(CONFIG, algorithm, 0), PolicySession(path.read_bytes())
    low, high = (np.array([getattr(s, end) for s in CONFIG.rig.signals]) for end in ("low", "high"))
    actuator = CONFIG.rig.actuators[0]
    for state in np.random.default_rng(0).uniform(low, high, (50, 2)):
        session.observation[0] = state
        session.run()
        normalised = ((state - 0.5 * (low + high)) / (0.5 * (high - low))).astype(np.float32)
        action, _ = agent.predict(normalised, deterministic=True)
        assert session.action[0, 0] == pytest.approx(actuator.centre + actuator.half_range * action[0], abs=1e-4)
