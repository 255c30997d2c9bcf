"""The second session that parameter noise acts with, built and warmed up between episodes."""

from __future__ import annotations

from typing import Final

from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.policy.refusal import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.run_state.report import report

_WARM_UPS: Final = 3


def perturbed_session(explorer: Explorer, policy: PolicySession | None) -> PolicySession | None:
    """Return the policy with this episode's noise on its weights; None where the episode asks for none.

    A policy that cannot be perturbed is told of, and the episode goes without.
    """
    if policy is None or not (explorer.perturbs and explorer.explores):
        return None
    try:
        session = PolicySession(explorer.perturb(policy.model))
    except ModelRefused as refusal:
        report("control", "warning", f"the policy cannot be explored with: {refusal}")
        return None
    session.warm_up(_WARM_UPS)
    return session
