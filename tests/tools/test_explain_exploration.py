from __future__ import annotations

import re
from pathlib import Path

import pytest

from onrig.tools.explain_exploration import exploration_tables, sample_points
from onrig.tools.explain_plot import exploration_rows, plot_explanation
from onrig.tools.load import load

GATED = (
    "{process: gaussian, std: 0.5, over: steps, "
    "amplitude: {current_1: [[0, 1], [50000, 0.5]], current_2: [[0, 1], [50000, 0.5]], current_3: [[0, 0.5]], "
    "current_4: [[0, 0]]}, near_envelope: {from: 0.4, floor: 0.1}, back_off: {clean_episodes: 7}, quiet: {every: 4}, "
    "budgets: {warn: 0.7, episode: {trips: 2}, hour: {energy_s: 900}, session: {wear_strokes: 1000000}}}"
)
"""Exploration settings for the magman."""


def text(name: str, *overrides: str) -> str:
    tables = exploration_tables(load(name, list(overrides)))
    return re.sub(" +", " ", "\n".join(map(str, tables)))


def test_schedules_of_several_actuators_are_listed_individually_in_their_units() -> None:
    explanation = text("magman", f"exploration={GATED}")
    assert (
        " step 0 1, 1, 0.5, 0 0.3 A^2 (current_1, current_2); 0.15 A^2 (current_3); 0 A^2 (current_4)\n" in explanation
    )
    assert " step 50000 0.5, 0.5, 0.5, 0 " in explanation
    assert (
        " u = 0.5 N(0,1), clipped to [-1, 1], then times the amplitude; u has std 0.5, 5 % of it is clipped\n"
        in explanation
    )
    assert " the last 1 of every 4 training episodes have no noise" in explanation


def test_gates_and_budgets_have_tables_if_configured() -> None:
    explanation = text("magman", f"exploration={GATED}")
    for line in (
        " near envelope 1 .. 0.1 from margin 0.4 down to 0, linear",
        " back-off 0.5, 0.25, 0.125, 0.1 after the first trip, the second, ...",
        " one step back after 7 noisy episodes without a trip",
        " trips 2 - - 200",
        " energy (s of full effort) - 900 - 16",
        " wear (full strokes) - - 1000000 800",
        " amplitude falls from 70 % from 70 % from 70 %",
        " once spent the episode ends pause until the budget allows pause until resumed by an operator",
    ):
        assert f"{line}\n" in f"{explanation}\n"
    plain_explanation = text("magman")
    assert "gate" not in plain_explanation
    assert "budget" not in plain_explanation


def test_budgets_apply_without_exploration_too_and_include_heat() -> None:
    temperature = "{sensor: angle, warn: 1, limit: 2, cool_s: 30}"
    explanation = text("pendulum", f"exploration={{process: none, budgets: {{temperature: {temperature}}}}}")
    assert " none the policy's action, unchanged" in explanation
    assert " temperature 'angle' 1 .. 2 rad 1 .. 2 rad 1 .. 2 rad at the limit: pause for 30 s" in explanation


def test_parameter_noise_is_described_by_its_distance_in_action_space() -> None:
    explanation = text("pendulum", "exploration={process: parameter}")
    assert "scaled so that the action deviates by 0.2 (rms, normalised): adapted by 1.01 every 50 steps" in explanation


def test_a_schedule_over_seconds_is_shown_over_the_training_time_of_the_run() -> None:
    config = load("pendulum", ["exploration.over=seconds", "exploration.amplitude=[[0, 1], [300, 0.5], [9000, 0.1]]"])
    assert config.exploration.__struct_config__.tag == "ou"
    assert sample_points(config, config.exploration) == [0.0, 300.0, 500.0, 1000.0, 1500.0, 2000.0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "exploration", "panels"),
    [
        ("pendulum", "{process: ou}", [1, 1]),
        ("pendulum", "{process: none}", []),
        ("pendulum", "{process: none, budgets: {hour: {trips: 3}}}", [1]),
        ("pendulum", "{process: parameter, back_off: {}}", [1, 1]),
        ("magman", GATED, [1, 1, 3]),
    ],
)
def test_the_plot_shows_what_exists(name: str, exploration: str, panels: list[int], tmp_path: Path) -> None:
    config = load(name, [f"exploration={exploration}"])
    assert [len(row.panels) for row in exploration_rows(config)] == panels
    assert plot_explanation(config, tmp_path / "plot.png")
