"""``onrig policy check FILE CONFIG`` and ``onrig policy eval FILE CONFIG``: admission verdict and score of a policy."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.hw.transport import LinkError
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.policy.admission import Admitted, Refused
from onrig.runtime.policy.contract import HIDDEN
from onrig.runtime.replay.learners.admission_terms import admission_limits
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.episodes import COLUMNS, EpisodeRow
from onrig.tools.damage import policy_damage
from onrig.tools.evaluate import judge, read_model
from onrig.tools.load import explain, load
from onrig.tools.terminal import Table, VerbParser, complain

_MEASURED: Final = {"reward_sum": "return", "mean_reward": "mean reward", "normalized": "normalized"}
_FORMS: Final = {"reward_sum": ".6g", "mean_reward": ".4g", "normalized": ".4f"}


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = VerbParser(prog="onrig policy", description=__doc__)
    verbs = p.add_subparsers(dest="verb", required=True, metavar="check|eval")
    check = verbs.add_parser("check", help="admission verdict: would the rig accept it")
    evaluation = verbs.add_parser("eval", help="score on the lockstep twin, without exploration")
    for verb in (check, evaluation):
        verb.add_argument("file", type=Path, help="a policy (ONNX)")
        verb.add_argument("config", help="path or shipped name of the rig's configuration")
        verb.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override")
    evaluation.add_argument("--episodes", type=int, default=10, help="number of evaluation episodes (default: 10)")
    evaluation.add_argument("--json", action="store_true", help="print every episode in full precision as JSON")
    evaluation.add_argument("--seed", type=int, help="seed of the run (default: the configuration's)")
    p.add_trust()
    return p


def main(arguments: list[str]) -> int:
    """Check or evaluate a policy; returns the exit code."""
    args = parser().parse_args(arguments)
    try:
        config = load(args.config, args.overrides)
    except ConfigError as error:
        return explain(error)
    if args.verb == "eval":
        if config.device.twin is None:
            return complain("policy", f"{args.config} names a port; policy eval needs a twin ('device: {{twin: ...}}')")
        if args.episodes < 1:
            return complain("policy", f"--episodes: expected at least 1, got {args.episodes}")
        if args.seed is not None and not 0 <= args.seed < 1 << 63:
            return complain("policy", f"--seed: expected 0 to 2^63 - 1, got {args.seed}")
    try:
        model = read_model(args.file, config)
    except OSError as error:
        return complain("policy", f"{args.file}: cannot be read: {error.strerror or error}")
    if isinstance(model, Refused):
        return _refuse(args.file, model)
    damage = policy_damage(args.file)
    if damage is not None:
        return complain("policy", f"{args.file}: {damage}")
    verdict = judge(model, config)
    if isinstance(verdict, Refused):
        return _refuse(args.file, verdict)
    as_json = args.verb == "eval" and args.json
    if not as_json:
        print(f"{args.file}: {_accepted(verdict, config)}")
        for warning in verdict.warnings:
            print(f"  warning: {warning}")
    if args.verb == "check":
        return ExitCode.OK
    return _evaluate(config, model, verdict, args.episodes, args.seed, as_json=as_json)


def _refuse(path: Path, verdict: Refused) -> int:
    return complain("policy", f"{path}: refused at {verdict.stage}: {verdict.reason}")


def _accepted(verdict: Admitted, config: RunConfig) -> str:
    from onrig.runtime.policy.session import evaluator_of

    contract, cost, inputs = verdict.contract, verdict.cost, verdict.ports.inputs
    kinds = [contract.behaviour] if contract.stochastic else []
    kinds += [f"recurrent ({inputs[HIDDEN]} units)"] if HIDDEN in inputs else []
    return (
        f"accepted: {''.join(f'{kind} ' for kind in kinds)}policy {contract.policy_id} of run '{contract.parent_run}' "
        f"after {contract.training_step} training steps; "
        f"p50 {verdict.latency_p50_us:.1f} us, p99 {verdict.latency_p99_us:.1f} us of "
        f"{admission_limits(config).latency_budget_us:g} us; {cost.parameters} parameters, "
        f"{cost.operations} operations; evaluated by {evaluator_of(native=verdict.native)}"
    )


def _evaluate(
    config: RunConfig, model: bytes, verdict: Admitted, episodes: int, seed: int | None, *, as_json: bool
) -> int:
    from onrig.runtime.policy.session import PolicySession
    from onrig.tools.evaluate import evaluate

    policy_id = verdict.contract.policy_id
    try:
        session = PolicySession(model, native=verdict.native)
        rows = list(evaluate(config, session, policy_id, episodes, config.seed if seed is None else seed))
    except LinkError as error:
        return complain("policy", str(error), ExitCode.HARDWARE)
    if as_json:
        summary = {name: measured(rows, name)._asdict() for name in _measured_in(rows)}
        told = {"policy": policy_id, "warnings": verdict.warnings, "episodes": rows_as_dicts(rows), "summary": summary}
        print(msgspec.json.format(msgspec.json.encode(told), indent=1).decode())
    else:
        print(evaluation_text(rows))
    return ExitCode.OK


class Measured(NamedTuple):
    """Statistics of one quantity over all episodes."""

    mean: float
    spread: float
    """Standard deviation over the episodes; 0 for a single one."""
    lowest: float
    highest: float


def measured(rows: Sequence[EpisodeRow], name: str) -> Measured:
    """Statistics of a column over at least one episode."""
    values = [float(value) for row in rows if (value := getattr(row, name)) is not None]
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    return Measured(mean, spread, min(values), max(values))


def rows_as_dicts(rows: Sequence[EpisodeRow]) -> list[dict[str, object]]:
    """All rows in full precision, keyed by the columns of ``episodes.csv``."""
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def evaluation_text(rows: Sequence[EpisodeRow]) -> str:
    """Table of the episodes, equal consecutive ones merged, and their statistics."""
    quantities, stretches = _measured_in(rows), list[list[EpisodeRow]]()
    for row in rows:
        if stretches and row[2:8] == stretches[-1][0][2:8]:
            stretches[-1].append(row)
        else:
            stretches.append([row])
    lines = [
        (
            f"{same[0].episode}" if len(same) == 1 else f"{same[0].episode} to {same[-1].episode}, identical",
            f"{same[0].steps}",
            *(_digits(same[0], name) for name in quantities),
            f"{same[0].interventions}",
        )
        for same in stretches
    ]
    titles = [_MEASURED[name] for name in quantities]
    table = Table("episode", ("steps", *titles, "interventions"), tuple(lines))
    figures = []
    for name in quantities:
        m, form = measured(rows, name), _FORMS[name]
        figures.append((_MEASURED[name], *(f"{value:{form}}" for value in m)))
    summary = Table(f"n = {len(rows)}", ("mean", "spread", "lowest", "highest"), tuple(figures))
    scale = "normalized: 0 random, 1 reference" if "normalized" in quantities else "raw units, no task.normalization"
    return f"{table}\n\n{summary}\n\n{scale}; --json prints full precision"


def _measured_in(rows: Sequence[EpisodeRow]) -> list[str]:
    """Quantities that the rows have: not the normalised reward where the task has no references."""
    return [name for name in _MEASURED if getattr(rows[0], name) is not None]


def _digits(row: EpisodeRow, name: str) -> str:
    return f"{getattr(row, name):{_FORMS[name]}}"
