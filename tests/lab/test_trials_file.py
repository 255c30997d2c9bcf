"""Files of finished trials."""

from __future__ import annotations

from pathlib import Path

from tests.lab.trials_file import append_lines


def test_lines_are_appended_after_complete_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    append_lines(path, b"one\n")
    with path.open("ab") as file:
        file.write(b"tw")
    append_lines(path, b"three\n")
    append_lines(path, b"four\n")
    assert path.read_bytes() == b"one\ntw\nthree\nfour\n"
