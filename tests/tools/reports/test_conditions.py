from __future__ import annotations

import msgspec

from onrig.tools.experiments.store import Cell
from onrig.tools.reports.conditions import (
    Value,
    cell_setups,
    describe_common,
    describe_conditions,
    group_by_axes,
    varying_conditions,
)
from tests.tools.reports.synthetic import cell, noise


def words(cells: list[Cell]) -> list[str]:
    setups = cell_setups(cells)
    axes = varying_conditions(setups)
    return [describe_conditions(axes, [s.conditions[axis] for axis in axes]) for s in setups]


def test_conditions_are_read_from_the_configuration_and_named_where_they_vary() -> None:
    cells = [
        cell("pendulum", strategy="FIFO[Uniform]"),
        cell("magman", *noise(0.02), strategy="FIFO[Uniform]"),
        cell("pendulum", "rate_hz=100", "selection.write_probability=0.5", strategy="FIFO[Uniform]"),
        cell("pendulum", "rate_hz=100", "learner.ddpg.gamma=0.9747", strategy="FIFO[Uniform]"),
        cell("pendulum", "selection.synthetic={actions: 0.25, refresh: 0.5}", strategy="FIFO[Uniform]"),
        cell("pendulum", "selection.capacity=20000", "learner.algorithm=dqn", strategy="FIFO[Uniform]"),
        cell("pendulum", "learner.ddpg.network=ddpg_original", strategy="FIFO[Uniform]"),
    ]
    base_text = "small network, 50 Hz"
    rest_text = "σ = 0, nothing synthetic, capacity 10\u2009000"
    small_text = "σ = 0, nothing synthetic, capacity 20\u2009000"
    assert words(cells) == [
        f"pendulum, DDPG, {base_text}, {rest_text}",
        f"magman, DDPG, {base_text}, σ = 0.02, nothing synthetic, capacity 10\u2009000",
        f"pendulum, DDPG, small network, 100 Hz, γ 0.95, [DE], {rest_text}",
        f"pendulum, DDPG, small network, 100 Hz, γ corrected, all kept, {rest_text}",
        f"pendulum, DDPG, {base_text}, σ = 0, 25% synthetic actions, capacity 10\u2009000",
        f"pendulum, DQN, {base_text}, {small_text}",
        f"pendulum, DDPG, ddpg_original network, 50 Hz, {rest_text}",
    ]


def test_the_capacity_of_full_does_not_exclude_it_from_comparisons() -> None:
    setups = cell_setups([cell(strategy="FIFO[Uniform]"), cell(strategy="FULL[Uniform]")])
    assert varying_conditions(setups) == []
    assert setups[1].conditions["capacity"] is None


def test_exponents_are_part_of_the_strategy_and_shown_where_there_are_several() -> None:
    cells = [
        cell(strategy="Expl(1.0)[PER]"),
        cell("pendulum", "learner.per_alpha=0.4", strategy="FIFO[PER+IS]"),
        cell(strategy="TDE(1.2)[Uniform]"),
    ]
    setups = cell_setups(cells)
    assert [s.strategy for s in setups] == ["Expl(1)[PER(0.7)]", "FIFO[PER(0.4)+IS]", "TDE(1.2)[Uniform]"]
    assert [s.family for s in setups] == ["Expl(α)[PER]", "FIFO[PER+IS]", "TDE(α)[Uniform]"]
    assert [(s.alpha, s.exponent) for s in setups] == [(1.0, 0.7), (None, 0.4), (1.2, None)]
    assert cell_setups(cells[:1])[0].strategy == "Expl(1)[PER]"


def test_any_sampling_with_an_exponent_shows_it_where_there_are_several() -> None:
    cells = [
        cell("pendulum", f"learner.prop_per={{alpha: {alpha}}}", strategy="FIFO[PropPER+IS]") for alpha in (0.4, 0.6)
    ]
    setups = cell_setups([*cells, cell(strategy="FIFO[PER]")])
    assert [s.strategy for s in setups] == ["FIFO[PropPER(0.4)+IS]", "FIFO[PropPER(0.6)+IS]", "FIFO[PER]"]
    assert [s.exponent for s in setups] == [0.4, 0.6, None]


def test_an_unknown_axis_distinguishes_cells_by_its_label() -> None:
    setups = [(tau, cell("pendulum", f"learner.ddpg.tau={tau}", strategy="FIFO[Uniform]")) for tau in (0.01, 0.02)]
    cells = [
        msgspec.structs.replace(trial_cell, label={**trial_cell.label, "learner.ddpg.tau": tau})
        for tau, trial_cell in setups
    ]
    assert words(cells) == ["learner.ddpg.tau 0.01", "learner.ddpg.tau 0.02"]


def test_cells_that_differ_in_more_than_their_strategy_are_not_compared_by_strategy_alone() -> None:
    slow_cell = cell("pendulum", "learner.ddpg.actor_lr=1e-4", strategy="FIFO[Uniform]")
    fast_cell = cell("pendulum", "learner.ddpg.actor_lr=1e-3", strategy="FULL[Uniform]")
    cells = [
        msgspec.structs.replace(
            trial_cell, label={**trial_cell.label, "learner.ddpg.actor_lr": lr, "capacity": capacity}
        )
        for trial_cell, lr, capacity in ((slow_cell, 1e-4, 10000), (fast_cell, 1e-3, 20000))
    ]
    assert words(cells) == ["learner.ddpg.actor_lr 0.0001", "learner.ddpg.actor_lr 0.001"]


def test_a_condition_undefined_for_a_cell_joins_every_group() -> None:
    items: list[tuple[dict[str, Value], str]] = [
        ({"capacity": 5.0, "noise": 0.0}, "small"),
        ({"capacity": None, "noise": 0.0}, "full"),
        ({"capacity": 9.0, "noise": 0.0}, "large"),
        ({"capacity": None, "noise": 1.0}, "noisy"),
    ]
    assert group_by_axes(items, ["capacity", "noise"]) == {
        (5.0, 0.0): ["small", "full"],
        (9.0, 0.0): ["full", "large"],
        (None, 1.0): ["noisy"],
    }


def test_shared_conditions_are_named_if_worth_naming() -> None:
    assert describe_common(cell_setups([cell(strategy="FIFO[Uniform]")])) == "pendulum, DDPG, small network, 50 Hz"
    noisy_cells = [cell(c, *noise(0.02), strategy="FIFO[Uniform]") for c in ("pendulum", "magman")]
    assert describe_common(cell_setups(noisy_cells)) == "DDPG, small network, 50 Hz, σ = 0.02"
