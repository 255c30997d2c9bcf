"""Synthetic experiences: which experiences are replaced before they are stored, and how.

De Bruin et al. 2018, §6.2.1: "with a certain probability we make a change to an experience before it is written to the
buffer.  We change either the state or the action", drawn uniformly from the state or action space.  With a new state,
the action is the policy's action there, exploration included; s' and r then follow from the plant's model.

§6.3.1: "when a synthetic experience is about to be overwritten, we only sample a new synthetic experience with a
certain probability.  Otherwise, the experience is left unchanged."  Taken literally together with the rule above, the
fraction of synthetic experiences would grow to one with every pass through the buffer, or, read differently, still
depend on the refresh probability.  Here a write *renews* its slot with probability ``refresh``: the slot then receives
the offered experience, which is synthetic with probability f.  Otherwise a synthetic experience remains, and a measured
one is replaced by the measured one on offer.  The fraction is therefore always f, a synthetic experience survives a
write with probability 1 - refresh, as in the text, and refresh 1 gives exactly §6.2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.settings import Synthetic
from onrig.runtime.memory.transitions import ResynthesisedBatch, Transitions
from onrig.runtime.random_streams import Role, stream
from onrig.sim.synthetic.model import PlantModel

Policy = Callable[[NDArray[np.int64], NDArray[np.float32]], NDArray[np.floating]]
"""``policy(rows, observations)``: actions (k, m) at ``observations`` (k, n_obs) of the policies that acted in ``rows``
(k,) of the batch, all normalised.  Actions are NaN if a policy is not available."""


class Draws(NamedTuple):
    """Independent uniform numbers in [0, 1) for n transitions."""

    kind: NDArray[np.float64]
    """(n,): whether the transition is changed, and how."""
    renewal: NDArray[np.float64]
    """(n,): whether the transition may overwrite its slot."""
    state: NDArray[np.float64]
    """(n, n_obs)."""
    action: NDArray[np.float64]
    """(n, m)."""


def episode_draws(seed: int, episode: int, steps: int, n_obs: int, n_act: int) -> Draws:
    """Return the numbers for the ``steps`` transitions of one training episode, from the episode's own stream.

    They do not depend on the fractions: runs that differ only in their fractions draw the same states and actions.
    """
    numbers = stream(seed, Role.SYNTHETIC, episode).random((steps, 2 + n_obs + n_act))
    return Draws(numbers[:, 0], numbers[:, 1], numbers[:, 2 : 2 + n_obs], numbers[:, 2 + n_obs :])


def resynthesise(
    synthetic: Synthetic,
    model: PlantModel,
    measured_transitions: Transitions,
    draws: Draws,
    noise: NDArray[np.float64],
    policy: Policy,
) -> ResynthesisedBatch:
    """Replace a fraction of n transitions by synthetic ones (see the module docstring).

    ``noise`` (n, m) is the exploration signal of each transition's tick, in normalised units, before its sum with the
    policy's action was clipped.  States and actions are drawn from the rig's ranges, normalised to [-1, 1].  A
    synthetic transition is flagged, keeps the policy's id, counts neither as truncated nor as an intervention, and its
    exploration is the 1-norm of its action's distance from the policy's (de Bruin et al. 2018, §7.1.1), so that every
    keeper can rank it. If the result would be non-finite, the measured transition is kept.
    """
    may_overwrite = draws.renewal < synthetic.refresh
    rows = np.flatnonzero(draws.kind < synthetic.states + synthetic.actions)
    if not len(rows):
        return ResynthesisedBatch(measured_transitions, may_overwrite)
    has_new_state = (draws.kind[rows] < synthetic.states)[:, None]
    observation = np.where(has_new_state, 2.0 * draws.state[rows] - 1.0, measured_transitions.observation[rows]).astype(
        np.float32
    )
    policy_action = np.clip(policy(rows, observation), -1.0, 1.0)
    explored_action = np.clip(policy_action + noise[rows], -1.0, 1.0)
    action = np.where(has_new_state, explored_action, 2.0 * draws.action[rows] - 1.0).astype(np.float32)
    outcome = model(observation, action)
    exploration = np.abs(action - policy_action).sum(axis=1).astype(np.float32)
    is_finite = (
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
    replacements = {}
    for name, values in columns.items():
        column = getattr(measured_transitions, name).copy()
        column[rows[is_finite]] = values[is_finite]
        replacements[name] = column
    return ResynthesisedBatch(measured_transitions._replace(**replacements), may_overwrite)
