"""``onrig service``: see ``tools.install_service``."""

from __future__ import annotations

from tools.install_service import main

__all__ = ["main"]
