"""From a spec to its cells: combinations, resolved values, and errors with their lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import msgspec
import pytest

from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.step_run import step_problems
from onrig.runtime.config.document import find_config, shipped_names
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.run_config import RunConfig
from onrig.sim.twin.options import TwinOptions
from onrig.tools.experiments.grid import expand_spec
from onrig.tools.experiments.spec import cell_id, equal_settings, load_spec
from onrig.tools.experiments.store import Cell
from tests.tools.experiments import specs
from tests.tools.experiments.specs import write_spec

SPEC_HEAD = "name: n\ntitle: T\ntrials: 2\nepisodes: 100\nblocks:\n"


def cells(folder: Path, blocks: str, spec_head: str = SPEC_HEAD) -> list[Cell]:
    return specs.cells(
        specs.write_spec(folder, spec_head + textwrap.indent(textwrap.dedent(blocks).lstrip("\n"), "  "))
    )


def problems(folder: Path, blocks: str, spec_head: str = SPEC_HEAD) -> list[str]:
    with pytest.raises(ConfigError) as error:
        cells(folder, blocks, spec_head)
    return [str(problem).removeprefix(f"{folder / 'small.yaml'}:") for problem in error.value.problems]


def learner(cell: Cell) -> LearnerSettings:
    return msgspec.convert(cell.config.learner, LearnerSettings)


def twin(cell: Cell) -> TwinOptions:
    return msgspec.convert(cell.config.device.twin, TwinOptions)


def test_a_block_gives_every_combination_with_its_label(tmp_path: Path) -> None:
    grid_cells = cells(
        tmp_path, "- {config: pendulum, grid: {strategy: ['FIFO[Uniform]', 'FULL[PER]'], rate_hz: [50, 100]}}"
    )
    assert [cell.label for cell in grid_cells] == [
        {"config": "pendulum", "strategy": strategy, "rate_hz": rate}
        for strategy in ("FIFO[Uniform]", "FULL[PER]")
        for rate in (50, 100)
    ]
    assert [(c.config.selection.strategy, c.config.rate_hz) for c in grid_cells][1] == ("FIFO[Uniform]", 100.0)
    assert len({cell.id for cell in grid_cells}) == 4
    assert all(cell.config.episodes == 100 for cell in grid_cells)


def test_updates_follow_from_a_reuse_of_eight(tmp_path: Path) -> None:
    grid_cells = cells(
        tmp_path,
        """
        - {config: magman, grid: {rate_hz: [25, 50, 200]}}
        - {config: magman, set: {rate_hz: 200, write_probability: 0.25}}
        - {config: magman, set: {learner.ddpg.batch: 64}}
        """,
    )
    assert [learner(cell).updates_per_episode for cell in grid_cells] == [50, 100, 400, 100, 25]


def test_explicit_updates_are_kept(tmp_path: Path) -> None:
    grid_cells = cells(tmp_path, "- {config: pendulum, grid: {learner.updates_per_episode: [7, 9]}}")
    assert [learner(cell).updates_per_episode for cell in grid_cells] == [7, 9]


def test_short_names_set_what_they_abbreviate(tmp_path: Path) -> None:
    (cell,) = cells(
        tmp_path,
        """
        - config: pendulum
          set: {noise: 0.02, network: ddpg_original, gamma: 0.9, per_alpha: 0.5, capacity: 500, write_probability: 0.5,
                synthetic_states: 0.1, synthetic_actions: 0.2, refresh: 0.3, strategy: "TDE(1)[PER]"}
        """,
    )
    assert (twin(cell).sensor_noise, twin(cell).actuator_noise) == (0.02, 0.02)
    assert (learner(cell).ddpg.network, learner(cell).dqn.network) == ("ddpg_original", "ddpg_original")
    assert (learner(cell).ddpg.gamma, learner(cell).per_alpha) == (0.9, 0.5)
    selection, synthetic = cell.config.selection, cell.config.selection.synthetic
    assert (selection.capacity, selection.write_probability, selection.strategy) == (500, 0.5, "TDE(1.0)[PER]")
    assert synthetic is not None
    assert (synthetic.states, synthetic.actions, synthetic.refresh) == (0.1, 0.2, 0.3)


def test_the_axis_alpha_fills_a_strategy(tmp_path: Path) -> None:
    grid_cells = cells(tmp_path, "- {config: pendulum, grid: {strategy: ['Expl({alpha})[PER]'], alpha: [0.5, 1]}}")
    assert [cell.config.selection.strategy for cell in grid_cells] == ["Expl(0.5)[PER]", "Expl(1.0)[PER]"]


def test_the_inertia_of_the_hardware_uses_its_own_references(tmp_path: Path) -> None:
    paper_cell, hardware_cell = cells(tmp_path, "- {config: pendulum, grid: {inertia: [paper, hardware]}}")
    assert (paper_cell.config.task.name, hardware_cell.config.task.name) == ("swingup", "swingup-hardware")
    assert (paper_cell.config.rig.name, hardware_cell.config.rig.name) == ("pendulum", "pendulum-hw")
    assert getattr(twin(hardware_cell).plant, "inertia", None) == "hardware"


def test_a_synthetic_fraction_of_zero_equals_no_synthetic_experiences(tmp_path: Path) -> None:
    (plain_cell,) = cells(tmp_path, "- config: pendulum")
    (zero,) = cells(tmp_path, "- {config: pendulum, set: {synthetic_states: 0}}")
    assert (zero.config.selection.synthetic, zero.id) == (None, plain_cell.id)


def test_a_block_overrides_the_spec(tmp_path: Path) -> None:
    spec_head = SPEC_HEAD.replace("blocks:", "set: {rate_hz: 20, noise: 0.01}\nblocks:")
    a, b = cells(tmp_path, "- config: pendulum\n- {config: pendulum, set: {rate_hz: 40}}", spec_head)
    assert (a.config.rate_hz, b.config.rate_hz) == (20, 40)
    assert (twin(a).sensor_noise, b.label) == (0.01, {"config": "pendulum", "rate_hz": 40})


def test_a_run_may_be_next_to_the_spec(tmp_path: Path) -> None:
    run_text = find_config("pendulum").read_text(encoding="utf-8").replace("rate_hz: 50", "rate_hz: 25")
    (tmp_path / "mine.yaml").write_text(run_text, encoding="utf-8")
    (cell,) = cells(tmp_path, "- config: ./mine.yaml")
    assert (cell.config.rate_hz, cell.label) == (25, {"config": "mine"})


def test_an_id_depends_on_the_differences_and_not_on_the_seed(tmp_path: Path) -> None:
    (cell,) = cells(tmp_path, "- config: pendulum")
    other = msgspec.structs.replace(cell.config, seed=5)
    assert cell_id(other) == cell.id
    assert equal_settings(other, cell.config)
    faster_config = msgspec.structs.replace(cell.config, rate_hz=60.0)
    assert cell_id(faster_config) != cell.id
    assert not equal_settings(faster_config, cell.config)


def test_an_id_survives_new_fields_with_defaults(tmp_path: Path) -> None:
    """A configuration written before ``learner.per_alpha`` was introduced belongs to the same cell."""
    (cell,) = cells(tmp_path, "- config: pendulum")
    older_learner = {name: value for name, value in cell.config.learner.items() if name != "per_alpha"}
    config = msgspec.structs.replace(cell.config, learner=older_learner)
    assert cell_id(config) == cell.id
    assert equal_settings(config, cell.config)


def test_runs_are_evaluated_after_every_episode_unlike_worlds(tmp_path: Path) -> None:
    text = "{name: a, title: A, trials: 1, episodes: 9, evaluation: {every: 7}, blocks: [{config: pendulum}]}"
    with pytest.raises(ConfigError, match="evaluated once per episode at evaluation"):
        load_spec(write_spec(tmp_path, text))


@pytest.mark.parametrize(
    ("block", "column_text", "message"),
    [
        ("{config: pendulum, grid: {strategi: [1]}}", "strategi", "unknown axis 'strategi' (did you mean 'strategy'?)"),
        ("{config: pendulum, grid: {rate_hz: []}}", "[]", "axis 'rate_hz' has no values"),
        ("{config: pendulum, grid: {rate_hz: [5, 50, 5.0]}}", "5.0", "axis 'rate_hz' has the value 5.0 twice"),
        ("{config: pendulum, grid: {strategy: [LIFO]}}", "LIFO", "'LIFO' is not of the form"),
        ("{config: pendulum, grid: {strategy: ['Best[PER]']}}", "'Best", "unknown retention 'Best'"),
        (
            "{config: pendulum, set: {strategy: 'FIFO[Uniform]'}, grid: {capacity: [100, 8]}}",
            "8]",
            "a memory of 8 experiences is smaller than a batch of 16",
        ),
        ("{config: pendulum, grid: {strategy: ['Expl({alpha})[PER]']}}", "'Expl", "'Expl({alpha})[PER]' has a place"),
        ("{config: pendulum, grid: {rate_hz: [0.01]}}", "0.01", "expected 0.1 to 10000"),
        ("{config: pendulum, grid: {learner.ddpg.tau: [much]}}", "much", "expected a number, such as 0.5, got 'much'"),
        ("{config: pendulum, grid: {learner.ddpg.gama: [0.9]}}", "0.9", "unknown field 'gama'"),
        ("{config: pendulum, grid: {alpha: [1, 2]}}", "{alpha", "the cell pendulum, alpha 2 is the same as pendulum,"),
        ("{config: pendulum, set: {seed: 3}}", "seed", "'seed' is set by the key 'first_seed'"),
        (
            "{config: pendulum, set: {capacity: 99}, grid: {selection.capacity: [50]}}",
            "selection",
            "'selection.capacity'",
        ),
        ("{config: pendulumm}", "pendulumm", "no 'pendulumm' (did you mean 'pendulum'?); shipped with Onrig:"),
        ("{config: pendulum, grids: {}}", "grids", "unknown field 'grids'"),
        (
            "{config: pendulum, set: {rate_hz: 50}}\n- {config: pendulum, set: {rate_hz: 50.0}}",
            "",
            "the cell pendulum,",
        ),
    ],
)
def test_an_impossible_grid_is_refused_at_its_line(tmp_path: Path, block: str, column_text: str, message: str) -> None:
    (problem,) = problems(tmp_path, f"- {block}")
    if "\n" in block:
        assert problem.startswith(f"7:5: {message}")
    else:
        assert problem.startswith(f"6:{f'  - {block}'.rindex(column_text) + 1}: {message}")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("trials: 2", "trials: 0", "3:9: expected 1 to 100000, got 0"),
        ("episodes: 100", "episodes: 0", "4:11: expected at least 1, got 0"),
        ("name: n", "name: a/b", "1:7: "),
        ("title: T\n", "title: T\ncolour: red\n", "3:1: unknown key 'colour'"),
        ("title: T\n", "", "1:1: missing required key 'title'"),
        ("title: T\n", "title: T\nfirst_seed: -1\n", "3:13: expected 0 to"),
    ],
)
def test_an_invalid_spec_is_refused_at_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    problem_lines = problems(tmp_path, "- config: pendulum", SPEC_HEAD.replace(old, new))
    assert any(line.startswith(expected) for line in problem_lines), problem_lines


def test_too_few_episodes_for_a_single_batch_are_refused(tmp_path: Path) -> None:
    spec_head = SPEC_HEAD.replace("episodes: 100", "episodes: 2\nset: {task.episode_s: 0.1, strategy: 'FIFO[Uniform]'}")
    assert problems(tmp_path, "- config: pendulum", spec_head) == [
        "4:11: 2 episodes of 5 steps do not fill a batch of 16 at episodes"
    ]


def test_problems_of_all_blocks_are_reported_at_once(tmp_path: Path) -> None:
    problem_lines = problems(
        tmp_path,
        "- {config: pendulum, grid: {strategy: [Y]}}\n- {config: magman, grid: {strategy: [X]}}",
    )
    assert [line.split(":")[0] for line in problem_lines] == ["6", "7"]


def test_settings_that_the_engine_cannot_run_are_reported_at_their_value(tmp_path: Path) -> None:
    def refuse_dqn(config: RunConfig, settings: LearnerSettings) -> list[str]:
        return ["no dqn today"] if settings.algorithm == "dqn" else []

    path = specs.write_spec(tmp_path, SPEC_HEAD + "  - {config: pendulum, grid: {algorithm: [ddpg, dqn]}}\n")
    with pytest.raises(ConfigError) as error:
        expand_spec(load_spec(path), refuse_dqn)
    assert str(error.value) == f"{path}:6:49: no dqn today"


def test_an_axis_over_all_algorithms_sets_the_option_of_each_cells_own(tmp_path: Path) -> None:
    grid_cells = cells(tmp_path, "- {config: pendulum, grid: {algorithm: [ddpg, td3], gamma: [0.9]}}")
    assert [learner(cell).algorithm_config.gamma for cell in grid_cells] == [0.9, 0.9]


def test_an_axis_that_the_algorithm_does_not_read_is_refused(tmp_path: Path) -> None:
    block = "- {config: pendulum, set: {algorithm: td3}, grid: {network: [small, ddpg_original]}}"
    (problem,) = problems(tmp_path, block)
    assert "'network' sets learner.td3.network, which does not exist" in problem


@pytest.mark.parametrize("name", shipped_names("experiments"))
def test_every_shipped_experiment_can_be_run(name: str) -> None:
    from onrig.learner.trials.supported import trials_problems

    file = load_spec(find_config(name, "experiments"))
    assert file.spec.name == name
    assert file.spec.figures or file.spec.steps
    expanded = expand_spec(
        file, trials_problems, lambda run: list(step_problems(run))
    )  # the tasks themselves may need an extra
    assert len(expanded) > 1
    for cell in expanded:
        is_from_paper = name.startswith(("figure-", "table-"))
        if is_from_paper and isinstance(cell, Cell) and cell.config.rig.name == "magman":
            assert learner(cell).ddpg.actor_lr == 1e-4, "the paper's"
            assert cell.config.learner["updates_per_episode"] == round(
                8 * 4 * cell.config.rate_hz * cell.config.selection.write_probability / 16
            )


def test_the_experiments_of_the_claims_have_enough_trials() -> None:
    for number in ("figure-3", "figure-12", "figure-13", "figure-14", "figure-15", "table-6"):
        full_spec, quick_spec = (load_spec(find_config(number + end, "experiments")).spec for end in ("", "-quick"))
        # At 200 Hz an episode takes four times the work.
        assert (full_spec.trials, quick_spec.trials, quick_spec.episodes) == (
            50,
            32,
            1000 if number == "figure-13" else 2000,
        )
        assert full_spec.episodes == (2000 if number == "figure-3" else 3000)
