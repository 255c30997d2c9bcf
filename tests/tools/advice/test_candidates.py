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


def changed(folder: Path, before: str, after: str) -> Subject:
    """The shipped pendulum, changed in a file of its own: what the command line sets, holds for every candidate."""
    text = find_config("pendulum").read_text()
    assert before in text
    (folder / "run.yaml").write_text(text.replace(before, after))
    return Subject(str(folder / "run.yaml"), ())


N_PLANTS = {"gravity_per_s2": (20.0, 30.0), "damping_per_s": (0.3, 0.4), "gain_per_v_s2": (5.0, 7.0)}


@pytest.mark.parametrize("name", ["pendulum", "magman", "pendulum-hidden"])
def test_every_candidate_of_a_shipped_run_can_race(name: str, tmp_path: Path) -> None:
    found = list(candidates(load(name)))
    field = enter_candidates(Subject(name, ()), tmp_path, {}, found)
    assert not field.refusal_reasons
    assert [*field.entrants] == [one.name for one in found]
    assert len(found) >= 10
    networks = {str(entry.config.learner.get("algorithm")) for entry in field.entrants.values()}
    assert networks == {"ddpg", "td3", "sac", "vracer"}


def test_the_spec_of_a_race_makes_the_same_cells(tmp_path: Path) -> None:
    subject = Subject("pendulum", ("task.episode_s=0.4", "episodes=10"))
    field = enter_candidates(subject, tmp_path, N_PLANTS, list(candidates(load(*subject)))[:3])
    (tmp_path / "spec.yaml").write_bytes(spec_of("it", field.cells(), 4))
    made = expand_spec(load_spec(tmp_path / "spec.yaml"), lambda config, settings: [])
    assert [cell.id for cell in made] == [cell.id for cell in field.cells()]
    assert [cell.label for cell in made] == [cell.label for cell in field.cells()]


def test_limits_gates_and_budgets_stay_the_run_s(tmp_path: Path) -> None:
    gates = "  near_envelope: {from: 0.4}\n  budgets: {hour: {trips: 5}}\n  over: steps\n"
    subject = changed(tmp_path, "  process: ou\n", f"  process: ou\n{gates}")
    field = enter_candidates(subject, tmp_path, {}, candidates(load(*subject)))
    assert [*field.refusal_reasons] == [UNCHANGED_NAME]
    own = load(*subject)
    for entry in field.entrants.values():
        assert entry.config.limits == own.limits
        assert entry.config.exploration.budgets == own.exploration.budgets
        assert msgspec.to_builtins(entry.config.exploration)["near_envelope"] == {"from": 0.4, "floor": 0.0}


def test_a_candidate_s_memory_fits_into_the_bytes_of_the_board_or_it_is_out(tmp_path: Path) -> None:
    kept = '{strategy: "FIFO[Uniform]", capacity_bytes: 200000}'
    subject = changed(tmp_path, 'selection: {strategy: "FULL[Uniform]"}', f"selection: {kept}")
    own = load(*subject)
    field = enter_candidates(subject, tmp_path, {}, candidates(own))
    assert all(capacity_of(entry.config) <= capacity_of(own) for entry in field.entrants.values())
    assert "FULL keeps all" in field.refusal_reasons["TD3, FULL"]
    assert "200000 bytes" in field.refusal_reasons["TD3, FULL"]


@pytest.mark.parametrize("best", [UNCHANGED_NAME, "V-RACER", "SAC", "DDPG under ReF-ER"])
def test_mutants_of_the_best_are_candidates_that_differ_in_two_settings(best: str, tmp_path: Path) -> None:
    subject = Subject("pendulum", ())
    config = load("pendulum")
    field = enter_candidates(subject, tmp_path, {}, [one for one in candidates(config) if one.name == best])
    entry = field.entrants[best]
    found = mutants(config, entry.candidate, entry.config, 4)
    assert found == mutants(config, entry.candidate, entry.config, 4)
    grown = enter_candidates(subject, tmp_path, {}, found)
    assert not grown.refusal_reasons
    assert len({e.cell.id for e in grown.entrants.values()} | {entry.cell.id}) == 5
    assert all(one.reason.count("->") == 2 for one in found)


def test_what_the_command_line_sets_holds_for_every_candidate(tmp_path: Path) -> None:
    subject = Subject("pendulum", ("selection={strategy: 'Resv[Uniform]', capacity: 500}",))
    field = enter_candidates(subject, tmp_path, {}, candidates(load(*subject)))
    assert {entry.config.selection.strategy for entry in field.entrants.values()} == {"Resv[Uniform]"}
    assert field.refusal_reasons["TD3, FULL"] == "the same as TD3"
