"""`onrig advise`: the rounds of a race, with an answer after each rung."""

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
from onrig.tools.advice.answer import PAGE, Answer, updates_per_s, write_answer
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
"""Plan of a race, in its folder."""
MAX_MUTANTS: Final = 4
"""Maximum number of mutants in the second round."""
DEFAULT_MINUTES: Final = 20.0
_MIN_MUTANTS: Final = 2
_FIRST_ROUND_SHARE: Final = 0.6
"""Share of the budget for the first round."""


class AdviseOptions(NamedTuple):
    """Options of the verb."""

    subject: Subject
    objective: str
    minutes: float | None
    trials: int | None
    out: Path | None
    resume: bool
    manner: ExperimentOptions

    def resume_hint(self, folder: Path) -> str:
        """Return the command that continues a stopped race."""
        words = ["onrig", "advise", self.subject.name, "--out", str(folder), "--objective", self.objective]
        for name, value in (("minutes", self.minutes), ("trials", self.trials)):
            words += [] if value is None else [f"--{name}", f"{value:g}"]
        words += [word for text in self.subject.overrides for word in ("--set", text)]
        return f"continue with `{shlex.join([*words, *self.manner.command_line_words, '--resume'])}`"


class Plan(msgspec.Struct):
    """Initial candidates of a race, and the measured cost of a trial."""

    cells: list[str]
    """Ids of the first round's cells."""
    costs: dict[str, Cost] = {}
    """Total processor time of the first rung's pairs, by cell id; empty if the budget is a number of trials."""
    pace: float = 1.0
    """Ratio of measured to estimated time in the first rung."""


def show_advice(options: AdviseOptions) -> int:
    """Race candidates in a terminal, and print the answer; returns the exit code."""
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _open_race(options) as race_:
            return race_.run()
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
    if options.manner.cluster:
        check_cluster(options.manner.cluster)
    config = load_for_rig(subject.name, subject.overrides)
    _check(config)
    plants = draw_plants(config, find_identification(subject.name, subject.overrides))
    folder = options.out or (last_folder(subject.label) if options.resume else None) or next_folder(subject.label)
    _check_folder(folder, resume=options.resume)
    field = enter_candidates(subject, folder, plants.values, candidates(config))
    if len(field.entrants) < 2:
        raise Failure(_nothing_to_race_text(field))
    plugins = third_party_plugins(*(cell.config for cell in field.cells()))
    if changed := plugin_difference(read_fields(folder / META), plugins):
        raise UnsuitableFolder(f"'{folder}': {changed}")
    with lock_folder(folder, spec_of(subject.label, field.cells(), RUNGS[0]), field.cells(), "advise"):
        check_executor(folder)
        yield _Race(options, config, plants, folder, field)


def _nothing_to_race_text(field: Field) -> str:
    return f"nothing to race: {'; '.join(f'{name}: {reason}' for name, reason in field.refused.items())}"


def _check(config: RunConfig) -> None:
    if config.device.twin is None:
        raise Failure("trials run on a twin: give device.twin (`onrig identify` finds the rig's parameters)")
    if config.task.normalization is None:
        raise Failure("scores need task.normalization: compute it with `onrig baseline CONFIG`")


def _check_folder(folder: Path, *, resume: bool) -> None:
    """Raise UnsuitableFolder if the folder contains anything but a race; restart a race that has no trials yet."""
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
        self._barred: dict[str, str] = {}
        self._plan = self._load_plan()
        self._slots = 1

    def run(self) -> int:
        """Race until the budget is used up, and print the answer; returns the exit code."""
        with start_workers(self._options.manner, self._folder, self._resume_hint) as workers:
            self._slots = workers.slots
            self._check_budget()
            record_start(self._folder, "trials", third_party_plugins(*(cell.config for cell in self._field.cells())))
            answer: Answer | None = None
            try:
                for answer in self._race_rounds(workers):
                    write_answer(self._folder, answer)
            except KeyboardInterrupt:
                print("no answer: the first rung is not complete" if answer is None else answer.text())
                raise Failure(f"stopped; {self._resume_hint}", ExitCode.INTERRUPTED) from None
        if answer is None:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self._barred.items())
            raise Failure(f"every candidate was excluded: {reasons}")
        print(f"{answer.text()}\nsee {self._folder / PAGE}; `onrig report {self._folder}` draws the curves")
        return ExitCode.OK

    def _load_plan(self) -> Plan:
        path, ids = self._folder / PLAN_FILE, [cell.id for cell in self._field.cells()]
        if path.exists():
            plan = msgspec.json.decode(read_file(path, MAX_JSON_BYTES), type=Plan)
            if plan.cells != ids:
                raise UnsuitableFolder(f"'{self._folder}' contains a race of other candidates; choose another folder")
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
            busy = 0.0 if cost is None else updates_per_s(entry.config) * cost.update_s / RUNGS[0]
            if busy > 1.0:
                del self._field.entrants[name]
                self._field.refused[name] = f"its updates take {100 * busy:.0f} % of a core: more than real time allows"

    def _check_budget(self) -> None:
        budget, first = self._budget(_FIRST_ROUND_SHARE), dict.fromkeys(self._field.entrants, RUNGS[0])
        if len(first) < 2:
            raise Failure(_nothing_to_race_text(self._field))
        if not budget.covers(first):
            needed = budget.cost_of(first) / _FIRST_ROUND_SHARE
            counted = self._options.trials is not None
            option = f"--trials {needed:.0f}" if counted else f"--minutes {needed / (60.0 * self._slots) + 1.0:.0f}"
            raise Failure(f"the budget is too small for {RUNGS[0]} pairs of {len(first)} candidates: give {option}")

    def _budget(self, share: float) -> Budget:
        """Return a share of the budget, in trials or in processor seconds."""
        entrants = self._field.entrants
        if self._options.trials is not None:
            return Budget(share * self._options.trials, dict.fromkeys(entrants, 1.0))
        minutes = DEFAULT_MINUTES if self._options.minutes is None else self._options.minutes
        pace, costs = self._plan.pace / RUNGS[0], self._plan.costs
        trial_costs = {name: pace * costs[entry.cell.id].trial_s(entry.cell) for name, entry in entrants.items()}
        return Budget(share * 60.0 * minutes * self._slots, trial_costs)

    def _race_rounds(self, workers: Workers) -> Iterator[Answer]:
        """Run the first round and the round of mutants; yields an answer after each rung."""
        first = list(self._field.entrants)
        state = yield from self._run_round(workers, first, None, _FIRST_ROUND_SHARE)
        added = self._enter_mutants(state)
        if added:
            yield from self._run_round(workers, added, state, 1.0)
        else:
            yield from self._run_round(workers, first, None, 1.0)

    def _run_round(
        self, workers: Workers, newcomers: list[str], previous: State | None, share: float
    ) -> Generator[Answer, None, State]:
        while True:
            scores = self._scores()
            state = race(newcomers, scores, self._rules, self._budget(share), previous, self._barred)
            if state.active and state.pairs[state.leader]:
                yield self._answer(state, scores)
            if not state.next_pairs:
                return state
            self._run_trials(workers, state.next_pairs)

    def _scores(self) -> dict[str, Values]:
        """Return the scores of the finished pairs; bars candidates with too many trips."""
        scores = {}
        for name, entry in self._field.entrants.items():
            curves = curves_of(self._folder, entry, N_PLANTS)
            scores[name] = self._objective.scores(curves) if len(curves) else np.zeros(0)
            if len(curves) >= RUNGS[0] and (excess := describe_excess_trips(self._folder, entry, RUNGS[0])):
                self._barred[name] = excess
        return scores

    def _enter_mutants(self, state: State) -> list[str]:
        """Enter as many mutants of the leader as the budget allows up to the leader's number of pairs; returns their
        names.
        """
        if not state.active or not state.pairs[state.leader]:
            return []
        best, budget = self._field.entrants[state.leader], self._budget(1.0)
        catch_up_cost = budget.trial_costs[state.leader] * state.pairs[state.leader]
        number = min(MAX_MUTANTS, int((budget.total - budget.cost_of(state.pairs)) / catch_up_cost))
        if number < _MIN_MUTANTS:
            return []
        new_mutants = mutants(self._config, best.candidate, best.config, number)
        entered = enter_candidates(self._options.subject, self._folder, self._plants.values, new_mutants)
        self._field.refused.update(entered.refused)
        self._field.entrants.update(entered.entrants)
        if self._options.trials is None:  # a mutant's updates take as long as its parent's
            self._plan.costs |= {cell.id: self._plan.costs[best.cell.id] for cell in entered.cells()}
        _save(self._folder, self._plan)
        write_cells(self._folder, self._field.cells())
        write_atomically(self._folder / SPEC, spec_of(self._options.subject.label, self._field.cells(), RUNGS[0]))
        return list(entered.entrants)

    def _run_trials(self, workers: Workers, next_pairs: Mapping[str, int]) -> None:
        cells = {name: self._field.entrants[name].cell for name in next_pairs}
        units = [
            unit for n, cell in cells.items() for unit in missing_units(self._folder, [cell], range(next_pairs[n]))
        ]
        total, n_missing = sum(next_pairs.values()), sum(len(unit.seeds) for unit in units)
        print(
            f"{max(next_pairs.values())} pairs of {len(next_pairs)} candidates: {n_missing} of {total} trials to run",
            flush=True,
        )
        at_once = (
            MAX_JOINT_TRIALS if self._options.manner.cluster else max_joint_trials([*cells.values()], workers.slots)
        )
        display, started_s = new_display(), time.monotonic()
        try:
            outcome = run_units(
                self._folder, split_units(units, workers.slots, at_once), total - n_missing, workers, display
            )
        finally:
            display.close()
        if outcome.lost:
            lost = sum(len(loss.unit.seeds) for loss in outcome.lost)
            raise Failure(f"{lost} trials were lost, see above; {self._resume_hint}", ExitCode.INTERNAL)
        if (
            self._plan.costs
            and self._plan.pace == 1.0
            and n_missing == total
            and set(next_pairs.values()) == {RUNGS[0]}
        ):
            estimated_s = self._budget(1.0).cost_of(next_pairs) / self._slots
            self._plan.pace = (time.monotonic() - started_s) / estimated_s
            _save(self._folder, self._plan)

    def _answer(self, state: State, scores: Mapping[str, Values]) -> Answer:
        table = standings(state, scores, self._rules)
        pairs = _pairs_of_double_budget(self._budget(2.0), state)
        return Answer(
            name=self._options.subject.name,
            objective=self._options.objective,
            plants=self._plants.source,
            state=state,
            table=table,
            entrants=self._field.entrants,
            excluded={**self._field.refused, **self._barred},
            double_budget=(
                pairs,
                predict_eliminations([standing for standing in table if standing.may_be_best], pairs, self._rules),
            ),
            scores=scores[state.leader][: state.pairs[state.leader]],
            costs=self._plan.costs,
        )


def _pairs_of_double_budget(budget: Budget, state: State) -> int:
    """Return how many pairs a budget allows for every remaining candidate; at least the leader's number."""
    affordable = [n for n in RUNGS if budget.covers({**state.pairs, **dict.fromkeys(state.remaining, n)})]
    return max([*affordable, state.pairs[state.leader]])


def _save(folder: Path, plan: Plan) -> None:
    write_atomically(folder / PLAN_FILE, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
