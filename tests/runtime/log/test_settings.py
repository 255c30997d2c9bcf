"""The section ``log``."""

from __future__ import annotations

import pytest

from onrig.runtime.log.settings import Log, log_findings
from onrig.runtime.run_loading import load_run


def test_the_log_is_on_where_it_can_be_unless_told_otherwise() -> None:
    assert load_run("pendulum").log == Log(mcap="auto", decimation=1, max_bytes=None)
    assert load_run("pendulum", ["log.mcap=false"]).log.mcap is False


@pytest.mark.parametrize(
    ("log", "at"),
    [
        (Log(decimation=0), ("log", "decimation")),
        (Log(max_bytes=0), ("log", "max_bytes")),
        (Log(keep_free_bytes=-1), ("log", "keep_free_bytes")),
    ],
)
def test_what_makes_no_sense_is_found_at_its_place(log: Log, at: tuple[str, str]) -> None:
    assert [finding[0] for finding in log_findings(log)] == [at]


def test_a_sound_section_has_no_findings() -> None:
    assert list(log_findings(Log(mcap=True, decimation=4, max_bytes=1, keep_free_bytes=0))) == []
