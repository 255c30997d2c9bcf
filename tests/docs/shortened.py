"""Documented commands as a test executes them: in full, shortened, or not at all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

from tests.lab.rig.run import UNHURRIED

PORT: Final = "/dev/ttyUSB0"
"""Represents a device in the documentation; a twin in the tests."""
_REAL_TIME: Final = re.compile(r"device\.pace=\{?(realtime|scaled)")
_LOOKED_AT: Final = "figure-12-quick"
"""The one experiment that is executed, and ``_ONE_CELL`` of it."""
_ONE_CELL: Final = ("--only", "config=pendulum", "--only", "strategy=FIFO[Uniform]")
_FROM_ANOTHER_RUN: Final = ("selection.seed_from=", "learner.start_from=", "--pretrained")
_BRIEF: Final = (
    *("episodes=1", "task.episode_s=0.5", "evaluate_every=0"),
    *("learner.updates_per_episode=1", "learner.updates_per_transition=null"),
)


def shortened(arguments: list[str], before: Sequence[list[str]]) -> list[str] | None:
    """The arguments of ``onrig`` (verb first) that are executed in place of ``arguments``; None: not executed here.

    ``before``: commands executed on earlier pages.  Executed once each: the loop's benchmark, a run in lockstep and
    one in real time, an experiment, and an examination of the machine with and without a configuration; other runs are
    only checked.
    """
    verb, rest = arguments[0], arguments[1:]
    if verb == "run" and any(word.startswith(_FROM_ANOTHER_RUN) for word in rest):
        return None  # tests/tools/test_beginning.py, tests/tools/pretraining
    if verb == "advise" or "--advised" in rest:
        return None  # minutes of computing; tests/tools/advice runs small races
    if verb == "run":
        return _run(rest, before)
    if verb == "experiment":  # hours of computing; tests/tools/experiments checks all of them and runs small ones
        if rest[0] != _LOOKED_AT or "--only" in rest or any(words[0] == "experiment" for words in before):
            return None
        # One cell: every kind is timed.
        return ["experiment", *rest, *([] if "--dry-run" in rest else ["--dry-run"]), *_ONE_CELL]
    if verb == "report" and rest[0].startswith("docs/experiments/data/"):
        return None  # tests/docs/test_kept_trials.py reads the kept trials
    if verb == "bench":
        return None if any(words[0] == "bench" for words in before) else _bench(rest)
    if verb == "doctor":
        with_config = [bool(words[1:] and not words[1].startswith("-")) for words in before if words[0] == "doctor"]
        return None if bool(rest and not rest[0].startswith("-")) in with_config else arguments
    # They have their own tests: tests/tools/identification, tests/tools/pretraining, tests/tools/test_baseline.py.  A
    # learner needs a running rig: tests/processes/test_remote_learner.py.  A service needs root, or a home:
    # tests/tools/service/test_verb.py.
    return None if verb in ("baseline", "identify", "learn", "pretrain", "service") else arguments


def shortened_in_laboratory(command: list[str]) -> list[str] | None:
    """The executed words of a command of the laboratory (``-m tests.lab.NAME`` first); None: not executed here.

    Commands that take hours only list their parts; tests/lab runs short ones.
    """
    listing = {"tests.lab.attack": "--list", "tests.lab.soak": "--plan"}.get(command[1])
    return None if listing is None else [*command, listing]


def _run(rest: list[str], before: Sequence[list[str]]) -> list[str]:
    settings = [word for setting in (*UNHURRIED, *_BRIEF) for word in ("--set", setting)]
    waits_for_a_learner = "local_learner=false" in rest
    for_all_to_see = any(word.startswith("0.0.0.0") for word in rest)
    if "--dry-run" in rest or waits_for_a_learner or for_all_to_see:
        return ["run", *rest, *([] if "--dry-run" in rest else ["--dry-run"])]
    pace = _REAL_TIME.search(" ".join(rest))
    if pace is not None and any(_REAL_TIME.search(" ".join(words)) for words in before if _executed_run(words)):
        return ["run", *rest, "--dry-run"]
    if pace is not None:
        return ["run", *rest, *settings]
    short = ["run", *rest, "--set", "episodes=2"]
    others = [words for words in before if _executed_run(words) and not _REAL_TIME.search(" ".join(words))]
    if "--resume" in rest or (others and not any(set(short) <= set(words) for words in others)):
        return ["run", *rest, "--dry-run"]
    return short


def _executed_run(words: list[str]) -> bool:
    return words[0] == "run" and "--dry-run" not in words


def _bench(rest: list[str]) -> list[str] | None:
    """One second at a low rate, without peers; the others take minutes even if shortened."""
    if rest[0] != "loop" or "--device" in rest or "--against" in rest:
        return None
    less = {"--seconds": "1", "--rate": "50"}
    words = [less.get(before, word) for before, word in itertools.pairwise(["", *rest])]
    missing = [word for option, value in less.items() if option not in rest for word in (option, value)]
    return ["bench", *words, *missing, "--without", "cyclictest,burner,web,learner"]
