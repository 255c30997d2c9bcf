"""The trials behind the published pages: present, readable by this version, and small enough for the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.experiments.store import read_cells, read_spec, read_trials

PAGES = Path(__file__).parents[2] / "docs" / "experiments"
KEPT = sorted(path for path in (PAGES / "data").iterdir() if path.is_dir())
MAX_BYTES = 20_000_000


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_a_page_can_be_redrawn_from_the_kept_trials(folder: Path) -> None:
    assert read_spec(folder).name == folder.name
    assert (PAGES / f"{folder.name}.md").exists()
    for cell in read_cells(folder):
        read_trials(folder, cell)
    assert any(len(read_trials(folder, cell).seeds) for cell in read_cells(folder))


def test_kept_trials_fit_into_the_repository() -> None:
    assert sum(file.stat().st_size for file in (PAGES / "data").rglob("*") if file.is_file()) < MAX_BYTES
