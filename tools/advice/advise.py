"""`onrig advise`: a race of candidates, round by round, and its answer after each rung."""

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
from onrig.tools.advice.field import RECIPES, Field, Subject, curves_of, enter, spec_of, trips_beyond
from onrig.tools.advice.plants import PLANTS, Drawn, drawn_plants
from onrig.tools.advice.race import RUNGS, Budget, Rules, State, race, separable, standings, statistic_of
from onrig.tools.experiments.cost import Cost, costs_of
from onrig.tools.experiments.folder import (
    Unsuitable,
    check_executor,
    last_folder,
    lock_folder,
    next_folder,
    record_start,
)
from onrig.tools.experiments.options import ExperimentOptions, check_cluster, workers_of
from onrig.tools.experiments.runner import AT_ONCE, at_once_of, missing_units, new_display, run_units, split
from onrig.tools.experiments.store import CELLS, META, SPEC, write_atomically, write_cells
from onrig.tools.experiments.workers import Workers
from onrig.tools.load import explain, load_for_rig
from onrig.tools.plugins import plugin_difference, third_party_plugins
from onrig.tools.terminal import complain

PLAN: Final = "race.json"
"""File with the plan of a race."""
MUTANTS: Final = 4
"""Maximum number of mutants in the second round."""
MINUTES: Final = 20.0
_FEWEST_MUTANTS: Final = 2
_FIRST_ROUND: Final = 0.6
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

    def again(self, folder: Path) -> str:
        """Return the command that continues a stopped race."""
        words = ["onrig", "advise", self.subject.name, "--out", str(folder), "--objective", self.objective]
        for name, value in (("minutes", self.minutes), ("trials", self.trials)):
            words += [] if value is None else [f"--{name}", f"{value:g}"]
        words += [word for text in self.subject.overrides for word in ("--set", text)]
        return f"continue with `{shlex.join([*words, *self.manner.words, '--resume'])}`"


class Plan(msgspec.Struct):
    """Initial candidates of a race, and the measured cost of their trials."""

    cells: list[str]
    """Ids of the first round's cells."""
    costs: dict[str, Cost] = {}
    """Processor time of the first rung's pairs together, by the cell's id; empty if trials are counted."""
    pace: float = 1.0
    """Measured divided by estimated time, from the first rung."""


def show_advice(options: AdviseOptions) -> int:
    """Race candidates in a terminal, and print the answer; returns the exit code."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _open_race(options) as race_:
            return race_.run()
    except ConfigError as error:
        return explain(error)
    except Unsuitable as error:
        return complain("advise", str(error))
    except Failure as failure:
        return complain("advise", str(failure), failure.code)
    except OSError as error:
        return complain(
            "advise", f"'{error.filename}' cannot be written: {error.strerror or error}", ExitCode.PREFLIGHT
        )
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _open_race(options: AdviseOptions) -> Iterator[_Race]:
    """Check everything, and open the folder."""
    subject = options.subject
    if options.manner.cluster:
        check_cluster(options.manner.cluster)
    config = load_for_rig(subject.name, subject.overrides)
    _check(config)
    drawn = drawn_plants(config, find_identification(subject.name, subject.overrides))
    folder = options.out or (last_folder(subject.label) if options.resume else None) or next_folder(subject.label)
    _check_folder(folder, resume=options.resume)
    field = enter(subject, folder, drawn.values, candidates(config))
    if len(field.entries) < 2:
        raise Failure(_nothing_to_race(field))
    plugins = third_party_plugins(*(cell.config for cell in field.cells()))
    if changed := plugin_difference(read_fields(folder / META), plugins):
        raise Unsuitable(f"'{folder}': {changed}")
    with lock_folder(folder, spec_of(subject.label, field.cells(), RUNGS[0]), field.cells(), "advise"):
        check_executor(folder)
        yield _Race(options, config, drawn, folder, field)


def _nothing_to_race(field: Field) -> str:
    return f"nothing to race: {'; '.join(f'{name}: {why}' for name, why in field.refused.items())}"


def _check(config: RunConfig) -> None:
    if config.device.twin is None:
        raise Failure("trials run on a twin: give device.twin (`onrig identify` finds the rig's parameters)")
    if config.task.normalization is None:
        raise Failure("scores need the task's references: measure task.normalization with `onrig baseline CONFIG`")


def _check_folder(folder: Path, *, resume: bool) -> None:
    """Raise Unsuitable for a folder of something else; a race without trials is begun anew."""
    if resume and not (folder / PLAN).is_file():
        raise Unsuitable(f"'{folder}' holds no race; leave out --resume to start one")
    if not resume and folder.exists():
        if {path.name for path in folder.iterdir()} - {RECIPES, PLAN, SPEC, CELLS, META}:
            raise Unsuitable(f"'{folder}' is not empty; add --resume to continue a race, or choose another folder")
        (folder / PLAN).unlink(missing_ok=True)


class _Race:
    """A race in its folder."""

    def __init__(self, options: AdviseOptions, config: RunConfig, drawn: Drawn, folder: Path, field: Field) -> None:
        self._options, self._config, self._drawn, self._folder, self._field = options, config, drawn, folder, field
        self._objective: Final = OBJECTIVES[options.objective]
        self._rules: Final = Rules(statistic_of(options.objective), rounds=2)
        self._again: Final = options.again(folder)
        self._barred: dict[str, str] = {}
        self._plan = self._load_plan()
        self._slots = 1

    def run(self) -> int:
        """Run to the end of the budget, and print the answer; returns the exit code."""
        with workers_of(self._options.manner, self._folder, self._again) as workers:
            self._slots = workers.slots
            self._check_budget()
            record_start(self._folder, "trials", third_party_plugins(*(cell.config for cell in self._field.cells())))
            answer: Answer | None = None
            try:
                for answer in self._answers(workers):
                    write_answer(self._folder, answer)
            except KeyboardInterrupt:
                print("no complete rung yet, no answer" if answer is None else answer.text())
                raise Failure(f"stopped; {self._again}", ExitCode.INTERRUPTED) from None
        if answer is None:
            reasons = "; ".join(f"{name}: {why}" for name, why in self._barred.items())
            raise Failure(f"no candidate is left: {reasons}")
        print(f"{answer.text()}\nsee {self._folder / PAGE}; `onrig report {self._folder}` draws the curves")
        return ExitCode.OK

    def _load_plan(self) -> Plan:
        path, ids = self._folder / PLAN, [cell.id for cell in self._field.cells()]
        if path.exists():
            plan = msgspec.json.decode(read_file(path, MAX_JSON_BYTES), type=Plan)
            if plan.cells != ids:
                raise Unsuitable(f"'{self._folder}' holds a race of other candidates; choose another folder")
        else:
            plan = Plan(ids)
        if self._options.trials is None and not plan.costs:
            plan.costs = costs_of(self._field.cells(), RUNGS[0])
        _save(self._folder, plan)
        if self._config.device.pace != "lockstep":
            self._refuse_slow(plan.costs)
        return plan

    def _refuse_slow(self, costs: Mapping[str, Cost]) -> None:
        """Refuse candidates whose updates need more than one core of this machine in real time."""
        for name, entry in [*self._field.entries.items()]:
            cost = costs.get(entry.cell.id)
            busy = 0.0 if cost is None else updates_per_s(entry.config) * cost.update_s / RUNGS[0]
            if busy > 1.0:
                del self._field.entries[name]
                self._field.refused[name] = f"its updates take {100 * busy:.0f} % of a core: more than real time allows"

    def _check_budget(self) -> None:
        budget, first = self._budget(_FIRST_ROUND), dict.fromkeys(self._field.entries, RUNGS[0])
        if len(first) < 2:
            raise Failure(_nothing_to_race(self._field))
        if not budget.holds(first):
            needed = budget.spent(first) / _FIRST_ROUND
            counted = self._options.trials is not None
            what = f"--trials {needed:.0f}" if counted else f"--minutes {needed / (60.0 * self._slots) + 1.0:.0f}"
            raise Failure(f"the budget is too small for {RUNGS[0]} pairs of {len(first)} candidates: give {what}")

    def _budget(self, share: float) -> Budget:
        """Share of the budget, in trials or in processor seconds."""
        entries = self._field.entries
        if self._options.trials is not None:
            return Budget(share * self._options.trials, dict.fromkeys(entries, 1.0))
        minutes = MINUTES if self._options.minutes is None else self._options.minutes
        pace, costs = self._plan.pace / RUNGS[0], self._plan.costs
        each = {name: pace * costs[entry.cell.id].trial_s(entry.cell) for name, entry in entries.items()}
        return Budget(share * 60.0 * minutes * self._slots, each)

    def _answers(self, workers: Workers) -> Iterator[Answer]:
        """Race to the end of the budget, and answer after each rung."""
        first = list(self._field.entries)
        state = yield from self._round(workers, first, None, _FIRST_ROUND)
        added = self._enter_mutants(state)
        if added:
            yield from self._round(workers, added, state, 1.0)
        else:
            yield from self._round(workers, first, None, 1.0)

    def _round(
        self, workers: Workers, newcomers: list[str], before: State | None, share: float
    ) -> Generator[Answer, None, State]:
        while True:
            scores = self._scores()
            state = race(newcomers, scores, self._rules, self._budget(share), before, self._barred)
            if state.active and state.pairs[state.leader]:
                yield self._answer(state, scores)
            if not state.wanted:
                return state
            self._run_trials(workers, state.wanted)

    def _scores(self) -> dict[str, Values]:
        """Scores of the finished pairs; bars candidates with too many trips."""
        scores = {}
        for name, entry in self._field.entries.items():
            curves = curves_of(self._folder, entry, PLANTS)
            scores[name] = self._objective.scores(curves) if len(curves) else np.zeros(0)
            if len(curves) >= RUNGS[0] and (beyond := trips_beyond(self._folder, entry, RUNGS[0])):
                self._barred[name] = beyond
        return scores

    def _enter_mutants(self, state: State) -> list[str]:
        """Enter as many mutants of the leader as the budget allows to catch up; returns their names."""
        if not state.active or not state.pairs[state.leader]:
            return []
        best, budget = self._field.entries[state.leader], self._budget(1.0)
        each = budget.each[state.leader] * state.pairs[state.leader]
        number = min(MUTANTS, int((budget.total - budget.spent(state.pairs)) / each))
        if number < _FEWEST_MUTANTS:
            return []
        found = mutants(self._config, best.candidate, best.config, number)
        entered = enter(self._options.subject, self._folder, self._drawn.values, found)
        self._field.refused.update(entered.refused)
        self._field.entries.update(entered.entries)
        if self._options.trials is None:  # an update of a mutant takes as long as one of its parent
            self._plan.costs |= {cell.id: self._plan.costs[best.cell.id] for cell in entered.cells()}
        _save(self._folder, self._plan)
        write_cells(self._folder, self._field.cells())
        write_atomically(self._folder / SPEC, spec_of(self._options.subject.label, self._field.cells(), RUNGS[0]))
        return list(entered.entries)

    def _run_trials(self, workers: Workers, wanted: Mapping[str, int]) -> None:
        cells = {name: self._field.entries[name].cell for name in wanted}
        todo = [unit for n, cell in cells.items() for unit in missing_units(self._folder, [cell], range(wanted[n]))]
        total, left = sum(wanted.values()), sum(len(unit.seeds) for unit in todo)
        print(f"{max(wanted.values())} pairs of {len(wanted)} candidates: {left} of {total} trials to run", flush=True)
        at_once = AT_ONCE if self._options.manner.cluster else at_once_of([*cells.values()], workers.slots)
        display, started_s = new_display(), time.monotonic()
        try:
            outcome = run_units(self._folder, split(todo, workers.slots, at_once), total - left, workers, display)
        finally:
            display.close()
        if outcome.lost:
            lost = sum(len(one.unit.seeds) for one in outcome.lost)
            raise Failure(f"{lost} trials were lost, see above; {self._again}", ExitCode.INTERNAL)
        if self._plan.costs and self._plan.pace == 1.0 and left == total and set(wanted.values()) == {RUNGS[0]}:
            estimated_s = self._budget(1.0).spent(wanted) / self._slots
            self._plan.pace = (time.monotonic() - started_s) / estimated_s
            _save(self._folder, self._plan)

    def _answer(self, state: State, scores: Mapping[str, Values]) -> Answer:
        table = standings(state, scores, self._rules)
        pairs = _pairs_of_double_budget(self._budget(2.0), state)
        return Answer(
            name=self._options.subject.name,
            objective=self._options.objective,
            plants=self._drawn.source,
            state=state,
            table=table,
            entries=self._field.entries,
            out={**self._field.refused, **self._barred},
            double_budget=(pairs, separable([one for one in table if one.left], pairs, self._rules)),
            scores=scores[state.leader][: state.pairs[state.leader]],
            costs=self._plan.costs,
        )


def _pairs_of_double_budget(budget: Budget, state: State) -> int:
    """Return the number of pairs of all remaining candidates within a budget, at least that of the leader."""
    fit = [n for n in RUNGS if budget.holds({**state.pairs, **dict.fromkeys(state.left, n)})]
    return max([*fit, state.pairs[state.leader]])


def _save(folder: Path, plan: Plan) -> None:
    write_atomically(folder / PLAN, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
