"""The section ``log``."""

from __future__ import annotations

import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.process_settings import Log
from onrig.runtime.run_loading import load_run


def test_the_log_is_enabled_where_possible_by_default() -> None:
    assert load_run("pendulum").log == Log(mcap="auto", decimation=1, max_bytes=None)
    assert load_run("pendulum", ["log.mcap=false"]).log.mcap is False


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("log.decimation=0", "expected at least 1, got 0 at log.decimation"),
        ("log.max_bytes=0", "expected at least 1, got 0 at log.max_bytes"),
        ("log.keep_free_bytes=-1", "expected 0 or more, got -1 at log.keep_free_bytes"),
    ],
)
def test_nonsensical_settings_are_refused_with_their_place(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", [override])
    assert str(error.value) == f"--set {override}:1:1: {message}"


def test_a_valid_section_is_accepted() -> None:
    log = load_run("pendulum", ["log={mcap: true, decimation: 4, max_bytes: 1, keep_free_bytes: 0}"]).log
    assert log == Log(mcap=True, decimation=4, max_bytes=1, keep_free_bytes=0)
