"""Candidates are recipes that their configuration accepts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.config.document import find_config
from onrig.runtime.run_config import capacity_of
from onrig.tools.advice.candidates import UNCHANGED_NAME, candidates, mutants
from onrig.tools.advice.field import Subject, enter_candidates, spec_of
from onrig.tools.experiments.grid import expand_spec
from onrig.tools.experiments.spec import load_spec
from onrig.tools.load import load


def write_changed_pendulum(folder: Path, old: str, new: str) -> Subject:
    """The shipped pendulum, changed in a file of its own: command-line settings apply to every candidate."""
    text = find_config("pendulum").read_text()
    assert old in text
    (folder / "run.yaml").write_text(text.replace(old, new))
    return Subject(str(folder / "run.yaml"), ())


N_PLANTS = {"gravity_per_s2": (20.0, 30.0), "damping_per_s": (0.3, 0.4), "gain_per_v_s2": (5.0, 7.0)}


@pytest.mark.parametrize("name", ["pendulum", "magman", "pendulum-hidden"])
def test_every_candidate_of_a_shipped_run_can_race(name: str, tmp_path: Path) -> None:
    all_candidates = list(candidates(load(name)))
    field = enter_candidates(Subject(name, ()), tmp_path, {}, all_candidates)
    assert not field.refusal_reasons
    assert [*field.entrants] == [candidate.name for candidate in all_candidates]
    assert len(all_candidates) >= 10
    networks = {str(entry.config.learner.get("algorithm")) for entry in field.entrants.values()}
    assert networks == {"ddpg", "td3", "sac", "vracer"}


@pytest.mark.parametrize(("episodes", "has_droq"), [(125, True), (126, False)])
def test_many_updates_per_step_are_raced_in_runs_of_few_steps(episodes: int, has_droq: bool, tmp_path: Path) -> None:
    subject = Subject("pendulum", (f"episodes={episodes}",))
    entrants = enter_candidates(subject, tmp_path, {}, candidates(load(*subject))).entrants
    assert ("DroQ" in entrants) == has_droq
    if has_droq:
        assert entrants["DroQ"].config.learner["updates_per_episode"] == 20 * 200


def test_independent_noise_is_raced_although_the_run_explores_with_persistent_noise(tmp_path: Path) -> None:
    subject = write_changed_pendulum(
        tmp_path, "  process: ou\n  amplitude: [[1, 1.0], [500, 0.1]]\n", "  process: own\n  friction: 0.15\n"
    )
    field = enter_candidates(subject, tmp_path, {}, candidates(load("pendulum")))
    noise = {name: msgspec.to_builtins(entry.config.exploration) for name, entry in field.entrants.items()}
    assert noise["SAC"]["friction"] == 1.0
    assert noise["SAC, persistent noise"]["friction"] == 0.15
    recipe = {name: entry.candidate for name, entry in field.entrants.items()}["SAC"]
    changed = " ".join(mutant.reason for mutant in mutants(load("pendulum"), recipe, load("pendulum"), 8))
    assert "updates" in changed
    assert "friction" not in changed, "independent noise stays independent"


def test_the_spec_of_a_race_makes_the_same_cells(tmp_path: Path) -> None:
    subject = Subject("pendulum", ("task.episode_s=0.4", "episodes=10"))
    field = enter_candidates(subject, tmp_path, N_PLANTS, list(candidates(load(*subject)))[:3])
    (tmp_path / "spec.yaml").write_bytes(spec_of("it", field.cells(), 4))
    cells = expand_spec(load_spec(tmp_path / "spec.yaml"), lambda config, settings: [])
    assert [cell.id for cell in cells] == [cell.id for cell in field.cells()]
    assert [cell.label for cell in cells] == [cell.label for cell in field.cells()]


def test_limits_gates_and_budgets_are_those_of_the_run(tmp_path: Path) -> None:
    gate_settings = "  near_envelope: {from: 0.4}\n  budgets: {hour: {trips: 5}}\n  over: steps\n"
    subject = write_changed_pendulum(tmp_path, "  process: ou\n", f"  process: ou\n{gate_settings}")
    field = enter_candidates(subject, tmp_path, {}, candidates(load(*subject)))
    assert [*field.refusal_reasons] == [UNCHANGED_NAME]
    own_config = load(*subject)
    for entry in field.entrants.values():
        assert entry.config.limits == own_config.limits
        assert entry.config.exploration.budgets == own_config.exploration.budgets
        assert msgspec.to_builtins(entry.config.exploration)["near_envelope"] == {"from": 0.4, "floor": 0.0}


def test_a_candidate_whose_memory_exceeds_the_bytes_of_the_board_is_excluded(tmp_path: Path) -> None:
    small_selection = '{strategy: "FIFO[Uniform]", capacity_bytes: 200000}'
    subject = write_changed_pendulum(
        tmp_path, 'selection: {strategy: "FULL[Uniform]"}', f"selection: {small_selection}"
    )
    own_config = load(*subject)
    field = enter_candidates(subject, tmp_path, {}, candidates(own_config))
    assert all(capacity_of(entry.config) <= capacity_of(own_config) for entry in field.entrants.values())
    assert "FULL keeps all" in field.refusal_reasons["TD3, FULL"]
    assert "200000 bytes" in field.refusal_reasons["TD3, FULL"]


@pytest.mark.parametrize("best", [UNCHANGED_NAME, "V-RACER", "SAC", "DDPG under ReF-ER"])
def test_mutants_of_the_best_differ_from_it_in_two_settings(best: str, tmp_path: Path) -> None:
    subject = Subject("pendulum", ())
    config = load("pendulum")
    field = enter_candidates(
        subject, tmp_path, {}, [candidate for candidate in candidates(config) if candidate.name == best]
    )
    entry = field.entrants[best]
    mutated = mutants(config, entry.candidate, entry.config, 4)
    assert mutated == mutants(config, entry.candidate, entry.config, 4)
    enlarged = enter_candidates(subject, tmp_path, {}, mutated)
    assert not enlarged.refusal_reasons
    assert len({e.cell.id for e in enlarged.entrants.values()} | {entry.cell.id}) == 5
    assert all(candidate.reason.count("->") == 2 for candidate in mutated)


def test_command_line_settings_apply_to_every_candidate(tmp_path: Path) -> None:
    subject = Subject("pendulum", ("selection={strategy: 'Resv[Uniform]', capacity: 500}",))
    field = enter_candidates(subject, tmp_path, {}, candidates(load(*subject)))
    assert {entry.config.selection.strategy for entry in field.entrants.values()} == {"Resv[Uniform]"}
    assert field.refusal_reasons["TD3, FULL"] == "the same as TD3"
