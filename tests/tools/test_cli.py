"""The command itself: verbs, help, exit codes, and the cost of starting it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from onrig.tools.cli import VERBS, entry, main

HEAVY_PACKAGES = {
    "numpy",
    "torch",
    "msgspec",
    "yaml",
    "onnxruntime",
    "zmq",
    "serial",
    "matplotlib",
    "rich",
    "onnx",
    "gymnasium",
}
OWN_PACKAGES = {"runtime", "hw", "sim", "learner", "configs"}


def packages_after(arguments: list[str]) -> set[str]:
    """Top-level packages imported by a fresh interpreter once the command has run."""
    code = (
        "import sys\nfrom onrig.tools.cli import main\n"
        f"code = main({arguments!r})\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\nsys.exit(code)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    return set(process.stderr.split())


def test_help_imports_nothing_but_the_standard_library() -> None:
    assert packages_after(["--help"]) & (HEAVY_PACKAGES | OWN_PACKAGES) == set()


def test_check_imports_neither_torch_nor_the_dependencies_of_a_running_rig() -> None:
    imported = packages_after(["check", "pendulum"])
    assert imported & {"torch", "onnxruntime", "zmq", "serial", "matplotlib", "onnx", "gymnasium"} == set()
    assert "numpy" in imported, "the list of modules is not what it should be"


def test_a_missing_back_end_does_not_prevent_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As set by a notebook for the commands that it starts."""
    monkeypatch.setenv("MPLBACKEND", "module://onrig_nowhere.backend")
    plot_path = tmp_path / "plot.png"
    assert "matplotlib" in packages_after(["check", "pendulum", "--plot", str(plot_path)])
    assert plot_path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_verb_and_the_exit_codes(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out for verb in VERBS)
    assert "4 hardware or link" in out


def test_without_a_verb_the_help_is_shown_as_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: onrig" in capsys.readouterr().out


def test_an_unknown_verb_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fly"]) == 2
    assert capsys.readouterr().err == f"onrig: unknown verb 'fly'; choose from {', '.join(VERBS)}\n"


def test_for_a_misspelled_verb_the_likeliest_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chek", "pendulum"]) == 2
    assert capsys.readouterr().err.startswith("onrig: unknown verb 'chek' (did you mean 'check'?); choose from ")
    with pytest.raises(SystemExit):
        main(["bench", "lop"])
    assert "invalid choice: 'lop' (did you mean 'loop'?)" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_listed_verb_exists_and_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(entry(verb))
    with pytest.raises(SystemExit) as error:
        main([verb, "--help"])
    assert error.value.code == 0
    assert f"usage: onrig {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "verb",
    [
        verb
        for verb in VERBS
        if verb not in ("stop", "resume", "doctor", "watch", "web", "foxglove", "ports", "settings", "conformance")
    ],
)
def test_a_verb_without_its_arguments_is_a_usage_error(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main([verb])
    assert error.value.code == 2
    assert "required" in capsys.readouterr().err


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("onrig 0.")


def test_an_internal_defect_exits_with_70_and_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_defect(options: object) -> int:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("onrig.tools.verbs.check.main", raise_defect)
    assert main(["check", "pendulum"]) == 70
    assert "ZeroDivisionError: a defect" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_interrupt(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("onrig.tools.verbs.check.main", raise_interrupt)
    assert main(["check", "pendulum"]) == 130


def test_after_the_command_an_interrupt_does_not_hide_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers_seen: list[object] = []

    def return_incomplete(options: object) -> int:
        handlers_seen.append(signal.getsignal(signal.SIGINT))
        return 6

    monkeypatch.setattr("onrig.tools.verbs.check.main", return_incomplete)
    monkeypatch.setattr(sys, "argv", ["onrig", "check", "pendulum"])
    handler_before = signal.getsignal(signal.SIGINT)
    try:
        assert main() == 6
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler_before)
    assert handlers_seen == [handler_before], "until then the handler is in place"


CHECK_COMMAND = [sys.executable, "-m", "onrig.tools.cli", "check", "pendulum"]


def test_a_closed_output_is_ignored_and_a_full_one_is_named() -> None:
    with open("/dev/full", "w") as full_device:
        process = subprocess.run(CHECK_COMMAND, stdout=full_device, stderr=subprocess.PIPE, timeout=60, check=False)
    expected = b"onrig check: standard output cannot be written: No space left on device\n"
    assert (process.returncode, process.stderr) == (3, expected)
    closed_output_command = ["sh", "-c", 'exec "$@" >&-', "sh", *CHECK_COMMAND]
    process = subprocess.run(closed_output_command, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, b"")


def test_an_overlong_name_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a" * 300]) == 2
    assert capsys.readouterr().err == f"onrig report: '{'a' * 59}...: File name too long\n"


_BARE_PROGRAM = """
import sys
for name in ("torch", "onnx", "gymnasium"):
    sys.modules[name] = None
from onrig.tools.cli import main
sys.exit(main(sys.argv[1:]))
"""


_LEARNING_PROGRAM = """
import sys
for name in ("torch", "onnx", "gymnasium"):
    sys.modules[name] = None
import numpy as np
from onrig.learner.algorithms import algorithm_for
from onrig.learner.algorithm_config import algorithm_names
from onrig.learner.settings import LearnerSettings
import onrig.learner.export, onrig.learner.main
for name in algorithm_names():
    algorithm_for(LearnerSettings(algorithm=name), 2, 1, [np.random.default_rng(0)])
"""


def test_a_board_learns_without_torch_and_onnx() -> None:
    subprocess.run([sys.executable, "-c", _LEARNING_PROGRAM], check=True)


@pytest.mark.parametrize(
    "command", ["attack", "soak", "bench faults", "bench learner", "bench learning", "bench seeds"]
)
def test_commands_only_in_a_checkout_say_how_to_run_them_there(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--quick"]) == 2
    module = f"tests.lab.{command.split()[-1]}"
    assert find_spec(module) is not None
    assert capsys.readouterr().err == f"onrig {command}: run `python -m {module}` in a checkout of Onrig\n"


def test_a_verb_without_the_packages_of_the_learner_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def import_missing(options: object) -> int:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("onrig.tools.verbs.check.main", import_missing)
    assert main(["check", "pendulum"]) == 3
    assert capsys.readouterr().err == "onrig check: torch is not installed: pip install 'onrig[learner]'\n"


def test_a_board_without_the_packages_of_the_learner_can_benchmark_the_loop() -> None:
    command = [sys.executable, "-c", _BARE_PROGRAM, "bench", "loop", "--help"]
    assert "cyclictest" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_interrupt_during_the_import_of_the_verb_is_handled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_interrupt(verb: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onrig.tools.cli.entry", raise_interrupt)
    assert main(["check", "pendulum"]) == 130


def test_a_reader_that_leaves_early_is_not_an_error() -> None:
    with subprocess.Popen(
        CHECK_COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize(("umask", "expected"), [(0o000, 0o022), (0o002, 0o022), (0o077, 0o077)])
def test_files_written_by_a_verb_are_writable_only_by_their_user(tmp_path: Path, umask: int, expected: int) -> None:
    umask_before = os.umask(umask)
    try:
        assert main(["init", str(tmp_path / "mine")]) == 0
    finally:
        assert os.umask(umask_before) == expected
    assert all(path.stat().st_mode & expected == 0 for path in (tmp_path / "mine").rglob("*"))
