"""Progress of a verb."""

from __future__ import annotations

from onrig.tools.progress import PlainProgress


def test_progress_shows_how_much_is_left() -> None:
    now_s = 0.0
    progress = PlainProgress(40.0, lambda: now_s)
    progress.begin_step("this")
    progress.finish_step(10.0)
    now_s = 6.0
    assert progress.line() == " 25%  this, about 18 s left"
