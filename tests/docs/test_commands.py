"""The commands in the documentation work: options exist, arguments parse, and each page can be followed.

Commands that would take minutes are shortened (``tests/docs/shortened.py``).
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from onrig.tools.cli import VERBS, main
from onrig.tools.first_rig import BENCH_FILE
from tests.docs.commands import PAGES, ROOT, Command, commands_of, every_command
from tests.docs.shortened import PORT, shortened, shortened_in_laboratory
from tests.lab.rig.processes import process_of, until
from tests.lab.rig.run import UNHURRIED

OTHERS: Final = {
    ".", "apt", "apt-cache", "cd", "cyclictest", "echo", "git", "groups", "journalctl", "ls", "make", "pip",
    ".venv/bin/pip", "plotjuggler", "ps", "python3", "reboot", "scp", "sh", "ssh", "sudo", "systemctl",
    "systemd-analyze", "udevadm", "uname",
}  # fmt: skip
"""Third-party programs; for ``make`` the target is looked up."""
_OPTION: Final = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


class Executed(NamedTuple):
    """An executed command, and its location."""

    words: list[str]
    folder: Path


def _ours(command: Command) -> list[str] | None:
    """The verb and its arguments, or a module's; None for third-party programs."""
    words = command.words
    if words == ["make", "run"]:
        return ["-m", "onrig.tools.cli", "run", "pendulum"]
    if words[0] in ("onrig", ".venv/bin/onrig"):
        return ["-m", "onrig.tools.cli", *words[1:]]
    if words[0] in ("python", ".venv/bin/python") and words[1:2] == ["-m"]:
        return words[1:]
    return None


def _run(arguments: list[str], folder: Path, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}  # the laboratory's
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@functools.cache
def _help_of(*subject: str) -> str:
    """The help text of a verb (of a benchmark, of a module)."""
    if subject[:2] == ("-m", "onrig.tools.cli"):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            assert main([*subject[2:], "--help"]) == 0
        return out.getvalue()
    done = _run([*subject, "--help"], ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pages_have_commands() -> None:
    assert len(every_command()) > 15
    assert ROOT / "README.md" in PAGES


@pytest.mark.parametrize("command", every_command(), ids=lambda c: c.name)
def test_commands_on_the_pages_exist(command: Command) -> None:
    ours = _ours(command)
    if ours is None:
        assert command.words[0] in OTHERS, "an unknown third-party program"
        if command.words[0] == "make" and command.page.name == "README.md":  # on other pages it builds a kernel
            targets = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{command.words[1]}:", targets, re.MULTILINE)
        return
    subject = ours[:2]
    if subject == ["-m", "onrig.tools.cli"]:
        verb = ours[2]
        if verb.startswith("-"):
            return
        assert verb in VERBS
        subject = ours[: 4 if verb in ("bench", "policy") else 3]
    page = _help_of(*subject)
    for option in _OPTION.findall(" ".join(w for w in ours[len(subject) :] if w.startswith("-"))):
        assert option in page, f"{option} is no option of `{' '.join(subject[2:] or subject)}`"


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The port of the device that represents every port in the documentation."""
    link = tmp_path_factory.mktemp("device") / "link"
    settings = [word for setting in ("device.pace=realtime", *UNHURRIED) for word in ("--set", setting)]
    with process_of("onrig.tools.cli", "twin", "pendulum-hardware", "--link", link, *settings) as twin:
        yield until(lambda: link.exists() and link.read_text().strip(), "the twin", twin)


@pytest.fixture(scope="module")
def executed() -> list[Executed]:
    """Commands executed on earlier pages."""
    return []


# Those of a template are followed in its files, by tests/tools/verbs/test_init.py and tests/docs/test_examples.py.
FOLLOWED: Final = [p for p in PAGES if commands_of(p) and not (p.parent / BENCH_FILE).exists()]


SLOW: Final = ("docs/real-time.md", "docs/choosing-a-strategy.md", "docs/timing.md")
"""Pages whose commands take half a minute together: followed by `make study`."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.study if p in [ROOT / s for s in SLOW] else ()) for p in FOLLOWED],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_a_page_can_be_followed_from_top_to_bottom(
    page: Path, tmp_path: Path, device: str, executed: list[Executed]
) -> None:
    not_made: list[str] = []
    """Folders that would have been created by a command that is not executed, or only in part."""
    folder = tmp_path
    for command in commands_of(page):
        ours = _ours(command)
        if command.words[0] == "cd" and (folder / command.words[1]).is_dir():
            folder /= command.words[1]
        if ours is None or any(_names(word, made) for word in ours for made in not_made):
            continue
        words = ours
        if ours[1].startswith("tests.lab."):
            listed = shortened_in_laboratory(ours)
            if listed is None:
                continue
            words = listed
        if ours[1] == "onrig.tools.cli":
            short = shortened(ours[2:], [e.words for e in executed])
            if short is None or "--dry-run" in short:
                not_made += [after for word, after in itertools.pairwise(ours) if word in ("--out", "--run-dir")]
            if short is None:
                continue
            if any(_made_before(short, before, folder) for before in executed if before.folder != folder):
                continue
            executed.append(Executed(short, folder))
            words = [*ours[:2], *short]
        arguments = _expanded(words, folder)
        if ours[2:3] == ["twin"]:
            _serve_for_a_moment(arguments, folder)
            continue
        done = _run([device if word == PORT else word for word in arguments], folder)
        assert done.returncode == 0, f"{command.name}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def _names(word: str, folder: str) -> bool:
    """Whether an argument is a folder or inside one."""
    return re.search(rf"(^|=){re.escape(folder)}(/|$)", word) is not None


def _made_before(words: list[str], before: Executed, folder: Path) -> bool:
    """Whether a command of an earlier page did everything that this one does; its run is then copied to ``folder``."""
    if words[0] not in ("check", "experiment", "run") or not set(words) <= set(before.words):
        return False
    if "--dry-run" in set(before.words) - set(words):
        return False
    if "--run-dir" in words and "--dry-run" not in words:
        run = words[words.index("--run-dir") + 1]
        shutil.copytree(before.folder / run, folder / run)
    return True


def _serve_for_a_moment(arguments: list[str], folder: Path) -> None:
    """Start a twin on one end of a line, and end it."""
    host, end = os.openpty()
    try:
        command = [sys.executable, *(os.ttyname(end) if word == PORT else word for word in arguments)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as twin:
            try:
                assert twin.stdout is not None
                assert twin.stdout.readline().strip() == os.ttyname(end)
                twin.terminate()
                assert twin.wait(60) == 0
            finally:
                twin.kill()
    finally:
        os.close(host)
        os.close(end)


def _expanded(arguments: list[str], folder: Path) -> list[str]:
    """Expand wildcards as a shell would, and replace any policy named on the page by the only one of a short run."""
    out: list[str] = []
    for word in arguments:
        word = re.sub(r"policies/\d+\.onnx", "policies/1.onnx", word)
        matches = sorted(str(p.relative_to(folder)) for p in folder.glob(word)) if "*" in word else []
        out += matches or [word]
    return out
