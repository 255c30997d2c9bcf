"""docs/logs.md: its program runs, and its tables match the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec

from onrig.runtime.log import messages
from onrig.runtime.log.steps import StepMessages
from onrig.runtime.process_settings import Log
from tests.runtime.samples import PENDULUM
from tests.tools.replaying.runs import LoggedRun

PAGE = (Path(__file__).parents[3] / "docs" / "logs.md").read_text(encoding="utf-8")


def rows_after(heading: str) -> list[list[str]]:
    """Cells of the first table after a text, without its header."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    table = lines[next(i for i, x in enumerate(lines) if x.startswith("|")) :]
    table = table[: next((i for i, x in enumerate(table) if not x.startswith("|")), len(table))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def names_in_code(cell: str) -> list[str]:
    return re.findall(r"`([\w./]+)`", cell)


def test_the_program_on_the_page_prints_every_tick(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1").run()
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "read.py").write_text(program)
    process = subprocess.run(
        [sys.executable, str(tmp_path / "read.py"), str(run.folder / "log.mcap")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    printed_rows = [line.split() for line in process.stdout.splitlines()]
    assert [(int(t), int(e)) for t, e, *_ in printed_rows] == [
        (int(r["t_mono_ns"]), int(r["episode"])) for r in run.records
    ]


def test_the_table_lists_exactly_the_fields_of_a_step() -> None:
    documented = [name for row in rows_after("### onrig.Step") for name in names_in_code(row[0])]
    [step] = StepMessages(PENDULUM.rig, behaviour=True, inputs=("cos_angle",)).file.messages
    assert sorted(documented) == sorted(f.name for f in step.fields)


def test_every_channel_is_in_its_table_with_its_fields() -> None:
    rows = rows_after("## The channels")
    assert [names_in_code(row[0]) for row in rows] == [[c.topic] for c in messages.channels(StepMessages(PENDULUM.rig))]
    for row, message in ((rows[2], messages.POLICY), (rows[3], messages.LOOP_STATE), (rows[4], messages.EVENT)):
        assert names_in_code(row[1])[1:] == [f.name for f in message.fields]


def test_every_setting_is_in_its_table_with_its_default() -> None:
    documented = {names_in_code(row[0])[0]: row[1].strip("`").replace(" ", "") for row in rows_after("| `log:` in a")}
    fields = msgspec.structs.fields(Log)
    assert documented == {f.name: str(f.default).replace("None", "null") for f in fields}
