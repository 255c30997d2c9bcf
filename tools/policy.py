"""``onrig policy check FILE CONFIG`` and ``onrig policy eval FILE CONFIG``: may a policy run, and how good is it?"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from onrig.hw.transport import LinkError
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.policy.admission import Admitted, Refused
from onrig.runtime.replay.learners.policy_desk import admission_limits
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.episodes import EpisodeRow
from onrig.tools.arguments import VerbParser, complain
from onrig.tools.load import explain, load
from onrig.tools.verdict import judge, read_model


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = VerbParser(prog="onrig policy", description=__doc__)
    verbs = p.add_subparsers(dest="verb", required=True, metavar="check|eval")
    check = verbs.add_parser("check", help="the verdict that the rig would give")
    evaluation = verbs.add_parser("eval", help="return on the twin, without exploration, in lockstep")
    for verb in (check, evaluation):
        verb.add_argument("file", type=Path, help="a policy (ONNX)")
        verb.add_argument("config", help="path or shipped name of the rig's configuration")
        verb.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override")
    evaluation.add_argument(
        "--episodes", type=int, default=10, help="evaluation episodes 1 to N of a run (default: 10)"
    )
    evaluation.add_argument("--seed", type=int, help="seed of the run (default: the configuration's)")
    return p


def main(arguments: list[str]) -> int:
    """Judge or measure; returns the exit code."""
    args = parser().parse_args(arguments)
    try:
        config = load(args.config, args.overrides)
    except ConfigError as error:
        return explain(error)
    if args.verb == "eval":
        if config.device.twin is None:
            return complain("policy", f"{args.config} names a port, no twin to try a policy on")
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
    verdict = judge(model, config)
    if isinstance(verdict, Refused):
        return _refuse(args.file, verdict)
    print(f"{args.file}: {_accepted(verdict, config)}")
    for warning in verdict.warnings:
        print(f"  warning: {warning}")
    if args.verb == "check":
        return ExitCode.OK
    return _evaluate(config, model, verdict.contract.policy_id, args.episodes, args.seed)


def _refuse(path: Path, verdict: Refused) -> int:
    return complain("policy", f"{path}: refused at {verdict.stage}: {verdict.reason}")


def _accepted(verdict: Admitted, config: RunConfig) -> str:
    contract, cost = verdict.contract, verdict.cost
    return (
        f"accepted: policy {contract.policy_id} of run '{contract.parent_run}' after {contract.training_step} updates; "
        f"p50 {verdict.latency_p50_us:.1f} us, p99 {verdict.latency_p99_us:.1f} us of "
        f"{admission_limits(config).latency_budget_us:g} us; {cost.parameters} parameters, {cost.operations} operations"
    )


def _evaluate(config: RunConfig, model: bytes, policy_id: int, episodes: int, seed: int | None) -> int:
    from onrig.runtime.policy.session import PolicySession
    from onrig.tools.evaluate import evaluate

    rows: list[EpisodeRow] = []
    print("episode  steps  return               mean reward  normalized  interventions")
    try:
        for row in evaluate(config, PolicySession(model), policy_id, episodes, config.seed if seed is None else seed):
            rows.append(row)
            print(
                f"{row.episode:<7}  {row.steps:<5}  {row.reward_sum!r:<19}  {row.mean_reward:<11.6g}  "
                f"{row.normalized:<10.4f}  {row.interventions}",
                flush=True,
            )
    except LinkError as error:
        return complain("policy", str(error), ExitCode.HARDWARE)
    n = len(rows)
    print(
        f"mean of {n}: return {math.fsum(r.reward_sum for r in rows) / n:.6g}, "
        f"mean reward {math.fsum(r.mean_reward for r in rows) / n:.6g}, "
        f"normalized {math.fsum(r.normalized for r in rows) / n:.4f} (0 random, 1 reference)"
    )
    return ExitCode.OK
