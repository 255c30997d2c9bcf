from __future__ import annotations

import pytest

from onrig.runtime.config.document import shipped_names
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.policy.settings import Probation
from onrig.runtime.process_settings import Staleness
from onrig.runtime.run_loading import load_run


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "probation.duration_s=0",
            "more than 0, at most 86400, got 0 at probation.duration_s (null instead of",
        ),
        ("probation.duration_s=1e9", "expected more than 0, at most 86400, got 1e+09"),
        ("probation.slow_share=0", "expected more than 0, at most 1, got 0 at probation.slow_share"),
        ("probation.slow_share=1.5", "expected more than 0, at most 1, got 1.5 at probation.slow_share"),
        ("probation.slow_ticks=0", "expected at least 1, got 0 at probation.slow_ticks"),
        ("probation.excess_fallback=-0.1", "expected 0 or more, got -0.1 at probation.excess_fallback"),
        ("probation.slow_tick=3", "did you mean 'slow_ticks'?"),
        ("staleness.after_s=0.5", "expected at least 1, got 0.5 at staleness.after_s"),
        ("staleness.factor=2", "expected 0 to 1, got 2 at staleness.factor"),
        ("staleness.then=fallback", "at staleness.then (did you mean 'fall_back'?)"),
    ],
)
def test_nonsensical_settings_are_refused_with_their_place(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", [override])
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"--set {override}:1:")
    assert message in line


def test_lowering_exploration_requires_exploration() -> None:
    with pytest.raises(ConfigError, match="'lower' needs an exploration process at"):
        load_run("pendulum", ["staleness.then=lower", "exploration={process: none}"])
    assert load_run("pendulum", ["staleness.then=lower"]).staleness == Staleness(then="lower")


def test_probation_is_enabled_by_default() -> None:
    assert load_run("pendulum", ["probation=null"]).probation is None
    assert load_run("pendulum").probation == Probation()
    for name in shipped_names():
        assert load_run(name).probation is not None
