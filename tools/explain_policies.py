"""What the sections ``probation`` and ``staleness`` mean: how far a new policy is trusted, and a learner's silence."""

from __future__ import annotations

from onrig.runtime.control.staleness import expects_learner
from onrig.runtime.policy.probation import terms_of
from onrig.runtime.run_config import RunConfig
from onrig.tools.table import Table

_THEN = {
    "keep": "the run goes on under its last policy and says so",
    "lower": "exploration times {factor:g} from the next episode on",
    "fall_back": "the run stands safe between episodes until the learner is heard, {wait:g} s at most",
}


def policy_table(config: RunConfig) -> Table:
    """Probation of a new policy, then what a silent learner comes to."""
    return Table("policies", (), (*_probation(config), *_staleness(config)))


def _probation(config: RunConfig) -> tuple[tuple[str, str, str], ...]:
    terms = terms_of(config)
    if terms is None:
        return (("probation", "none", "a policy that was admitted acts until the next one does"),)
    slow = ("  too slow", "-", "in lockstep no policy is")
    if terms.slow_ns is not None:
        of = 100 * terms.slow_ns / config.wall_period_ns
        slow = (
            "  too slow",
            f"{terms.slow_ticks} ticks in a row",
            f"of {terms.slow_ns / 1e3:g} us, {of:g} % of the period",
        )
    excess = terms.excess_fallback
    fallback = f"{excess * terms.ticks:g} ticks more" if excess < 1 else "-"
    return (
        ("probation", f"{terms.ticks} ticks", "of a new policy, in which its predecessor takes over again after:"),
        ("  no number", "1 tick", "with an answer that is none, or not of the right shape"),
        slow,
        ("  fallback", fallback, f"in the fallback than under the predecessor, {100 * excess:g} %"),
    )


def _staleness(config: RunConfig) -> tuple[tuple[str, str, str], ...]:
    rules = config.staleness
    if not expects_learner(config):
        why = "in lockstep the loop waits for it" if config.lockstep else "none is expected"
        return (("silent learner", "-", why),)
    then = _THEN[rules.then].format(factor=rules.factor, wait=config.supervision.resume_timeout_s)
    return (("silent learner", f"{rules.after_s:g} s", then),)
