"""Completion in a real bash, and in zsh where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from onrig.runtime.config.document import shipped_names
from onrig.tools.cli import VERBS, all_verbs, main, members
from onrig.tools.completion import script
from onrig.tools.options import arguments_of, verb_module

_COMPLETION_PROGRAM = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _onrig
for word in "${COMPREPLY[@]}"; do echo "$word"; done
"""
SCRIPT = script("bash", {verb: members(verb) for verb in VERBS}, all_verbs())


def complete_words(folder: Path, *words: str) -> list[str]:
    """Completions that bash offers for the last of the words."""
    command = ["bash", "--noprofile", "--norc", "-c", SCRIPT + _COMPLETION_PROGRAM, "bash", "onrig", *words]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    assert process.stderr == ""
    return process.stdout.splitlines()


@pytest.fixture
def working_folder(tmp_path: Path) -> Path:
    """A folder with two runs, a configuration and a folder of results."""
    for name in ("runs/first", "runs/second one", "results"):
        (tmp_path / name).mkdir(parents=True)
    for run in ("first", "second one"):
        (tmp_path / "runs" / run / "meta.json").write_text("{}")
    (tmp_path / "mine.yaml").write_text("")
    (tmp_path / "policy.onnx").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ru", ["run"]),
        ("policy ", ["check", "eval", "renew", "stamp", "to-c"]),
        ("bench lo", ["loop"]),
        ("run --d", ["--device", "--dry-run"]),
        ("run pend", [name for name in shipped_names() if name.startswith("pend")]),
        ("run mi", ["mine.yaml"]),
        ("run pendulum --run-dir res", ["results"]),
        ("run --set seed=3 magm", ["magman"]),
        ("experiment figure-12", ["figure-12", "figure-12-quick"]),
        ("watch ", ["runs/first", "runs/second one"]),
        ("run --resume runs/s", ["runs/second one"]),
        ("report fir", ["runs/first"]),
        ("policy eval pol", ["policy.onnx"]),
        ("policy eval policy.onnx magm", ["magman"]),
        ("policy eval policy.onnx magman --ep", ["--episodes"]),
        ("baseline pendulum --grid ", ["coarse", "fine"]),
        ("baseline pendulum --grid = fi", ["fine"]),
        ("safety pendulum magm", ["magman"]),
        ("bench loop --compare l", ["learner", "log"]),
        ("completion z", ["zsh"]),
        ("nonsense ", []),
        ("ports ", ["--json", "--help"]),
    ],
)
def test_completions_of_bash(words: str, expected: list[str], working_folder: Path) -> None:
    assert complete_words(working_folder, *words.split(" ")) == expected


@pytest.mark.parametrize("verb", all_verbs())
def test_every_option_of_a_verb_is_offered(verb: str, tmp_path: Path) -> None:
    flags = {a.flag for a in arguments_of(verb_module(verb).Options) if not a.positional}
    assert set(complete_words(tmp_path, *verb.split(), "--")) == flags | {"--help"}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_verb_prints_a_script_that_its_shell_accepts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert text.endswith("complete -o filenames -F _onrig onrig\n")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=text, text=True, timeout=60, check=True)
