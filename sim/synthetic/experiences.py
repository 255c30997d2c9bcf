"""Synthetic experiences: which experiences are replaced before they are stored, and how.

De Bruin et al. 2018, §6.2.1: "with a certain probability we make a change to an experience before it is written to the
buffer.  We change either the state or the action", drawn uniformly from the state or action space; with a new state the
action is the policy's there, exploration included; then s' and r follow from the plant's model.

§6.3.1: "when a synthetic experience is about to be overwritten, we only sample a new synthetic experience with a
certain probability.  Otherwise, the experience is left unchanged."  Taken literally together with the rule above, the
fraction of synthetic experiences would grow to one with every pass through the buffer, or with other readings still
depend on the refresh probability.  Here a write *renews* its slot with probability ``refresh``: then what is offered,
synthetic with probability f, takes it.  Otherwise a synthetic experience remains, and a measured one gives way to
the measured one offered.  So the fraction is f at any time, a synthetic experience outlives a write with probability
1 - refresh, as in the text, and with refresh 1 this is exactly §6.2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.settings import Synthetic
from onrig.runtime.memory.transitions import Resynthesised, Transitions
from onrig.runtime.random_streams import Role, stream
from onrig.sim.synthetic.model import PlantModel

Policy = Callable[[NDArray[np.int64], NDArray[np.float32]], NDArray[np.floating]]
"""``policy(rows, observations)``: what the policies that acted in ``rows`` (k,) of the batch would do at
``observations`` (k, n_obs): (k, m).  All normalised; NaN where a policy is not to be had."""


class Draws(NamedTuple):
    """Independent uniform numbers over [0, 1) for n transitions."""

    kind: NDArray[np.float64]
    """(n,): whether the transition is changed, and how."""
    renewal: NDArray[np.float64]
    """(n,)."""
    state: NDArray[np.float64]
    """(n, n_obs)."""
    action: NDArray[np.float64]
    """(n, m)."""


def episode_draws(seed: int, episode: int, steps: int, n_obs: int, n_act: int) -> Draws:
    """Numbers for the ``steps`` transitions of one training episode, from a stream of its own.

    The same whatever the fractions: runs that differ only in those draw the same states and actions.
    """
    numbers = stream(seed, Role.SYNTHETIC, episode).random((steps, 2 + n_obs + n_act))
    return Draws(numbers[:, 0], numbers[:, 1], numbers[:, 2 : 2 + n_obs], numbers[:, 2 + n_obs :])


def resynthesise(
    synthetic: Synthetic,
    model: PlantModel,
    measured: Transitions,
    draws: Draws,
    noise: NDArray[np.float64],
    policy: Policy,
) -> Resynthesised:
    """Replace a fraction of n transitions by synthetic ones (see the module's text).

    ``noise`` (n, m) is the exploration signal of each transition's tick, in normalised units and as it was before the
    sum with the policy's action was clipped.  The spaces drawn from are the ranges of the rig, [-1, 1] normalised.  A
    synthetic transition is flagged, keeps the policy's id, is neither truncated nor intervened in, and its exploration
    is the 1-norm of its action's distance from the policy's (de Bruin et al. 2018, §7.1.1), so that every keeper can
    rank it.  Where the result would not be finite, the measured transition is kept.
    """
    renews = draws.renewal < synthetic.refresh
    rows = np.flatnonzero(draws.kind < synthetic.states + synthetic.actions)
    if not len(rows):
        return Resynthesised(measured, renews)
    new_state = (draws.kind[rows] < synthetic.states)[:, None]
    observation = np.where(new_state, 2.0 * draws.state[rows] - 1.0, measured.observation[rows]).astype(np.float32)
    intended = np.clip(policy(rows, observation), -1.0, 1.0)
    explored = np.clip(intended + noise[rows], -1.0, 1.0)
    action = np.where(new_state, explored, 2.0 * draws.action[rows] - 1.0).astype(np.float32)
    outcome = model(observation, action)
    exploration = np.abs(action - intended).sum(axis=1).astype(np.float32)
    finite = (
        np.isfinite(action).all(axis=1)
        & np.isfinite(outcome.next_observation).all(axis=1)
        & np.isfinite(outcome.reward)
        & np.isfinite(exploration)
    )
    flags = int(Flag.SYNTHETIC) + int(Flag.TERMINATED) * outcome.terminated
    columns = {
        "observation": observation,
        "action": action,
        "reward": outcome.reward,
        "next_observation": outcome.next_observation,
        "flags": flags.astype(np.uint32),
        "exploration": exploration,
    }
    altered = {}
    for name, values in columns.items():
        column = getattr(measured, name).copy()
        column[rows[finite]] = values[finite]
        altered[name] = column
    return Resynthesised(measured._replace(**altered), renews)
