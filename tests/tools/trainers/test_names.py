"""The public names: imported on first use, listed on a page."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onrig
from tests.docs.commands import ROOT


def test_importing_the_package_imports_nothing_else() -> None:
    heavy_packages = ("numpy", "msgspec", "gymnasium", "torch", "onrig.tools")
    code = f"import sys, onrig; print([name for name in {heavy_packages} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_every_name_exists_and_is_on_the_page() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert sorted(onrig._HOMES) == sorted(onrig.__all__)
    for name in onrig.__all__:
        assert callable(getattr(onrig, name)) or isinstance(getattr(onrig, name), str)
        assert name in dir(onrig)
        assert f"`onrig.{name}" in page
    with pytest.raises(AttributeError, match="no attribute 'mak'"):
        onrig.mak  # noqa: B018
