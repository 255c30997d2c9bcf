from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the beam whose table is computed once."""
    return tmp_path_factory.mktemp("beam")
