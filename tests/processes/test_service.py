"""A run under systemd, and halting it when the supervisor hangs."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.tools.load import load
from tests.lab.rig.processes import CONTROL
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import ENDLESS, Run


def received_messages(listening: socket.socket) -> list[str]:
    """Received messages, each as one line."""
    messages = []
    while True:
        try:
            messages.append(listening.recv(4096).decode().replace("\n", "|"))
        except BlockingIOError:
            return messages


def test_systemd_is_notified_of_a_run_and_halts_it_even_if_the_supervisor_hangs(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.onnx").write_bytes(steady_policy(load("pendulum")))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(socket_folder / "notify"))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(socket_folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        settings = (*ENDLESS, "task.episode_s=100", "local_learner=false", f"policy={tmp_path / 'policy.onnx'}")
        with Run(tmp_path / "run", "pendulum", *settings) as run:
            run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
            messages: list[str] = []

            def watchdog_fed() -> bool:
                messages.extend(received_messages(listening))
                return sum("WATCHDOG=1" in message for message in messages) >= 3

            run.until(watchdog_fed, "three pets")
            assert messages[0].startswith("READY=1|STATUS=")
            assert any("STATUS=running; episode 1" in message for message in messages)
            run.process.kill(signal.SIGSTOP)
            arguments = [sys.executable, "-m", "onrig.tools.service.halt", str(run.process.pid)]
            assert subprocess.run(arguments, timeout=60, check=False).returncode == 0
            assert run.word(Word.STATE) == State.DISCONNECTED
            run.process.kill(signal.SIGCONT)
            assert run.ended() == ExitCode.INTERRUPTED
            assert any(message.startswith("STOPPING=1|STATUS=ending") for message in received_messages(listening))
            assert run.leftover_paths() == []


def test_the_watchdog_is_not_fed_for_a_hung_loop_until_it_recovers(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.onnx").write_bytes(steady_policy(load("pendulum")))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(socket_folder / "notify"))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(socket_folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        settings = (*ENDLESS, "task.episode_s=100", "local_learner=false", f"policy={tmp_path / 'policy.onnx'}")
        with Run(tmp_path / "run", "pendulum", *settings) as run:
            run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
            run.child(CONTROL).kill(signal.SIGSTOP)
            messages: list[str] = []

            def hung() -> bool:
                messages.extend(received_messages(listening))
                return any("STATUS=HUNG" in message for message in messages)

            run.until(hung, "systemd to hear of it")
            first = next(i for i, message in enumerate(messages) if "STATUS=HUNG" in message)
            assert not any("WATCHDOG=1" in message for message in messages[first:])
            run.child(CONTROL).kill(signal.SIGCONT)
            run.until(lambda: any("WATCHDOG=1" in message for message in received_messages(listening)), "a pet")
