"""Sound configurations spoiled in one place, and what is said of them."""

from __future__ import annotations

import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.run_loading import load_run


def spoiled(sound: str, before: str, after: str) -> tuple[str, str]:
    """``sound`` with ``after`` in place of ``before``, and where the culprit, which stands after a «, is: LINE:COL.

    A » may end it.
    """
    assert sound.count(before) == 1
    marked = sound.replace(before, after)
    at = marked.index("«")
    where = f"{marked.count(chr(10), 0, at) + 1}:{at - marked.rfind(chr(10), 0, at)}"
    return marked.replace("«", "").replace("»", ""), where


def told(run: str, *overrides: str) -> list[str]:
    """The problems, a line each, with which a run is refused."""
    with pytest.raises(ConfigError) as error:
        load_run(run, overrides)
    return [str(problem) for problem in error.value.problems]
