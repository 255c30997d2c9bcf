"""The lockstep rule: same configuration and seed, same episodes, same memory, same policy, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from runtime.exit_codes import ExitCode
from tests.processes.rig import Run


class Outcome(NamedTuple):
    """What a run leaves behind that must be equal."""

    episodes: bytes
    memory: object
    policy: bytes


def outcome(folder: Path, config: str, *settings: str) -> Outcome:
    with Run(folder, config, *settings) as run:
        assert run.ended() == ExitCode.OK
        assert run.leftovers() == []
        buffer = msgspec.convert(run.summary()["buffer"], dict[str, object])
        last = run.folder / "policies" / f"{run.policies()[-1]}.onnx"
        return Outcome((run.folder / "episodes.csv").read_bytes(), buffer["digest"], last.read_bytes())


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
    first, again = (outcome(tmp_path / name, config, *settings) for name in ("first", "again"))
    assert first == again
    other = outcome(tmp_path / "other", config, *settings, "seed=1")
    assert all(a != b for a, b in zip(first, other, strict=True))
