from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.config.document import find_config, shipped_names
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.settings import Selection
from onrig.runtime.memory.strategy import parse_strategy, required_bytes
from onrig.runtime.run_config import Scaled, capacity_of
from onrig.runtime.run_loading import load_resolved, load_run, save_resolved
from tests.runtime.samples import PENDULUM

RUN = """\
rig: {rig}
task: {task}
device:
  twin: {{}}
rate_hz: 50
episodes: 3
"""


def collect_problems(name: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_run(name, overrides)
    return [str(problem) for problem in error.value.problems]


@pytest.fixture
def local_run(tmp_path: Path) -> Path:
    """A run with its own rigs and tasks next to it."""
    (tmp_path / "rigs").mkdir()
    (tmp_path / "tasks").mkdir()
    rig = find_config("pendulum", "rigs").read_text().replace("name: pendulum", "name: mine")
    (tmp_path / "rigs" / "mine.yaml").write_text(rig)
    (tmp_path / "tasks" / "mine.yaml").write_text(find_config("swingup", "tasks").read_text())
    (tmp_path / "run.yaml").write_text(RUN.format(rig="mine", task="mine"))
    return tmp_path / "run.yaml"


# -- names -------------------------------------------------------------------------------------------------------------


def test_shipped_runs_rigs_and_tasks_are_found_by_name() -> None:
    assert {"pendulum", "magman"} <= set(shipped_names())
    assert {"pendulum", "pendulum-hardware", "magman"} <= set(shipped_names("rigs"))
    assert {"swingup", "swingup-hardware", "positioning"} <= set(shipped_names("tasks"))
    for folder in ("", "rigs", "tasks"):
        for name in shipped_names(folder):
            assert find_config(name, folder).is_file()


def test_an_unknown_run_is_reported_with_the_known_ones() -> None:
    (problem,) = collect_problems("pendulun")
    expected = "pendulun:1:1: no 'pendulun' (did you mean 'pendulum'?)"
    assert problem == f"{expected}; shipped with Onrig: {', '.join(shipped_names())}"


@pytest.mark.parametrize("name", ["nowhere.yaml", "folder/pendulum", "./x.yaml", ""])
def test_a_path_to_nothing_is_refused(name: str) -> None:
    (problem,) = collect_problems(name)
    assert ("no file" if name else "the name of the file is empty") in problem


@pytest.mark.parametrize("key", ["rig", "task"])
def test_an_unknown_rig_or_task_is_reported_where_it_is_named_with_the_known_ones(local_run: Path, key: str) -> None:
    names = {"rig": "mine", "task": "mine"} | {key: "yours"}
    local_run.write_text(RUN.format(**names))
    line = 1 if key == "rig" else 2
    known_names = ", ".join(shipped_names(f"{key}s"))
    column = len(key) + 3
    assert collect_problems(str(local_run)) == [
        f"{local_run}:{line}:{column}: no 'yours'; shipped with Onrig: {known_names} at {key}"
    ]


def test_rigs_and_tasks_next_to_the_run_precede_shipped_ones(local_run: Path) -> None:
    assert load_run(str(local_run)).rig.name == "mine"
    (local_run.parent / "rigs" / "pendulum.yaml").write_text((local_run.parent / "rigs" / "mine.yaml").read_text())
    local_run.write_text(RUN.format(rig="pendulum", task="swingup"))
    assert load_run(str(local_run)).rig.name == "mine"


def test_a_rig_may_be_named_by_a_path_relative_to_the_run(local_run: Path) -> None:
    local_run.write_text(RUN.format(rig="rigs/mine.yaml", task="mine"))
    assert load_run(str(local_run)).rig.name == "mine"


def test_a_rig_may_be_inlined_in_the_run(local_run: Path) -> None:
    config = load_run(str(local_run))
    save_resolved(config, local_run)
    assert load_run(str(local_run)) == config


# -- problems in their own files ---------------------------------------------------------------------------------------


def test_a_wrong_type_in_a_named_rig_is_reported_in_the_rigs_file(local_run: Path) -> None:
    rig = local_run.parent / "rigs" / "mine.yaml"
    rig.write_text(rig.read_text().replace("lease_periods: 5", "lease_periods: five"))
    (problem,) = collect_problems(str(local_run))
    line = rig.read_text().splitlines().index("lease_periods: five") + 1
    assert problem.startswith(f"{rig}:{line}:16: ")
    assert "expected a whole number, such as 10, got 'five'" in problem


def test_a_task_that_does_not_match_the_rig_is_reported_in_the_tasks_file(local_run: Path) -> None:
    task = local_run.parent / "tasks" / "mine.yaml"
    task.write_text(task.read_text().replace("folded: [angle]", "folded: [angel]"))
    (problem,) = collect_problems(str(local_run))
    text = task.read_text().splitlines()
    line = next(n for n, row in enumerate(text, 1) if "angel" in row)
    assert problem.startswith(f"{task}:{line}:{text[line - 1].index('angel') + 1}: ")
    assert "task.reward.folded[0]" in problem


def test_the_problems_of_all_files_and_sections_are_reported_together(local_run: Path) -> None:
    rig, task = local_run.parent / "rigs" / "mine.yaml", local_run.parent / "tasks" / "mine.yaml"
    rig.write_text(rig.read_text().replace("lease_periods: 5", "lease: 5"))
    task.write_text(task.read_text().replace("episode_s: 4.0", "episode_s: true"))
    local_run.write_text(local_run.read_text().replace("episodes: 3", "episodes: many\nsed: 1"))
    problems = collect_problems(str(local_run))
    assert [problem.split(":")[0] for problem in problems] == [str(rig), str(task), str(local_run), str(local_run)]
    assert "unknown key 'lease'" in problems[0]
    assert "unknown key 'sed' (did you mean 'seed'?)" in problems[3]


# -- overrides ---------------------------------------------------------------------------------------------------------


def test_overrides_reach_into_a_named_rig_and_task() -> None:
    config = load_run(
        "pendulum",
        ["rig.lease_periods=9", "task.reward.target.angle=1e-1", "rig.actuators[0].safe=0.05", "rate_hz=100"],
    )
    assert (config.rig.lease_periods, config.rate_hz) == (9, 100.0)
    assert config.task.reward.target["angle"] == 0.1
    assert config.rig.actuators[0].safe == 0.05
    assert load_run("pendulum").rig.lease_periods == 5, "nothing sticks"


@pytest.mark.parametrize("order", [1, -1])
def test_a_rig_can_be_replaced_and_changed_at_once_in_any_order(order: int) -> None:
    config = load_run("pendulum", ["rig=pendulum-hardware", "rig.lease_periods=3"][::order])
    assert (config.rig.name, config.rig.lease_periods) == ("pendulum-hw", 3)


def test_a_section_can_be_replaced_as_a_whole() -> None:
    config = load_run("pendulum", ["device.pace={scaled: 10}", "limits={}", "exploration={process: none}"])
    assert config.device.pace == Scaled(10.0)
    assert config.limits.envelope == {}
    assert (config.lockstep, config.wall_period_ns) == (False, 2_000_000)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rate_hz=fast", "expected a number, such as 0.5, got 'fast' at rate_hz"),
        ("rate_hz=0", "expected 0.1 to 10000, got 0 at rate_hz"),
        ("rig.lease_periods=0", "must be 1 to 255 at rig.lease_periods"),
        ("task.reward.folded=[angel]", "'angel' has no weight"),
        ("rig=nowhere", "no 'nowhere'"),
        ("rig", "expected PATH=VALUE"),
        ("rig.=1", "expected PATH=VALUE"),
        ("rig.actuators[3].low=1", "no item 3 to set"),
        ("ratehz=3", "unknown key 'ratehz' (did you mean 'rate_hz'?)"),
    ],
)
def test_a_problem_with_an_override_is_reported_at_the_override(override: str, message: str) -> None:
    problems = collect_problems("pendulum", override)
    assert any(t.startswith(f"--set {override}:1:1: ") and message in t for t in problems), problems


# -- resolved ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_names())
def test_a_resolved_run_loads_back_equal(name: str, tmp_path: Path) -> None:
    config = load_run(name)
    save_resolved(config, tmp_path / "config.yaml")
    reloaded = load_resolved(tmp_path / "config.yaml")
    assert reloaded == config
    save_resolved(reloaded, tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_bytes() == (tmp_path / "config.yaml").read_bytes()


def test_a_resolved_run_names_no_other_file(tmp_path: Path) -> None:
    save_resolved(PENDULUM, tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert "rig:\n  name: pendulum\n" in text
    assert "task:\n  name: swingup\n" in text


def test_a_resolved_run_is_checked_again(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    save_resolved(PENDULUM, path)
    path.write_text(path.read_text().replace("lease_periods: 5", "lease_periods: 0"))
    with pytest.raises(ConfigError, match="must be 1 to 255"):
        load_resolved(path)


@pytest.mark.parametrize(
    ("selection", "capacity"),
    [
        (Selection("FULL[Uniform]"), 100_000),
        (Selection("FULL[Uniform]", 120_000), 120_000),
        (Selection("FIFO[Uniform]"), 10_000),
        (Selection("FIFO[Uniform]", 77), 77),
        (Selection("FIFO[Uniform]", capacity_bytes=40 * 77 + 39), 77),
        (Selection("FULL[Uniform]", capacity_bytes=10**9), 100_000),
    ],
)
def test_the_capacity_is_the_requested_one_or_the_papers_or_that_of_the_complete_run(
    selection: Selection, capacity: int
) -> None:
    assert capacity_of(msgspec.structs.replace(PENDULUM, selection=selection)) == capacity


@pytest.mark.parametrize("strategy", ["FIFO[Uniform]", "Resv[Uniform]", "TDE(1.0)[PER]", "Expl(1.0)[PER]"])
@pytest.mark.parametrize("write_probability", [1.0, 0.5])
def test_a_capacity_in_bytes_leaves_room_for_data_other_than_the_rows(strategy: str, write_probability: float) -> None:
    selection = Selection(strategy, capacity_bytes=1_000_000, write_probability=write_probability)
    capacity = capacity_of(msgspec.structs.replace(PENDULUM, selection=selection))
    parsed = parse_strategy(strategy)
    required = required_bytes(parsed, capacity, Layout(2, 1), is_thinned=write_probability < 1)
    assert 1_000_000 - 100 < required <= 1_000_000
