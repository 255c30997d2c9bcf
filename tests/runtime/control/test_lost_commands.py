"""Rate and jerk are limits of the applied output, whatever frames and commands are lost in transit."""

from __future__ import annotations

import pytest

from onrig.runtime.run_loading import load_run
from tests.runtime.control.lossy_line import run_lossy

PENDULUM = ("limits.rate_per_s={voltage: 15}", "limits.jerk_per_s2={voltage: 250}")
"""0.3 V per period, changed by at most 0.1 V."""
COILS = [f"current_{n}" for n in (1, 2, 3, 4)]
MAGMAN = (
    f"limits.rate_per_s={{{', '.join(f'{name}: 3' for name in COILS)}}}",
    f"limits.jerk_per_s2={{{', '.join(f'{name}: 50' for name in COILS)}}}",
)
CASES = [
    pytest.param("pendulum", PENDULUM, id="pendulum"),
    pytest.param("pendulum", PENDULUM[:1], id="rate alone"),
    pytest.param("magman", MAGMAN, id="magman"),
]


@pytest.mark.parametrize(("config", "limits"), CASES)
def test_no_switch_of_the_output_exceeds_its_limits(config: str, limits: tuple[str, ...]) -> None:
    account = run_lossy(load_run(config, limits), 250, seed=1)
    assert account.violations == ()
    assert account.n_switches > 100
    assert account.n_exempt > 0
