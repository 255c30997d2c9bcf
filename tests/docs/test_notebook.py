"""The notebook runs from top to bottom, as a kernel would run it, without jupyter and with fewer episodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

NOTEBOOK: Final = Path(__file__).parents[2] / "docs/examples/notebook/from-a-run-to-a-figure.ipynb"
_RUN: Final = """
import json, sys
import matplotlib
matplotlib.use("agg")
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]).replace("EPISODES = 40", "EPISODES = 6"), names)
names["figure"].savefig("figure.png")
"""


def cells(kind: str) -> list[str]:
    found = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_every_cell_runs_in_order(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("mcap")
    words = [sys.executable, "-c", _RUN, str(NOTEBOOK)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("mean over the evaluations: ")
    assert any("experiences at its start" in line for line in lines)


def test_the_notebook_is_stored_without_outputs() -> None:
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_the_notebooks_code_is_formatted_like_ours(tmp_path: Path) -> None:
    for n, code in enumerate(cells("code")):
        (tmp_path / f"cell_{n}.py").write_text(code + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "120", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
