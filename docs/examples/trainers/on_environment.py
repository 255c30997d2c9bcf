"""TD3 on a rig's environment, in CleanRL's style: python on_environment.py [CONFIG [STEPS [PACE [RUN_FOLDER]]]]."""

import sys

import numpy as np
from td3 import Td3

import onrig

BATCH, FIRST = 64, 500


def main(config="pendulum", steps=20_000, pace="lockstep", folder=None):
    """Train with one update per step; return the undiscounted return of each episode."""
    env = onrig.make(config, pace=pace, run_dir=folder)
    n, m = env.observation_space.shape[0], env.action_space.shape[0]
    agent, rng = Td3(n, m), np.random.default_rng(0)
    memory = [np.zeros((steps, width), np.float32) for width in (n, m, 1, n, 1)]
    returns, total = [], 0.0
    observation, _ = env.reset()
    for k in range(steps):
        action = agent.act(observation, noise=0.3) if k >= FIRST else env.action_space.sample()
        after, reward, terminated, truncated, info = env.step(action)
        # Learn from the applied action: the shield may change a command, and commands take effect late.
        applied = env.normalised_action(info["applied"])
        for array, row in zip(memory, (observation, applied, reward, after, terminated), strict=True):
            array[k] = row
        observation, total = after, total + reward
        if terminated or truncated:
            returns.append(total)
            print(f"step {k + 1}: return {total:.0f}")
            observation, total = env.reset()[0], 0.0
        if k >= BATCH:
            at = rng.integers(k + 1, size=BATCH)
            s, a, r, then, over = (array[at] for array in memory)
            agent.update(s, a, r[:, 0], then, over[:, 0])
    env.close()
    return returns


if __name__ == "__main__":
    arguments = dict(zip(("config", "steps", "pace", "folder"), sys.argv[1:], strict=False))
    main(**{**arguments, "steps": int(arguments.get("steps", 20_000))})
