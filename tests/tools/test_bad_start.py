"""Runs that must not start: one line with what, where and what to do, the right exit code, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pytest

from onrig.hw.transport import open_port
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state import report
from onrig.tools.cli import main
from onrig.tools.load import load
from onrig.tools.ports import list_ports
from tests.tools import policies
from tests.tools.devices import PtyDevice

MARK_VARIABLE = "ONRIG_TEST_MARK"
WITHOUT_LEARNER = ("--set", "local_learner=false")
"""The learner is irrelevant here and takes two seconds of processor time to start."""


class FailedStart(NamedTuple):
    code: int
    line: str
    """Complete content of stderr."""


def start(folder: Path, *arguments: str, interrupt_at_output: str | None = None) -> FailedStart:
    """Try ``onrig run`` in an empty folder; check that it fails in one line and leaves nothing behind.

    Sends Ctrl-C when a line of its output begins with ``interrupt_at_output``.
    """
    run_mark = uuid.uuid4().hex
    run_place = folder / "place"
    run_place.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "onrig.tools.cli", "run", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=run_place,
        env={**os.environ, MARK_VARIABLE: run_mark},
    )
    try:
        if interrupt_at_output is not None and process.stdout is not None:
            assert any(line.startswith(interrupt_at_output) for line in process.stdout), "it ended before"
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    lines = [line for line in err.splitlines() if not line.endswith("at device.pace") or "warning" not in line]
    assert len(lines) == 1, err
    # Without a process there is no pty either: a twin's pty vanishes with the last process that holds it.
    assert processes_with(run_mark) == []
    assert list(Path("/dev/shm").glob(f"onrig-{process.pid}-*")) == []
    assert list(run_place.iterdir()) == [], "a run that never started leaves a folder"
    return FailedStart(process.returncode, lines[0])


def processes_with(run_mark: str) -> list[str]:
    """Command lines of the processes with a run's mark: the run, and all that inherited its environment."""
    command_lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK_VARIABLE}={run_mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                command_lines.append((folder / "cmdline").read_text())
        except OSError:
            continue  # gone, or not ours
    return command_lines


def test_a_mark_finds_the_process_that_carries_it() -> None:
    run_mark = uuid.uuid4().hex
    pipe, environment = subprocess.PIPE, {**os.environ, MARK_VARIABLE: run_mark}
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"there\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"there\n"  # its environment shows only once it runs
        assert processes_with(run_mark) == ["cat\0"]
        process.stdin.close()
    assert processes_with(run_mark) == []


# -- configurations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("episodes: 5\nepisods: 5\n", "{}:9:1: unknown key 'episods'"),
        ("episodes: '5'\n", "{}:8:11: expected a whole number, such as 5, got '5' at episodes (remove the quotes)"),
        ("episodes: 5\nepisodes: 6\n", "{}:9:1: duplicate key 'episodes', first used in line 8"),
        (
            "episodes: 5\nlimits: {range: {voltage: [-3, 3.5]}}\n",
            "{}:9:27: [-3, 3.5] V is wider than the rig's [-3, 3] at limits.range.voltage",
        ),
    ],
    ids=["unknown key", "wrong type", "duplicate key", "limits wider than the rig's"],
)
def test_an_invalid_configuration_does_not_start(text: str, message: str, tmp_path: Path) -> None:
    run_head = (
        "rig: pendulum\ntask: swingup\ndevice:\n  twin: {plant: {kind: pendulum}}\n  pace: lockstep\nrate_hz: 50\n"
    )
    path = tmp_path / "mine.yaml"
    path.write_text(f"{run_head}learner: {{updates_per_episode: 10}}\n{text}")
    failed_start = start(tmp_path, str(path))
    assert failed_start.code == ExitCode.CONFIGURATION
    assert failed_start.line.startswith(message.format(path))


def test_a_missing_configuration_does_not_start(tmp_path: Path) -> None:
    assert start(tmp_path, "nowhere.yaml") == (
        ExitCode.CONFIGURATION,
        "nowhere.yaml:1:1: no file 'nowhere.yaml'",
    )


def test_a_missing_policy_file_does_not_start(tmp_path: Path) -> None:
    failed_start = start(tmp_path, "pendulum", "--set", "policy=none.onnx")
    assert failed_start == (ExitCode.CONFIGURATION, "--set policy=none.onnx:1:1: no file 'none.onnx' at policy")


def test_a_folder_that_holds_a_run_is_left_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("precious")
    assert main(["run", "pendulum", "--run-dir", str(tmp_path)]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == (
        f"onrig run: --run-dir: '{tmp_path}' already contains a run; choose another folder\n"
    )
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("config.yaml", "precious")]


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["run", "pendulum", "--run-dir", str(tmp_path / "file" / "run")]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == f"onrig run: --run-dir: '{tmp_path / 'file'}' is not a folder\n"


KEYED_LINK = ("link.allow_plain_loopback=false", 'link.listen="tcp://127.0.0.1:5599"')


@pytest.fixture
def keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "keys"
    assert main(["keys", str(folder)]) == ExitCode.OK
    capsys.readouterr()
    return folder


def exchange(keys: Path) -> None:
    rig_key, learner_key = (keys / name / "secret.key" for name in ("rig", "learner"))
    content = rig_key.read_bytes(), learner_key.read_bytes()
    learner_key.write_bytes(content[0])
    rig_key.write_bytes(content[1])


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


BAD_KEYS: Final[dict[str, Callable[[Path], object]]] = {
    "no folder": lambda keys: shutil.rmtree(keys),
    "no secret": lambda keys: (keys / "rig" / "secret.key").unlink(),
    "no learner": lambda keys: (keys / "rig" / "learners" / "learner.key").unlink(),
    "open to others": lambda keys: (keys / "rig" / "secret.key").chmod(0o644),
    "an open folder": lambda keys: (keys / "rig").chmod(0o755),
    "garbage": lambda keys: (keys / "rig" / "secret.key").write_bytes(b"\xff" * 200),
    "an empty secret": lambda keys: (keys / "rig" / "secret.key").write_bytes(b""),
    "a learner's garbage": lambda keys: (keys / "rig" / "learners" / "learner.key").write_text("garbage"),
    "the learner's in place of the rig's": lambda keys: (
        (keys / "learner").rename(keys / "x") and shutil.copytree(keys / "x", keys / "rig", dirs_exist_ok=True)
    ),
    "exchanged": exchange,
    "a FIFO": lambda keys: fifo(keys / "rig" / "secret.key"),
}


@pytest.mark.parametrize("dry_run_arguments", [["--dry-run"], []])
@pytest.mark.parametrize("case", BAD_KEYS)
def test_keys_that_exclude_all_learners_are_refused_by_the_dry_run_and_by_the_run(
    case: str, dry_run_arguments: list[str], keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    BAD_KEYS[case](keys)
    settings = [word for s in (*KEYED_LINK, f"link.keys={keys / 'rig'}") for word in ("--set", s)]
    run = tmp_path / "run"
    assert main(["run", "pendulum", "--run-dir", str(run), *settings, *dry_run_arguments]) == ExitCode.PREFLIGHT
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"onrig run: link.keys: {keys}")
    assert not run.exists()


def test_valid_keys_pass_the_dry_run(keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for s in (*KEYED_LINK, f"link.keys={keys / 'rig'}") for word in ("--set", s)]
    assert main(["run", "pendulum", "--run-dir", str(tmp_path / "run"), *settings, "--dry-run"]) == ExitCode.OK


@pytest.mark.parametrize("name", ["file", "fifo", "file/below"])
def test_the_dry_run_refuses_a_folder_that_cannot_be_created(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    assert main(["run", "pendulum", "--run-dir", str(tmp_path / name), "--dry-run"]) == ExitCode.CONFIGURATION
    assert "is not a folder" in capsys.readouterr().err


def test_a_local_learner_needs_no_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("onrig.tools.running.find_spec", lambda name: None)
    assert main(["run", "pendulum", "--run-dir", str(tmp_path / "run"), "--dry-run"]) == ExitCode.OK


# -- ports and devices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("--device", "{}"), ("--set", "device={{port: {{path: '{}'}}}}")])
def test_a_port_that_does_not_exist(arguments: tuple[str, str], tmp_path: Path) -> None:
    port = "/dev/ttyNOWHERE7"
    assert start(tmp_path, "pendulum", *(a.format(port) for a in arguments)) == (
        ExitCode.HARDWARE,
        f"onrig run: {port}: no such port (No such file or directory); {list_ports()}",
    )


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """With a learner, as in most runs: it is still starting when the run ends."""
    master, slave = os.openpty()
    try:
        port = os.ttyname(slave)
        held_port = open_port(port)
        try:
            failed_start = start(tmp_path, "pendulum", "--device", port)
        finally:
            held_port.close()
    finally:
        os.close(master)
        os.close(slave)
    assert failed_start.code == ExitCode.HARDWARE
    assert failed_start.line == f"control: {port}: the port is in use by another process; stop that one first"


def test_a_link_file_is_not_a_port_but_names_one(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.write_text("/dev/pts/7\n")
    failed_start = start(tmp_path, "pendulum", "--device", str(link))
    assert failed_start.code == ExitCode.CONFIGURATION
    assert f"{link}: not a serial port, but a file that names one: use --device /dev/pts/7" in failed_start.line


def test_a_port_has_no_plant_for_synthetic_experiences(tmp_path: Path) -> None:
    failed_start = start(tmp_path, "pendulum", "--set", "selection.synthetic={states: 0.1}", "--device", "/dev/ttyACM0")
    assert failed_start.code == ExitCode.CONFIGURATION
    assert "need a twin" in failed_start.line


def test_another_character_device_is_not_a_port(tmp_path: Path) -> None:
    failed_start = start(tmp_path, "pendulum", "--device", "/dev/null", *WITHOUT_LEARNER)
    assert failed_start.code == ExitCode.HARDWARE
    assert failed_start.line == "control: /dev/null: not a serial port; name another port"


def start_on_device(folder: Path, device: PtyDevice, config: str = "pendulum") -> FailedStart:
    """Start a run of ``config`` on a device that does not match it."""
    with device:
        failed_start = start(folder, config, "--device", device.port, *WITHOUT_LEARNER)
    assert not device.was_armed
    assert failed_start.line.startswith(f"control: {device.port}: ")
    return FailedStart(failed_start.code, failed_start.line.removeprefix(f"control: {device.port}: "))


def test_the_device_of_another_rig(tmp_path: Path) -> None:
    assert start_on_device(tmp_path, PtyDevice(load("magman"))) == (
        ExitCode.HARDWARE,
        "rig name: the device has magman, the configuration pendulum; connect the configured rig, or run the "
        "configuration of the connected one",
    )


def test_a_device_of_another_protocol_version(tmp_path: Path) -> None:
    assert start_on_device(tmp_path, PtyDevice(load("pendulum"), protocol=2)) == (
        ExitCode.HARDWARE,
        "protocol version: the device has 2, the configuration 1; update the device's firmware, or Onrig",
    )


def test_a_device_at_another_pace(tmp_path: Path) -> None:
    assert start_on_device(tmp_path, PtyDevice(load("pendulum"), time_scale=1.0)) == (
        ExitCode.HARDWARE,
        "pace: the device has real time, the configuration lockstep; set device.pace to the device's pace",
    )


def test_a_device_that_cannot_be_reset(tmp_path: Path) -> None:
    assert start_on_device(tmp_path, PtyDevice(load("pendulum"), capabilities=0)) == (
        ExitCode.HARDWARE,
        "reset: the device has none, the configuration needs one at the start of every episode; give the task a "
        "`reset` section (lockstep requires a device with RESET)",
    )


def test_limits_wider_than_the_devices(tmp_path: Path) -> None:
    config = load("pendulum")
    (voltage,) = config.rig.actuators
    tighter_rig = msgspec.structs.replace(config.rig, actuators=(msgspec.structs.replace(voltage, low=-2.0),))
    assert start_on_device(tmp_path, PtyDevice(msgspec.structs.replace(config, rig=tighter_rig))) == (
        ExitCode.CONFIGURATION,
        "low limit of actuator 'voltage': the device has -2 V, the configuration -3 V; tighten the limits in "
        "the configuration to those of the device",
    )


def test_an_interrupt_while_waiting_for_a_silent_device(tmp_path: Path) -> None:
    master, slave = os.openpty()
    try:
        arguments = ("pendulum", "--device", os.ttyname(slave), *WITHOUT_LEARNER)
        failed_start = start(tmp_path, *arguments, interrupt_at_output="replay: ready")
    finally:
        os.close(master)
        os.close(slave)
    assert failed_start == (ExitCode.INTERRUPTED, "onrig run: interrupted")


# -- policies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NaN outputs", "100 MB"])  # all of them: test_config_findings.py, test_policy.py
def test_an_invalid_initial_policy(name: str, tmp_path: Path) -> None:
    path = policies.write_bad_policy(name, tmp_path)
    _, stage, reason = policies.BAD_POLICIES[name]
    failed_start = start(tmp_path, "pendulum", "--set", f"policy={path}", *WITHOUT_LEARNER)
    assert failed_start.code == ExitCode.CONFIGURATION
    assert failed_start.line.startswith(f"--set policy={path}:1:1: '{path}' is refused by the {stage} check: ")
    assert reason in failed_start.line


# -- twin and learner alone ------------------------------------------------------------------------------------------


@pytest.fixture
def restore_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs that communicate with the user stop doing so after the test."""
    monkeypatch.setattr(report, "_uses_plain_output", False)


VERBS: Mapping[str, tuple[list[str], int, str]] = {
    "twin on no port": (
        ["twin", "pendulum", "--port", "/dev/ttyNOWHERE7"],
        ExitCode.HARDWARE,
        "onrig twin: --port: /dev/ttyNOWHERE7: no such port (No such file or directory); " + list_ports() + "\n",
    ),
    "twin of a port": (
        ["twin", "pendulum", "--set", "device={port: {path: /dev/ttyACM0}}"],
        ExitCode.CONFIGURATION,
        "onrig twin: pendulum uses a port; expected a twin ('device: {twin: ...}')\n",
    ),
    "twin with a link nowhere": (
        ["twin", "pendulum", "--link", "/nowhere/link"],
        ExitCode.CONFIGURATION,
        "onrig twin: --link: no such folder '/nowhere'\n",
    ),
    "twin with a folder for its link": (
        ["twin", "pendulum", "--link", "/dev"],
        ExitCode.CONFIGURATION,
        "onrig twin: --link: '/dev' is a folder\n",
    ),
    "learner with a file for its states": (
        ["learn", "pendulum", "--connect", "ipc://nobody", "--state", "/dev/null"],
        ExitCode.CONFIGURATION,
        "onrig learn: --state: '/dev/null' cannot be written to: File exists\n",
    ),
    "learner of no endpoint": (
        ["learn", "pendulum", "--connect", "localhost"],
        ExitCode.CONFIGURATION,
        "onrig learn: --connect: 'localhost' is not an endpoint; expected tcp://HOST:PORT, with * for every interface; "
        "for this machine ipc://PATH also works\n",
    ),
}


@pytest.mark.usefixtures("restore_prompts")
@pytest.mark.parametrize("case", VERBS)
def test_the_other_verbs_also_refuse_in_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, code, line = VERBS[case]
    assert main(arguments) == code
    assert capsys.readouterr() == ("", line)
