"""Ten thousand lost frames and commands under limits of rate and jerk (runtime/SAFETY.md)."""

from __future__ import annotations

import pytest

from onrig.runtime.run_loading import load_run
from tests.runtime.control.lossy_line import run_lossy
from tests.runtime.control.test_lost_commands import CASES

LOSSES = 10_000


@pytest.mark.study
@pytest.mark.parametrize(("config", "limits"), CASES)
def test_over_many_more_losses_no_switch_exceeds_its_limits(config: str, limits: tuple[str, ...]) -> None:
    account = run_lossy(load_run(config, limits), LOSSES, seed=2)
    print(
        f"{config}: {account.n_lost} lost, {account.n_switches} switches within the limits, {account.n_exempt} exempt"
    )
    assert account.violations == ()
