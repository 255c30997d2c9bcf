"""Checking, scoring and converting policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.hw.renewal import policy_name
from onrig.hw.transport import LinkError
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.files import open_file, replace_file
from onrig.runtime.policy.admission import AdmissionLimits, Admitted, Refused
from onrig.runtime.policy.contract import HIDDEN, ModelRefused
from onrig.runtime.replay.learners.admission_terms import admission_limits, required_contract
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.episodes import COLUMNS, EpisodeRow
from onrig.sim.evaluation import admission_verdict, read_model
from onrig.tools.damage import policy_damage
from onrig.tools.load import load, print_problems
from onrig.tools.terminal import Table, complain, file_problem, write_json

_QUANTITY_TITLES: Final = {"reward_sum": "return", "mean_reward": "mean reward", "normalized": "normalized"}
_QUANTITY_FORMATS: Final = {"reward_sum": ".6g", "mean_reward": ".4g", "normalized": ".4f"}


def check(file: Path, name: str, overrides: Sequence[str]) -> int:
    """Print whether the rig would admit a policy, and return the exit code."""
    try:
        checked = _check_policy(file, name, overrides, for_twin=False)
    except ConfigError as error:
        return print_problems(error)
    except Failure as failure:
        return complain("policy", str(failure), failure.code)
    _print_warnings(file, checked)
    return ExitCode.OK


class Evaluation(NamedTuple):
    """Scores of a policy on the twin of a configuration, without exploration."""

    config: RunConfig
    policy_id: int
    warnings: Sequence[str]
    """Warnings from the admission check."""
    episodes: list[EpisodeRow]

    @property
    def mean(self) -> dict[str, float]:
        """Means of ``reward_sum``, ``mean_reward`` and, if task.normalization is set, ``normalized`` over the
        episodes.
        """
        return {name: column_statistics(self.episodes, name).mean for name in _available_quantities(self.episodes)}


def evaluate(
    policy: str | Path, name: str, overrides: Sequence[str] = (), *, episodes: int = 10, seed: int | None = None
) -> Evaluation:
    """Score a policy (an ONNX file) on the lockstep twin of a configuration, with the run's seed by default.

    Raises ConfigError for an invalid configuration, and Failure if the rig would refuse the policy or the twin stops
    answering.
    """
    return _run_evaluation(_check_policy(Path(policy), name, overrides, for_twin=True), episodes, seed)


def _run_evaluation(policy: CheckedPolicy, episodes: int, seed: int | None) -> Evaluation:
    from onrig.runtime.policy.session import PolicySession
    from onrig.sim.evaluation import evaluate as play

    config, model, verdict = policy
    if episodes < 1:
        raise Failure(f"episodes: expected at least 1, got {episodes}")
    if seed is not None and not 0 <= seed < 1 << 63:
        raise Failure(f"seed: expected 0 to 2^63 - 1, got {seed}")
    policy_id = verdict.contract.policy_id
    try:
        session = PolicySession(model, native=verdict.native)
        rows = list(play(config, session, policy_id, episodes, config.seed if seed is None else seed))
    except LinkError as error:
        raise Failure(str(error), ExitCode.HARDWARE) from None
    return Evaluation(config, policy_id, verdict.warnings, rows)


def stamp(file: Path, out: Path, name: str, overrides: Sequence[str]) -> int:
    """Write a policy with the rig's contract to ``out``, print the verdict of the admission check, and return the exit
    code.
    """
    from onrig.runtime.policy.stamp import stamp_contract

    try:
        config = load(name, overrides)
        model = read_model(file, config)
        if isinstance(model, Refused):
            return complain("policy", f"{file}: refused by the {model.stage} check: {model.reason}")
        contract = required_contract(config.rig, config.rate_hz, stochastic=config.stochastic, signals=config.signals)
        replace_file(
            out, stamp_contract(model, msgspec.structs.replace(contract, parent_run=f"stamped from {file.name}"))
        )
    except ConfigError as error:
        return print_problems(error)
    except ModelRefused as refusal:
        return complain("policy", f"{file}: not an ONNX file: {refusal}")
    except OSError as error:
        return complain("policy", f"'{error.filename or out}': {error.strerror or error}")
    return check(out, name, overrides)


def to_c(file: Path, out: Path) -> int:
    """Write a policy as C99 to ``out``, and return the exit code."""
    from onrig.tools.policy_to_c.source import c_name, source_of

    if out.suffix != ".c":
        return complain("policy", f"--out: expected a file whose name ends in .c, got '{out}'")
    try:
        with open_file(file, None) as model_file:
            model = model_file.read(AdmissionLimits().max_bytes + 1)
        source = source_of(model, c_name(out.stem))
        replace_file(out, source.text.encode())
    except ModelRefused as refusal:
        return complain("policy", f"{file}: cannot be translated ({refusal})")
    except OSError as error:
        return complain("policy", f"'{error.filename or file}': {error.strerror or error}")
    print(
        f"{out}: {c_name(out.stem)}_act for '{source.contract.rig}' at {source.contract.rate_hz:g} Hz, "
        f"{source.constant_bytes} bytes of constants, {source.work_bytes} bytes of RAM; "
        f"policy {policy_name(model).hex()}"
    )
    return ExitCode.OK


def score(
    file: Path, name: str, overrides: Sequence[str], episodes: int, seed: int | None, json_file: str | None
) -> int:
    """Print a policy's score on the twin, write it as JSON to ``json_file``, and return the exit code. If ``json_file``
    is ``-``, print only the JSON.
    """
    if episodes < 1:
        return complain("policy", f"--episodes: expected at least 1, got {episodes}")
    if seed is not None and not 0 <= seed < 1 << 63:
        return complain("policy", f"--seed: expected 0 to 2^63 - 1, got {seed}")
    if json_file not in (None, "-") and (problem := file_problem("json", Path(json_file))):
        return complain("policy", problem)
    try:
        checked = _check_policy(file, name, overrides, for_twin=True)
        if json_file != "-":
            _print_warnings(file, checked)
        _, policy_id, warnings, rows = _run_evaluation(checked, episodes, seed)
    except ConfigError as error:
        return print_problems(error)
    except Failure as failure:
        return complain("policy", str(failure), failure.code)
    if json_file != "-":
        print(evaluation_text(rows))
    if json_file is None:
        return ExitCode.OK
    summary = {name: column_statistics(rows, name)._asdict() for name in _available_quantities(rows)}
    data = {"policy": policy_id, "warnings": warnings, "episodes": rows_as_dicts(rows), "summary": summary}
    return write_json("policy", msgspec.json.format(msgspec.json.encode(data), indent=1).decode(), json_file)


class CheckedPolicy(NamedTuple):
    """A policy with the verdict of the admission check."""

    config: RunConfig
    model: bytes
    verdict: Admitted


def _check_policy(file: Path, name: str, overrides: Sequence[str], *, for_twin: bool) -> CheckedPolicy:
    """Check a policy as the rig does. Raises ConfigError for an invalid configuration, and Failure for a policy that
    cannot be read or that the rig would refuse.
    """
    if name.endswith(".onnx") and not str(file).endswith(".onnx"):
        raise Failure(f"'{name}' is a policy; give the policy first: {name} {file}")
    config = load(name, overrides)
    if for_twin and config.device.twin is None:
        raise Failure(f"{name} uses a port; policy eval needs a twin ('device: {{twin: ...}}')")
    try:
        model = read_model(file, config)
    except OSError as error:
        raise Failure(f"{file}: cannot be read: {error.strerror or error}") from None
    if isinstance(model, Refused):
        raise _refusal(file, model)
    damage = policy_damage(file)
    if damage is not None:
        raise Failure(f"{file}: {damage}")
    verdict = admission_verdict(model, config)
    if isinstance(verdict, Refused):
        raise _refusal(file, verdict)
    return CheckedPolicy(config, model, verdict)


def _print_warnings(file: Path, checked: CheckedPolicy) -> None:
    print(f"{file}: {_admission_text(checked.verdict, checked.config)}")
    for warning in checked.verdict.warnings:
        print(f"  warning: {warning}")


def _refusal(path: Path, verdict: Refused) -> Failure:
    return Failure(f"{path}: refused by the {verdict.stage} check: {verdict.reason}")


def _admission_text(verdict: Admitted, config: RunConfig) -> str:
    from onrig.runtime.policy.session import evaluator_of

    contract, cost, inputs = verdict.contract, verdict.cost, verdict.ports.inputs
    kinds = [contract.behaviour] if contract.stochastic else []
    kinds += [f"recurrent ({inputs[HIDDEN]} units)"] if HIDDEN in inputs else []
    return (
        f"accepted: {''.join(f'{kind} ' for kind in kinds)}policy {contract.policy_id} of run '{contract.parent_run}' "
        f"after {contract.training_step} training steps; "
        f"p50 {verdict.latency_p50_us:.1f} us, p99 {verdict.latency_p99_us:.1f} us "
        f"({admission_limits(config).latency_budget_us:g} us allowed); {cost.parameters} parameters, "
        f"{cost.operations} operations; evaluated by {evaluator_of(native=verdict.native)}"
    )


class Statistics(NamedTuple):
    """Statistics of one quantity over all episodes."""

    mean: float
    spread: float
    """Standard deviation over the episodes; 0 for a single episode."""
    lowest: float
    highest: float


def column_statistics(rows: Sequence[EpisodeRow], name: str) -> Statistics:
    """Return the statistics of a column over one or more episodes."""
    values = [float(value) for row in rows if (value := getattr(row, name)) is not None]
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    return Statistics(mean, spread, min(values), max(values))


def rows_as_dicts(rows: Sequence[EpisodeRow]) -> list[dict[str, object]]:
    """Return all rows in full precision, with the columns of ``episodes.csv`` as keys."""
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def evaluation_text(rows: Sequence[EpisodeRow]) -> str:
    """Return a table of the episodes, with equal consecutive ones merged, followed by a table of their statistics."""
    quantities, stretches = _available_quantities(rows), list[list[EpisodeRow]]()
    for row in rows:
        if stretches and row[2:8] == stretches[-1][0][2:8]:
            stretches[-1].append(row)
        else:
            stretches.append([row])
    lines = [
        (
            f"{stretch[0].episode}"
            if len(stretch) == 1
            else f"{stretch[0].episode} to {stretch[-1].episode}, identical",
            f"{stretch[0].steps}",
            *(_format_quantity(stretch[0], name) for name in quantities),
            f"{stretch[0].interventions}",
        )
        for stretch in stretches
    ]
    titles = [_QUANTITY_TITLES[name] for name in quantities]
    table = Table("episode", ("steps", *titles, "interventions"), tuple(lines))
    figures = []
    for name in quantities:
        statistics, number_format = column_statistics(rows, name), _QUANTITY_FORMATS[name]
        figures.append((_QUANTITY_TITLES[name], *(f"{value:{number_format}}" for value in statistics)))
    summary = Table(f"n = {len(rows)}", ("mean", "spread", "lowest", "highest"), tuple(figures))
    scale = "normalized: 0 random, 1 reference" if "normalized" in quantities else "raw units, no task.normalization"
    return f"{table}\n\n{summary}\n\n{scale}; --json prints full precision"


def _available_quantities(rows: Sequence[EpisodeRow]) -> list[str]:
    """Return the quantities in the rows, which include the normalised reward only if task.normalization is set."""
    return [name for name in _QUANTITY_TITLES if getattr(rows[0], name) is not None]


def _format_quantity(row: EpisodeRow, name: str) -> str:
    return f"{getattr(row, name):{_QUANTITY_FORMATS[name]}}"
