"""Small experiments for tests."""

from __future__ import annotations

import textwrap
from pathlib import Path

from onrig.tools.experiments.grid import expand_spec
from onrig.tools.experiments.spec import load_spec
from onrig.tools.experiments.store import Cell

SMALL_SPEC = """
    name: small
    title: A small one
    trials: 4
    episodes: 3
    set: {task.episode_s: 0.4}
    blocks:
      - config: pendulum
        grid:
          strategy: ["FIFO[Uniform]", "FULL[PER]"]
          rate_hz: [50, 100]
      - config: pendulum
        set: {noise: 0.02}
    """


def write_spec(folder: Path, text: str, name: str = "small.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return path


def cells(path: Path) -> list[Cell]:
    expanded = expand_spec(load_spec(path), lambda config, settings: [])
    return [cell for cell in expanded if isinstance(cell, Cell)]


def small_cells(folder: Path) -> list[Cell]:
    return cells(write_spec(folder, SMALL_SPEC))


def trial_files(folder: Path) -> dict[str, bytes]:
    """Every result under a folder, by its name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "trials").rglob("*"))
        if path.is_file()
    }
