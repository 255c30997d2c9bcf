"""SAC of Stable-Baselines3 on a rig, behind its shield: sb3_sac.py [CONFIG [STEPS [PACE [RUN_FOLDER [SEED]]]]]."""

import sys
import time

import gymnasium
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

import onrig

EVALUATIONS = 5
UPDATES = 2  # per step; on a slower computer use one, with a learning rate of 2e-3


class Progress(BaseCallback):
    """Callback that prints a line per episode, and counts the steps in which the previous action was held."""

    held, total, began_s = 0, 0.0, time.monotonic()

    def _on_step(self) -> bool:
        info, done = self.locals["infos"][0], self.locals["dones"][0]
        self.held += info["held"]
        if done:
            steps, last = self.num_timesteps, self.locals["total_timesteps"]
            left_s = (time.monotonic() - self.began_s) / steps * (last - steps)
            mean = info["episode"]["r"] / info["episode"]["l"]
            print(f"step {steps} of {last}: mean reward {1e3 * mean:.1f}, {self.held} late, {left_s:.0f} s left")
        return True


def main(config: str = "pendulum", steps: int = 20_000, pace: str = "realtime", folder: str | None = None, seed=0):
    """Train; return the normalised performance of final episodes without noise."""
    torch.set_num_threads(1)  # networks this small gain nothing from more, and the loop needs a core
    env = onrig.make(config, pace=pace, run_dir=folder)
    # The pendulum's rewards are near -150 per step.
    scaled = gymnasium.wrappers.TransformReward(env, lambda reward: 1e-3 * reward)
    networks = {"net_arch": [64, 64], "optimizer_kwargs": {"fused": True}}  # fused: a quarter less time per update
    agent = SAC(
        "MlpPolicy", scaled, learning_rate=1e-3, batch_size=128, gamma=0.97, tau=0.01, ent_coef=0.01,
        gradient_steps=UPDATES, learning_starts=min(500, steps // 2), policy_kwargs=networks, seed=seed,
    )  # fmt: skip
    agent.learn(steps, callback=Progress(), log_interval=None)
    for _ in range(EVALUATIONS):
        observation, _ = env.reset()
        over = False
        while not over:
            action, _ = agent.predict(observation, deterministic=True)
            observation, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
    env.close()
    scores = onrig.open_run(env.run_dir).episodes["normalized"][-EVALUATIONS:]
    print(f"normalised performance {scores.mean():.3f} (0 random, 1 reference); run folder: {env.run_dir}")
    return scores


if __name__ == "__main__":
    arguments = dict(zip(("config", "steps", "pace", "folder", "seed"), sys.argv[1:], strict=False))
    main(**{**arguments, "steps": int(arguments.get("steps", 20_000)), "seed": int(arguments.get("seed", 0))})
