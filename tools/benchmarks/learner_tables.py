"""What ``onrig bench learner`` prints: rates beside the peer's, and how near they come to the machine's limit."""

from __future__ import annotations

from collections.abc import Iterable

from onrig.tools.benchmarks.learner_cases import LARGE, LIMIT, ONRIG, PEER, LearnerCase, Work
from onrig.tools.benchmarks.learner_figures import Rates, Share, share, times_faster
from onrig.tools.benchmarks.table import aligned, number


def rates_table(rates: Rates) -> str:
    """Set out trial-updates per second, the peer's single trial beside each."""
    rows = [["trial-updates per s", "onrig p50", "p99", "max", PEER, "times its rate"]]
    for case in _ours(rates):
        ours = rates[case, ONRIG]
        theirs = rates.get((LearnerCase(case.work, case.network, case.shape, 1), PEER))
        ratio = times_faster(rates, case)
        in_order = sorted(ours.all)
        rows.append(
            [
                case.title,
                number(ours.p50),
                number(in_order[int(0.99 * (len(in_order) - 1))]),
                number(in_order[-1]),
                "" if theirs is None else number(theirs.p50),
                "" if ratio is None else f"{ratio:.1f}x",
            ]
        )
    return aligned(rows)


def limit_table(rates: Rates) -> str:
    """Set out the floating-point operations of an update and the rate they are done at, beside bare products."""
    rows = [["matrix products", "Mflop", "padded", "Gflop/s", "of those alone", "", f"of {LARGE} x {LARGE}", ""]]
    for case, near in _shares(rates):
        bare = rates[LearnerCase(Work.PRODUCTS, case.network, case.shape, case.trials), LIMIT].p50
        large = rates[LearnerCase(Work.LARGE, case.network, case.shape, 1), LIMIT].p50
        own = [number(x) for x in (near.mega_flop, near.padded_mega_flop, near.gflop_per_s)]
        rows.append([case.title, *own, number(bare), f"{near.of_products:.0%}", number(large), f"{near.of_large:.0%}"])
    return aligned(rows)


def limit_sentence(rates: Rates) -> str | None:
    """Say how far the update of the most trials is from the machine's limit; None where it was not measured."""
    shares = _shares(rates)
    if not shares:
        return None
    case, near = max(shares, key=lambda found: found[0].trials)
    bare_size = near.of_large * near.mega_flop / near.padded_mega_flop
    return (
        f"{case.title}: the matrix products run at {near.gflop_per_s:.1f} Gflop/s, {near.of_large:.0%} of what one of "
        f"{LARGE} x {LARGE} reaches on this core ({bare_size:.0%} when padding does not count) and "
        f"{near.of_products:.0%} of what the same small products alone reach"
    )


def _shares(rates: Rates) -> list[tuple[LearnerCase, Share]]:
    updates = [case for case in _ours(rates) if case.work is Work.UPDATE]
    return [(case, near) for case in updates if (near := share(rates, case)) is not None]


def _ours(rates: Rates) -> Iterable[LearnerCase]:
    return [case for case, subject in rates if subject == ONRIG]
