"""SAC on a rig's memory, at its own speed: python on_link.py ENDPOINT [KEYS]; the rig is started with
onrig run pendulum --set local_learner=false --set device.pace=realtime."""

import sys

import numpy as np
from sac import Sac

import onrig

BATCH, PORTION, EVERY = 64, 50, 500


def main(endpoint, keys=None, most=float("inf")):
    """Learn until the run ends, or for ``most`` updates; return the verdicts on the policies offered."""
    verdicts, rng = [], np.random.default_rng(0)
    with onrig.connect(endpoint, keys) as rig:
        agent = Sac(len(rig.config.signals), len(rig.config.rig.actuators))
        verdicts.append(rig.offer(agent.actor))  # the rig does not move until a policy is admitted
        rig.done(0, 0)
        while agent.updates < most:
            news = rig.pull(wait_s=0.0 if rig.stored >= BATCH else 0.2)
            if news.ending:
                break
            for ruling in news.rulings:
                print(f"policy {ruling.policy_id}: {ruling.verdict} {ruling.reason}")
            if rig.stored < BATCH:
                continue
            for _ in range(PORTION):
                e = rig.sample(BATCH, rng)
                errors = agent.update(e.observation, e.action, e.reward, e.next_observation, e.terminated)
            rig.feedback(e, {"td": errors})
            rig.done(news.closed, agent.updates)
            if agent.updates % EVERY == 0:
                verdicts.append(rig.offer(agent.actor, agent.updates))
                print(f"{agent.updates} updates on {rig.stored} experiences: {verdicts[-1]}")
    return verdicts


if __name__ == "__main__":
    main(*sys.argv[1:])
