"""Valid configurations with one mistake, and the resulting messages."""

from __future__ import annotations

import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.run_loading import load_run


def replace_and_locate(text: str, old: str, new: str) -> tuple[str, str]:
    """``text`` with ``new`` in place of ``old``, and LINE:COL of the culprit, which follows a « in ``new``.

    A » may end it.
    """
    assert text.count(old) == 1
    marked_text = text.replace(old, new)
    offset = marked_text.index("«")
    location = f"{marked_text.count(chr(10), 0, offset) + 1}:{offset - marked_text.rfind(chr(10), 0, offset)}"
    return marked_text.replace("«", "").replace("»", ""), location


def collect_problems(run: str, *overrides: str) -> list[str]:
    """The problems for which a run is refused, one line each."""
    with pytest.raises(ConfigError) as error:
        load_run(run, overrides)
    return [str(problem) for problem in error.value.problems]
