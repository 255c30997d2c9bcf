"""``onrig service``: see ``onrig.tools.install_service``."""

from __future__ import annotations

from onrig.tools.install_service import main

__all__ = ["main"]
