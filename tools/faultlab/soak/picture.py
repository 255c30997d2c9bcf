"""The picture of a soak: memory of every process over time, and the faults that came meanwhile."""

from __future__ import annotations

from pathlib import Path

from onrig.tools.faultlab.gauges import Gauges
from onrig.tools.faultlab.soak.ledger import Ledger, by_kind
from onrig.tools.faultlab.soak.plan import NATURES, Place

_COLOURS = {Place.SERIAL: "tab:red", Place.NETWORK: "tab:blue", Place.PROCESS: "tab:purple"}


def draw(path: Path, ledger: Ledger, gauges: Gauges, offset_s: float) -> bool:
    """Draw to ``path``; ``offset_s`` is when faults began to count, on the gauges' clock.

    False where matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    roles, groups = gauges.roles, by_kind(ledger.happenings)
    figure, axes = plt.subplots(
        len(roles) + 1,
        1,
        sharex=True,
        figsize=(11, 1.1 * len(roles) + 1.2 + 0.24 * len(groups)),
        height_ratios=[1.0] * len(roles) + [0.8 + 0.24 * len(groups)],
        layout="constrained",
    )
    for axis, role in zip(axes, roles, strict=False):
        for one in gauges.of(role):
            axis.plot(one.times_s, one.private_mb, lw=1.2, color="tab:green")
            axis.plot(one.times_s[:1], one.private_mb[:1], marker="|", color="0.2", ms=9)
        slope = ledger.memory.get(role)
        told = f"{role}, MB" if slope is None else f"{role}, MB ({slope.per_minute:+.2f}/min)"
        axis.set_title(told, loc="left", fontsize=9, pad=2)
        low, high = axis.get_ylim()
        if high - low < 4:  # a page more or less is to look like what it is
            axis.set_ylim((low + high) / 2 - 2, (low + high) / 2 + 2)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=8)
    events = axes[-1]
    for y, (kind, group) in enumerate(groups.items()):
        colour = _COLOURS[NATURES[kind].place]
        for h in group:
            over_s = h.recovered_s if h.recovered_s is not None else 0.0
            x = h.at_s + offset_s
            events.plot([x, x + over_s], [y, y], color=colour, lw=3, solid_capstyle="butt", alpha=0.5)
            events.plot([x], [y], marker="x" if h.ended_run else "o", color=colour, ms=5 if h.ended_run else 3.5)
            if h.recovered_s is None:
                events.plot([x], [y], marker="s", color="k", ms=8, fillstyle="none")
    events.set_yticks(range(len(groups)), [k.value for k in groups], fontsize=8)
    events.invert_yaxis()
    events.grid(alpha=0.3, axis="x")
    events.set_xlabel("time (s); bars: until the fault was over; crosses: faults that ended the run")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True
