"""SAC of Stable-Baselines3 on a rig, behind its shield: python sb3_sac.py [CONFIG [STEPS [PACE [RUN_FOLDER]]]]."""

import sys

import gymnasium
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

import onrig


class Lateness(BaseCallback):
    """Callback that counts the steps in which the action of the previous period was held."""

    held = 0

    def _on_step(self) -> bool:
        self.held += self.locals["infos"][0]["held"]
        return True


def main(config: str = "pendulum", steps: int = 20_000, pace: str = "realtime", folder: str | None = None) -> float:
    """Train; return the mean reward per step of a final episode without noise."""
    torch.set_num_threads(1)  # networks this small gain nothing from more, and the loop needs a core
    env = onrig.make(config, pace=pace, run_dir=folder)
    scaled = gymnasium.wrappers.TransformReward(
        env, lambda reward: 1e-3 * reward
    )  # the pendulum's are near -150 a step
    agent = SAC(
        "MlpPolicy", scaled, learning_rate=1e-3, batch_size=64, gamma=0.98, tau=0.01, ent_coef=0.02,
        learning_starts=min(1000, steps // 2), policy_kwargs={"net_arch": [64, 64]}, seed=0,
    )  # fmt: skip
    counted = Lateness()
    agent.learn(steps, callback=counted, log_interval=None)
    rewards, over = [], False
    observation, _ = env.reset()
    while not over:
        action, _ = agent.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        over = terminated or truncated
    env.close()
    mean = sum(rewards) / len(rewards)
    print(f"{steps} steps, {counted.held} late actions; mean reward {mean:.1f}; run folder: {env.run_dir}")
    return mean


if __name__ == "__main__":
    arguments = dict(zip(("config", "steps", "pace", "folder"), sys.argv[1:], strict=False))
    main(**{**arguments, "steps": int(arguments.get("steps", 20_000))})
