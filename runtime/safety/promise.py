"""The promise of a rig in one word, the same wherever it is shown, with one sentence that explains it.

``runtime/SAFETY.md`` lists the assumptions behind each promise.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from onrig.runtime.safety.barrier_file import BarrierTest
    from onrig.runtime.safety.limits import Limits


class Basis(enum.StrEnum):
    """Basis of the shield's limits, from the strongest to none."""

    PROVED = "proved"
    SAMPLED = "sampled"
    MEASURED = "measured"
    NONE = "none"

    @property
    def has_plants(self) -> bool:
        """Whether the promise covers stated plants, with which the rig's data can be compared."""
        return self in (Basis.PROVED, Basis.SAMPLED)


_SENTENCE_BY_BASIS: Final = {
    Basis.PROVED: "for every plant of the stated box and every policy, the velocity provably stays inside its "
    "envelope, even if the host dies",
    Basis.SAMPLED: "plants drawn from the stated uncertainty stay inside the envelope, even if the host dies, "
    "according to a table computed from some of them and tested on others",
    Basis.MEASURED: "the fallback acts once the measured state has left the envelope; how far it goes beyond is not "
    "known in advance",
    Basis.NONE: "no envelope: only the bounds on commands, the device's limits and its lease guard this rig",
}


class Promise(NamedTuple):
    """Promise of a rig: its basis in one word, and a sentence that explains it."""

    basis: Basis
    sentence: str

    def __str__(self) -> str:
        return f"{self.basis}: {self.sentence}"


def promise_of(limits: Limits) -> Promise:
    """Return the promise of a configuration's limits; with a table, the sentence includes its numbers.

    A family of plants without a ``promise`` has the promise of a measured envelope.
    """
    if not limits.envelope:
        return Promise(Basis.NONE, _SENTENCE_BY_BASIS[Basis.NONE])
    box = limits.predicted
    basis = Basis.MEASURED if box is None else Basis(getattr(box, "promise", Basis.MEASURED))
    sentence = _SENTENCE_BY_BASIS[basis]
    if basis is Basis.SAMPLED and (figures := _table_figures(box)):
        sentence = f"{sentence} ({figures})"
    return Promise(basis, sentence)


def promise_fields(limits: Limits) -> dict[str, str]:
    """Return the promise for ``meta.json``, including the hash of its table if it has one."""
    promise = promise_of(limits)
    table = getattr(limits.predicted, "sha256", None)
    fields: dict[str, str] = {"word": promise.basis, "sentence": promise.sentence}
    return {**fields, **({"table_sha256": table} if isinstance(table, str) else {})}


def _table_figures(box: object) -> str:
    """Return a table's counts, bound and confidence as text; empty if it cannot be read, as on a different machine."""
    try:
        header = box.barrier().header  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return ""
    description = f"{header.plants} plants on {header.points} states, {header.horizon_s:g} s ahead"
    test = header.tested
    if test is None:
        return f"{description}; not tested"
    return f"{description}; {test.breaches} of {test.plants} other plants breached it: {format_bound(test)}"


def format_bound(test: BarrierTest) -> str:
    """Return a sentence about the bound on the rate of breaches, rounded up."""
    step = 10.0 ** (math.floor(math.log10(test.rate)) - 1)
    percent = 100.0 * math.ceil(test.rate / step - 1e-9) * step
    return f"at most {percent:.4g} % of hostile episodes breach it, at {100.0 * test.confidence:g} % confidence"
