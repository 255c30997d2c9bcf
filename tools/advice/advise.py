"""`onrig advise`: the rounds of a race, with a result after each rung."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.learner.trials.objectives import OBJECTIVES, Values
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.files import MAX_JSON_BYTES, read_fields, read_file
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import find_identification
from onrig.tools.advice.candidates import candidates, mutants
from onrig.tools.advice.field import (
    RECIPES,
    Field,
    Subject,
    curves_of,
    describe_excess_trips,
    enter_candidates,
    spec_of,
)
from onrig.tools.advice.plants import N_PLANTS, DrawnPlants, draw_plants
from onrig.tools.advice.race import RUNGS, Budget, Rules, State, predict_eliminations, race, standings, statistic_for
from onrig.tools.advice.result import PAGE, RaceResult, updates_per_s, write_result
from onrig.tools.experiments.cost import Cost, estimate_costs
from onrig.tools.experiments.folder import (
    UnsuitableFolder,
    check_executor,
    last_folder,
    lock_folder,
    next_folder,
    record_start,
)
from onrig.tools.experiments.options import ExperimentOptions, check_cluster, start_workers
from onrig.tools.experiments.runner import (
    MAX_JOINT_TRIALS,
    max_joint_trials,
    missing_units,
    new_display,
    run_units,
    split_units,
)
from onrig.tools.experiments.store import CELLS, META, SPEC, write_atomically, write_cells
from onrig.tools.experiments.workers import Workers
from onrig.tools.load import load_for_rig, print_problems
from onrig.tools.plugins import plugin_difference, third_party_plugins
from onrig.tools.terminal import complain

PLAN_FILE: Final = "race.json"
"""File with the plan of a race, in the race's folder."""
MAX_MUTANTS: Final = 4
"""Maximum number of mutants in the second round."""
DEFAULT_MINUTES: Final = 20.0
_MIN_MUTANTS: Final = 2
_FIRST_ROUND_FRACTION: Final = 0.6
"""Share of the budget for the first round."""


class AdviseOptions(NamedTuple):
    """Options of the verb."""

    subject: Subject
    objective: str
    minutes: float | None
    trials: int | None
    out: Path | None
    resume: bool
    experiment_options: ExperimentOptions

    def resume_hint(self, folder: Path) -> str:
        """Return the command that continues a stopped race."""
        command = ["onrig", "advise", self.subject.name, "--out", str(folder), "--objective", self.objective]
        for name, value in (("minutes", self.minutes), ("trials", self.trials)):
            command += [] if value is None else [f"--{name}", f"{value:g}"]
        command += [argument for text in self.subject.overrides for argument in ("--set", text)]
        return f"continue with `{shlex.join([*command, *self.experiment_options.command_line_arguments, '--resume'])}`"


class Plan(msgspec.Struct):
    """Initial candidates of a race, and the measured cost of a trial."""

    cells: list[str]
    """Ids of the first round's cells."""
    costs: dict[str, Cost] = {}
    """Total processor time of the first rung's pairs, by cell id; empty if the budget is a number of trials."""
    pace: float = 1.0
    """Ratio of measured to estimated time in the first rung."""


def show_advice(options: AdviseOptions) -> int:
    """Race candidates in a terminal, print the result, and return the exit code."""
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _open_race(options) as open_race:
            return open_race.run()
    except ConfigError as error:
        return print_problems(error)
    except UnsuitableFolder as error:
        return complain("advise", str(error))
    except Failure as failure:
        return complain("advise", str(failure), failure.code)
    except OSError as error:
        return complain(
            "advise", f"'{error.filename}' cannot be written: {error.strerror or error}", ExitCode.PREFLIGHT
        )
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextlib.contextmanager
def _open_race(options: AdviseOptions) -> Iterator[_Race]:
    """Check options, configuration and folder, and yield the race with its folder locked."""
    subject = options.subject
    if options.experiment_options.cluster:
        check_cluster(options.experiment_options.cluster)
    config = load_for_rig(subject.name, subject.overrides)
    _check(config)
    plants = draw_plants(config, find_identification(subject.name, subject.overrides))
    folder = options.out or (last_folder(subject.label) if options.resume else None) or next_folder(subject.label)
    _check_folder(folder, resume=options.resume)
    field = enter_candidates(subject, folder, plants.values, candidates(config))
    if len(field.entrants) < 2:
        raise Failure(_nothing_to_race_text(field))
    plugins = third_party_plugins(*(cell.config for cell in field.cells()))
    if difference := plugin_difference(read_fields(folder / META), plugins):
        raise UnsuitableFolder(f"'{folder}': {difference}")
    with lock_folder(folder, spec_of(subject.label, field.cells(), RUNGS[0]), field.cells(), "advise"):
        check_executor(folder)
        yield _Race(options, config, plants, folder, field)


def _nothing_to_race_text(field: Field) -> str:
    return f"nothing to race: {'; '.join(f'{name}: {reason}' for name, reason in field.refusal_reasons.items())}"


def _check(config: RunConfig) -> None:
    if config.device.twin is None:
        raise Failure("trials run on a twin: set device.twin (`onrig identify` finds the rig's parameters)")
    if config.task.normalization is None:
        raise Failure("scores need task.normalization: compute it with `onrig baseline CONFIG`")
    if config.cameras:
        raise Failure("trials have no cameras: remove the images from task.inputs")


def _check_folder(folder: Path, *, resume: bool) -> None:
    """Raise UnsuitableFolder if the folder cannot be used: with ``resume``, it must contain a race; otherwise, it may
    only contain a race that has no trials yet, which starts again.
    """
    if resume and not (folder / PLAN_FILE).is_file():
        raise UnsuitableFolder(f"'{folder}' contains no race; leave out --resume to start one")
    if not resume and folder.exists():
        if {path.name for path in folder.iterdir()} - {RECIPES, PLAN_FILE, SPEC, CELLS, META}:
            raise UnsuitableFolder(
                f"'{folder}' is not empty; add --resume to continue a race, or choose another folder"
            )
        (folder / PLAN_FILE).unlink(missing_ok=True)


class _Race:
    """A race in its folder."""

    def __init__(
        self, options: AdviseOptions, config: RunConfig, plants: DrawnPlants, folder: Path, field: Field
    ) -> None:
        self._options, self._config, self._plants, self._folder, self._field = options, config, plants, folder, field
        self._objective: Final = OBJECTIVES[options.objective]
        self._rules: Final = Rules(statistic_for(options.objective), rounds=2)
        self._resume_hint: Final = options.resume_hint(folder)
        self._exclusion_reasons: dict[str, str] = {}
        self._plan = self._load_plan()
        self._slots = 1

    def run(self) -> int:
        """Race until a decision or the end of the budget, print the result, and return the exit code."""
        with start_workers(self._options.experiment_options, self._folder, self._resume_hint) as workers:
            self._slots = workers.slots
            self._check_budget()
            record_start(self._folder, "trials", third_party_plugins(*(cell.config for cell in self._field.cells())))
            result: RaceResult | None = None
            try:
                for result in self._race_rounds(workers):
                    write_result(self._folder, result)
            except KeyboardInterrupt:
                print("no result: the first rung is not complete" if result is None else result.text())
                raise Failure(f"stopped; {self._resume_hint}", ExitCode.INTERRUPTED) from None
        if result is None:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self._exclusion_reasons.items())
            raise Failure(f"every candidate was excluded: {reasons}")
        print(f"{result.text()}\nsee {self._folder / PAGE}; `onrig report {self._folder}` draws the curves")
        return ExitCode.OK

    def _load_plan(self) -> Plan:
        path, ids = self._folder / PLAN_FILE, [cell.id for cell in self._field.cells()]
        if path.exists():
            plan = msgspec.json.decode(read_file(path, MAX_JSON_BYTES), type=Plan)
            if plan.cells != ids:
                raise UnsuitableFolder(f"'{self._folder}' contains a race with other candidates; choose another folder")
        else:
            plan = Plan(ids)
        if self._options.trials is None and not plan.costs:
            plan.costs = estimate_costs(self._field.cells(), RUNGS[0])
        _save(self._folder, plan)
        if self._config.device.pace != "lockstep":
            self._refuse_slow_candidates(plan.costs)
        return plan

    def _refuse_slow_candidates(self, costs: Mapping[str, Cost]) -> None:
        """Refuse candidates whose updates would need more than one core of this machine in real time."""
        for name, entry in [*self._field.entrants.items()]:
            cost = costs.get(entry.cell.id)
            utilization = 0.0 if cost is None else updates_per_s(entry.config) * cost.update_s / RUNGS[0]
            if utilization > 1.0:
                del self._field.entrants[name]
                self._field.refusal_reasons[name] = (
                    f"updates take {100 * utilization:.0f} % of a core, more than real time allows"
                )

    def _check_budget(self) -> None:
        budget, first_pairs = self._budget(_FIRST_ROUND_FRACTION), dict.fromkeys(self._field.entrants, RUNGS[0])
        if len(first_pairs) < 2:
            raise Failure(_nothing_to_race_text(self._field))
        if not budget.covers(first_pairs):
            min_budget = budget.cost_of(first_pairs) / _FIRST_ROUND_FRACTION
            is_trial_budget = self._options.trials is not None
            option = (
                f"--trials {min_budget:.0f}"
                if is_trial_budget
                else f"--minutes {min_budget / (60.0 * self._slots) + 1.0:.0f}"
            )
            raise Failure(
                f"the budget is too small for {RUNGS[0]} pairs for each of {len(first_pairs)} candidates: set {option}"
            )

    def _budget(self, fraction: float) -> Budget:
        """Return a fraction of the budget, in trials or in processor seconds."""
        entrants = self._field.entrants
        if self._options.trials is not None:
            return Budget(fraction * self._options.trials, dict.fromkeys(entrants, 1.0))
        minutes = DEFAULT_MINUTES if self._options.minutes is None else self._options.minutes
        pace, costs = self._plan.pace / RUNGS[0], self._plan.costs
        trial_costs = {name: pace * costs[entry.cell.id].trial_s(entry.cell) for name, entry in entrants.items()}
        return Budget(fraction * 60.0 * minutes * self._slots, trial_costs)

    def _race_rounds(self, workers: Workers) -> Iterator[RaceResult]:
        """Run the first round and then a round with mutants or, without mutants, the first round with the full budget.
        Yield a result after each rung.
        """
        first_names = list(self._field.entrants)
        state = yield from self._run_round(workers, first_names, None, _FIRST_ROUND_FRACTION)
        new_names = self._enter_mutants(state)
        if new_names:
            yield from self._run_round(workers, new_names, state, 1.0)
        else:
            yield from self._run_round(workers, first_names, None, 1.0)

    def _run_round(
        self, workers: Workers, newcomers: list[str], previous_state: State | None, fraction: float
    ) -> Generator[RaceResult, None, State]:
        while True:
            scores = self._scores()
            state = race(
                newcomers, scores, self._rules, self._budget(fraction), previous_state, self._exclusion_reasons
            )
            if state.active_names and state.pairs[state.leader]:
                yield self._result(state, scores)
            if not state.next_pairs:
                return state
            self._run_trials(workers, state.next_pairs)

    def _scores(self) -> dict[str, Values]:
        """Return the scores of the finished pairs, and exclude candidates with too many trips."""
        scores = {}
        for name, entry in self._field.entrants.items():
            curves = curves_of(self._folder, entry, N_PLANTS)
            scores[name] = self._objective.scores(curves) if len(curves) else np.zeros(0)
            if len(curves) >= RUNGS[0] and (excess := describe_excess_trips(self._folder, entry, RUNGS[0])):
                self._exclusion_reasons[name] = excess
        return scores

    def _enter_mutants(self, state: State) -> list[str]:
        """Enter as many mutants of the leader as the budget can take to the leader's number of pairs, and return their
        names.
        """
        if not state.active_names or not state.pairs[state.leader]:
            return []
        leader, budget = self._field.entrants[state.leader], self._budget(1.0)
        catch_up_cost = budget.trial_costs[state.leader] * state.pairs[state.leader]
        number = min(MAX_MUTANTS, int((budget.total - budget.cost_of(state.pairs)) / catch_up_cost))
        if number < _MIN_MUTANTS:
            return []
        new_mutants = mutants(self._config, leader.candidate, leader.config, number)
        mutant_field = enter_candidates(self._options.subject, self._folder, self._plants.values, new_mutants)
        self._field.refusal_reasons.update(mutant_field.refusal_reasons)
        self._field.entrants.update(mutant_field.entrants)
        if self._options.trials is None:  # a mutant's updates take as long as its parent's
            self._plan.costs |= {cell.id: self._plan.costs[leader.cell.id] for cell in mutant_field.cells()}
        _save(self._folder, self._plan)
        write_cells(self._folder, self._field.cells())
        write_atomically(self._folder / SPEC, spec_of(self._options.subject.label, self._field.cells(), RUNGS[0]))
        return list(mutant_field.entrants)

    def _run_trials(self, workers: Workers, next_pairs: Mapping[str, int]) -> None:
        cells = {name: self._field.entrants[name].cell for name in next_pairs}
        units = [
            unit for n, cell in cells.items() for unit in missing_units(self._folder, [cell], range(next_pairs[n]))
        ]
        total, n_missing = sum(next_pairs.values()), sum(len(unit.seeds) for unit in units)
        print(
            f"{max(next_pairs.values())} pairs for {len(next_pairs)} candidates: {n_missing} of {total} trials to run",
            flush=True,
        )
        max_per_unit = (
            MAX_JOINT_TRIALS
            if self._options.experiment_options.cluster
            else max_joint_trials([*cells.values()], workers.slots)
        )
        display, started_s = new_display(), time.monotonic()
        try:
            outcome = run_units(
                self._folder, split_units(units, workers.slots, max_per_unit), total - n_missing, workers, display
            )
        finally:
            display.close()
        if outcome.lost_units:
            n_lost = sum(len(loss.unit.seeds) for loss in outcome.lost_units)
            raise Failure(f"{n_lost} trials were lost, see above; {self._resume_hint}", ExitCode.INTERNAL)
        if (
            self._plan.costs
            and self._plan.pace == 1.0
            and n_missing == total
            and set(next_pairs.values()) == {RUNGS[0]}
        ):
            estimated_s = self._budget(1.0).cost_of(next_pairs) / self._slots
            self._plan.pace = (time.monotonic() - started_s) / estimated_s
            _save(self._folder, self._plan)

    def _result(self, state: State, scores: Mapping[str, Values]) -> RaceResult:
        table = standings(state, scores, self._rules)
        n_pairs = _pairs_of_double_budget(self._budget(2.0), state)
        return RaceResult(
            name=self._options.subject.name,
            objective=self._options.objective,
            plants=self._plants.source,
            state=state,
            table=table,
            entrants=self._field.entrants,
            exclusion_reasons={**self._field.refusal_reasons, **self._exclusion_reasons},
            double_budget=(
                n_pairs,
                predict_eliminations([standing for standing in table if standing.may_be_best], n_pairs, self._rules),
            ),
            scores=scores[state.leader][: state.pairs[state.leader]],
            costs=self._plan.costs,
        )


def _pairs_of_double_budget(budget: Budget, state: State) -> int:
    """Return how many pairs a budget allows for every remaining candidate, but at least the leader's number
    of pairs.
    """
    affordable_rungs = [n for n in RUNGS if budget.covers({**state.pairs, **dict.fromkeys(state.remaining_names, n)})]
    return max([*affordable_rungs, state.pairs[state.leader]])


def _save(folder: Path, plan: Plan) -> None:
    write_atomically(folder / PLAN_FILE, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
