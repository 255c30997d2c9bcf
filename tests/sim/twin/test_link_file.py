"""Link file of a twin."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.sim.twin.link_file import keep_link_file, link_problem
from onrig.sim.twin.main import faults_on_demand, serve
from onrig.tools.load import load


def test_a_link_names_the_line_and_is_removed_with_it(tmp_path: Path) -> None:
    link = tmp_path / "link"
    with keep_link_file(link, "/dev/pts/7"):
        assert link.read_text() == "/dev/pts/7\n"
    assert not link.exists()


def test_a_link_left_by_a_killed_twin_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "link"
    for left in ("/dev/pts/3\n", "/dev/shm/onrig-1-x/device\n"):
        link.write_text(left)
        assert link_problem(link) is None
        with keep_link_file(link, "/dev/pts/7"):
            assert link.read_text() == "/dev/pts/7\n"


@pytest.mark.parametrize("content", ["", "precious\n", "/dev/pts/3", "/dev/pts/3\nmore\n", "/etc/passwd\n"])
def test_a_file_of_another_user_is_neither_replaced_nor_removed(tmp_path: Path, content: str) -> None:
    link = tmp_path / "link"
    link.write_text(content)
    assert "is not a twin's link file" in (link_problem(link) or "")
    with pytest.raises(OSError, match="is not a twin's link file"), keep_link_file(link, "/dev/pts/7"):
        pass
    assert link.read_text() == content


def test_other_existing_files_are_neither_replaced_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "ours").write_text("/dev/pts/3\n")
    (tmp_path / "symlink").symlink_to("ours")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("folder", "fifo", "symlink", "dangling"):
        assert "is not a twin's link file" in (link_problem(tmp_path / name) or "")


@pytest.mark.parametrize("content", ["/dev/pts/8\n", "mine now\n"])
def test_a_link_taken_over_by_someone_else_is_kept(tmp_path: Path, content: str) -> None:
    link = tmp_path / "link"
    with keep_link_file(link, "/dev/pts/7"):
        link.write_text(content)
    assert link.read_text() == content


def test_a_reader_of_a_link_may_send_signals_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a handler SIGUSR1, which presses the e-stop, would end the twin."""
    signals = [signal.SIGTERM, signal.SIGINT, *faults_on_demand()]
    handlers_before = {signum: signal.getsignal(signum) for signum in signals}
    handlers_at_link: list[object] = []

    def record_handlers(link: Path, line: str) -> None:
        handlers_at_link.extend(signal.getsignal(signum) for signum in signals)
        raise OSError("no link here")

    monkeypatch.setattr("onrig.sim.twin.main.keep_link_file", record_handlers)
    try:
        assert serve(load("pendulum", []), None, tmp_path / "link") == ExitCode.CONFIGURATION
    finally:
        for signum, handler in handlers_before.items():
            signal.signal(signum, handler)
    assert handlers_at_link
    assert not set(handlers_at_link) & {signal.SIG_DFL, *handlers_before.values()}
