"""The lockstep rule: same configuration and seed, same episodes, same memory, same policy, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from onrig.runtime.exit_codes import ExitCode
from tests.processes.observer import digest_of
from tests.processes.rig import Run


class Outcome(NamedTuple):
    """What a run leaves behind that must be equal."""

    episodes: bytes
    memory: object
    policy: bytes


def outcome(run: Run) -> Outcome:
    assert run.ended() == ExitCode.OK
    assert run.leftovers() == []
    policy = run.folder / "policies" / f"{run.policies()[-1]}.onnx"
    return Outcome((run.folder / "episodes.csv").read_bytes(), digest_of(run), policy.read_bytes())


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ("pendulum", ("episodes=6", "learner.updates_per_episode=20")),
        ("magman", ("episodes=3", "learner.updates_per_episode=20")),
    ],
)
def test_equal_runs_are_equal_bit_for_bit_and_another_seed_is_another_run(
    tmp_path: Path, config: str, settings: tuple[str, ...]
) -> None:
    with (
        Run(tmp_path / "first", config, *settings) as first,
        Run(tmp_path / "again", config, *settings) as again,
        Run(tmp_path / "other", config, *settings, "seed=1") as other,
    ):
        results = [outcome(run) for run in (first, again, other)]
    assert results[0] == results[1]
    assert all(a != b for a, b in zip(results[0], results[2], strict=True))
