"""The rewards of docs/your-rig.md are valid tasks for the rigs described in their first lines."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from onrig.hw.rig import Rig
from onrig.runtime.config.registered import convert
from onrig.runtime.expressions.syntax import FUNCTIONS, MAX_DEPTH, MAX_NODES
from onrig.runtime.expressions.tokens import MAX_LENGTH
from onrig.runtime.registry import REWARDS, builtin_names
from onrig.runtime.scoring import early_end
from onrig.runtime.task import Task
from onrig.runtime.task_checks import task_problems
from tests.docs.commands import ROOT

PAGE = (ROOT / "docs" / "your-rig.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n# rig (\w+): observations ([^\n]*), actuator ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)
SIGNAL = re.compile(r"(\w+) \((\S+)\)")


def rig_of(name: str, observations: str, actuator: str) -> Rig:
    signals = [{"name": n, "unit": unit, "low": -200.0, "high": 200.0} for n, unit in SIGNAL.findall(observations)]
    sensors = [{"name": s["name"], "unit": s["unit"], "resolution": 1e-3} for s in signals]
    ((driven, unit),) = SIGNAL.findall(actuator)
    actuators = [{"name": driven, "unit": unit, "resolution": 1e-3, "low": -12.0, "high": 12.0, "safe": 0.0}]
    described: dict[str, Any] = {"name": name, "sensors": sensors, "observations": signals, "actuators": actuators}
    rig: Rig = convert({**described, "lease_periods": 5}, Rig)
    return rig


@pytest.mark.parametrize("block", BLOCKS, ids=[block[0] for block in BLOCKS])
def test_a_reward_on_the_page_is_a_valid_task(block: tuple[str, str, str, str]) -> None:
    rig = rig_of(*block[:3])
    task = convert({"name": "page", "episode_s": 4.0, "start": {}, **yaml.safe_load(block[3])}, Task)
    assert task_problems(task, rig) == []
    if task.may_terminate:
        assert not early_end(task, rig, 200, 0.95).is_profitable


def test_the_page_has_three_rewards_and_describes_the_language() -> None:
    assert [block[0] for block in BLOCKS] == ["motor", "cartpole", "beam"]
    assert {name for name in FUNCTIONS if f"{name}" in PAGE} == set(FUNCTIONS)
    for limit in (f"{MAX_LENGTH} characters", f"{MAX_NODES} operations", f"{MAX_DEPTH} nested levels"):
        assert limit in PAGE


def test_the_table_lists_every_term() -> None:
    table = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
    assert [kind for kind in builtin_names(REWARDS) if f"| `{kind}` | " not in table] == []
