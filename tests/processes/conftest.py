from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def without_plots(no_plots: None) -> None:
    """The results of these runs are in other files; tests/docs and tests/tools/reports check the plots."""
