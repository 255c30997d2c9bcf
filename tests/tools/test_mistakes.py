"""Mistakes of new users: each is answered in one line that states what to write instead, without internal jargon."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from onrig.tools.cli import main

JARGON = re.compile(r"\b(str|float|int|bool|dict|mapping|mappings|array|object|NoneType|tuple)\b")


@pytest.fixture(scope="module")
def working_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that a new user may have."""
    folder = tmp_path_factory.mktemp("bench")
    assert main(["init", str(folder / "my-rig")]) == 0
    for name, text in {
        "empty.yaml": "",
        "text.yaml": "rig pendulum\n",
        "list.yaml": "- a\n- b\n",
        "tab.yaml": "rig:\tpendulum\n",
        "indent.yaml": "rig: pendulum\n  task: swingup\n",
        "identified.yaml": "twin: {plant: {kind: pendulum}}\n",
        "mine.yaml": "rig: pendulum\n",
        "swapped.yaml": "rig: my-rig/task.yaml\ntask: my-rig/rig.yaml\ndevice: {}\nrate_hz: 50\nepisodes: 1\n",
    }.items():
        (folder / name).write_text(text)
    for name in ("nothing", "old-run"):
        (folder / name).mkdir()
    (folder / "old-run" / "config.yaml").write_text("")
    return folder


def error_output(
    line: str, working_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.chdir(working_folder)
    try:
        code: str | int | None = main(shlex.split(line))
    except SystemExit as left:
        code = left.code
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        # the wrong file, folder or name
        ("check my-rig/task.yaml", "task.yaml:1:1: this is a task; give a run that uses it, such as my-rig/run.yaml"),
        ("check my-rig/rig.yaml", "rig.yaml:1:1: this is a rig; give a run that uses it, such as my-rig/run.yaml"),
        ("run swingup", "swingup:1:1: this is a task; give a run that uses it"),
        ("run pendulum-sac", "this is a recipe; apply it to a run: onrig run RUN --set recipe=pendulum-sac"),
        ("run figure-12", "this is an experiment; run it with onrig experiment figure-12"),
        ("run identified.yaml", "this is a result of onrig identify; use it in a run: onrig run RUN --set identified="),
        ("experiment pendulum", "this is a run; use `onrig run pendulum`"),
        ("experiment my-rig", "this is a run; use `onrig run my-rig`"),
        ("run nothing", "'nothing' is a folder without a run.yaml"),
        ("run old-run", "'old-run' is the folder of a run; its configuration is old-run/config.yaml"),
        ("run mine", "no 'mine' (did you mean 'mine.yaml'?)"),
        ("run pendulum.yaml", "no file 'pendulum.yaml' (did you mean 'pendulum'?)"),
        ("policy eval pendulum x.onnx", "'x.onnx' is a policy; give the policy first: x.onnx pendulum"),
        ("run my-rig --set task=rig.yaml", "'rig.yaml' is a rig, not a task, at task"),
        # arguments
        ("run pendulum episodes=5", "too many arguments: episodes=5; a setting is given as --set episodes=5"),
        ("run pendulum --rate-hz 50", "unknown option --rate-hz; a setting is given as --set rate_hz=50"),
        ("run pendulum --set seed", "expected PATH=VALUE, as in seed=1"),
        ("run pendulum --set limits.range", "expected PATH=VALUE, as in limits.range=1"),
        ("run --web pendulum", "put the configuration first: onrig run pendulum --web"),
        # YAML
        ("check text.yaml", "1:1: expected settings, one per line (rig, task, device, ...), got 'rig pendulum'"),
        ("check list.yaml", "expected settings, one per line (rig, task, device, ...), got [a, b]"),
        ("check tab.yaml", "tab.yaml:1:5: a tab; indent and separate with spaces"),
        ("check indent.yaml", "indent.yaml:2:7: a second ':' in a line, or a line indented too far"),
        ("check empty.yaml", "empty.yaml:1:1: the document is empty"),
    ],
)  # fmt: skip
def test_a_likely_mix_up_is_answered_with_what_the_file_is_or_what_to_type(
    line: str, answer: str, working_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (message,) = error_output(line, working_folder, monkeypatch, capsys).splitlines()
    assert answer in message
    assert not JARGON.search(message)


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("exploration.amplitude=1.5", "expected values in brackets, such as [[1, 1]], or settings in braces"),
        ("exploration.amplitude=0.3", "such as [[1, 0.3]]"),
        ("exploration=none", "expected settings in braces, such as {process: none}, got 'none' at exploration"),
        ("rate_hz=fast", "expected a number, such as 0.5, got 'fast' at rate_hz"),
        ("rate_hz=50Hz", "got '50Hz' at rate_hz (write the number alone, in SI units)"),
        ("rate_hz=50,5", "got '50,5' at rate_hz (write 50.5)"),
        ("rate_hz='50'", "such as 50, got '50' at rate_hz (remove the quotes)"),
        ("rate_hz=", "expected a number, such as 0.5, got nothing at rate_hz"),
        ("episodes=1.5", "expected a whole number, such as 2, got 1.5 at episodes"),
        ("episodes=1e3", "expected a whole number, such as 1000, got 1000 at episodes"),
        ("local_learner=yes", "expected true or false, got 'yes' at local_learner (write true)"),
        ("log.mcap=off", "expected true or false, or auto, got 'off' at log.mcap (write false)"),
        ("device.pace=10", "expected one of lockstep, realtime, or settings in braces, such as {scaled: 10}, got 10"),
        ("device.pace=realtme", "invalid value 'realtme' at device.pace (did you mean 'realtime'?)"),
        ("device.port=/dev/ttyUSB0", "such as {path: /dev/ttyUSB0}, or null, got '/dev/ttyUSB0' at device.port"),
        ("device.port.path=5", "expected text, got 5 at device.port.path"),
        ("limits.range.voltage=3", "expected 2 values in brackets, such as [0, 3], got 3 at limits.range.voltage"),
        ("limits.range.voltage=[-3, x]", "expected a number, such as 0.5, got 'x' at limits.range.voltage[1]"),
        ("limits.envelope.velocity=15", "such as {low: 0, high: 1}, got 15 at limits.envelope.velocity"),
        ("learner.td3.hidden=64", "expected values in brackets, such as [64], got 64 at learner.td3.hidden"),
        ("learner.algorithm=TD3", "invalid value 'TD3' at learner.algorithm (did you mean 'td3'?)"),
        ("selection=FIFO", "such as {strategy: FIFO}, got 'FIFO' at selection"),
        ("selection.capacity=1M", "expected a whole number, such as 10, or null, got '1M' at selection.capacity"),
        ("rate_hz.x=1", "no setting 'x' to set: rate_hz is 50"),
        ("rig.sensors[7].unit=m", "no item 7 to set: sensors has"),
        ("exploration.amplitude[0]=1", "exploration.amplitude"),
    ],
)
def test_a_wrong_value_is_answered_with_a_right_one(
    setting: str, answer: str, working_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_output(f'check my-rig --set "{setting}"', working_folder, monkeypatch, capsys)
    assert answer in message
    assert not JARGON.search(message)


def test_exchanged_parts_are_named(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_output("check swapped.yaml", working_folder, monkeypatch, capsys)
    assert "'my-rig/task.yaml' is a task, not a rig, at rig" in message
    assert "'my-rig/rig.yaml' is a rig, not a task, at task" in message


@pytest.mark.parametrize("name", ["my-rig", "my-rig/", "my-rig/run.yaml"])
def test_the_folder_of_a_rig_refers_to_its_run(
    name: str, working_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(working_folder)
    assert main(["check", name]) == 0
    assert main(["run", name, "--dry-run"]) == 0
    assert ": valid" in capsys.readouterr().out
