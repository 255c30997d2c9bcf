"""The firmware from the outside: a process or an emulated board at the end of a line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.hw.conformance.host import Host
from onrig.hw.messages import Fault, Op, Result, State, Status
from onrig.hw.transport import open_port
from onrig.tools.load import load
from tests.hw.firmware.build import SOURCES, device_process, device_program, qemu

PERIOD_US = 10_000


@contextlib.contextmanager
def device(kind: str, folder: Path, pace: str = "realtime") -> Iterator[str]:
    """Port of a device."""
    if kind == "process":
        with device_process("pendulum-hw", pace) as (_, port):
            yield port
    else:
        with qemu("pendulum-hw" if pace == "realtime" else "pendulum-hw-lockstep", folder) as board:
            yield str(board.line)


def until_fault(host: Host) -> State:
    while not host.latest_state().fault:
        host.wait()
    return next(s for s in host.wire.states if s.fault)


@pytest.mark.parametrize("kind", ["process", "board"])
def test_in_a_hundred_trials_the_output_is_safe_a_lease_and_a_period_after_the_last_command(
    kind: str, socket_folder: Path
) -> None:
    """In device time, from the frames: the host becomes silent after an accepted command."""
    lease = 2
    with device(kind, socket_folder) as port:
        host = Host(open_port(port), load("pendulum-hardware", []).rig, time)
        for n in range(100):
            host.begin(PERIOD_US, lease)
            values = host.setpoint(2 + n % 3)
            for _ in range(20):  # a lease this short may expire while the machine is busy
                host.session.send_command(host.latest_state().frame, values)
                fault = until_fault(host)
                answered = max((s.answers for s in host.wire.states), default=0)
                if answered:
                    break
                host.begin(PERIOD_US, lease)
            put_out = next(s for s in host.wire.states if s.answers == answered)
            held_us = fault.t_us - (put_out.t_us - PERIOD_US + put_out.tau_us)
            assert Fault(fault.fault) is Fault.LEASE
            assert fault.status & Status.SAFE
            assert 0 < held_us <= (lease + 1) * PERIOD_US
            assert host.fresh_state().u_end == host.safe
        host.close()


def test_a_board_that_restarts_reports_it_unasked_and_needs_arming(socket_folder: Path) -> None:
    with qemu("pendulum-hw", socket_folder) as board:
        host = Host(open_port(str(board.line)), load("pendulum-hardware", []).rig, time)
        host.begin(PERIOD_US, 250)
        host.act(host.latest_state(), host.setpoint(2))
        board.restart()
        host._pump(lambda: host.session.has_rebooted, "HELLO of a restarted device")
        assert host.result(Op.ARM) == Result.NOT_NOW
        assert host.reconnect().hello.boot_id != host.hello.boot_id


@pytest.mark.parametrize("arguments", [[], ["--rig"], ["--rig", "crane"], ["--rig", "magman", "--pace", "-1"]])
def test_the_process_states_its_name(arguments: list[str]) -> None:
    done = subprocess.run([device_program(), *arguments], capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_the_hardware_in_the_loop_script_runs() -> None:
    script = SOURCES / "boards" / "mps2" / "hil"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["sh", "-n", script], check=False, timeout=20).returncode == 0


def test_the_stack_of_a_board_stays_within_four_kilobytes(socket_folder: Path) -> None:
    """Measured after every operation, with the sampling interrupt on top of them."""
    with qemu("pendulum-hw", socket_folder) as board:
        host = Host(open_port(str(board.line)), load("pendulum-hardware", []).rig, time)
        host.begin(2_000, 250)
        for _ in range(100):
            for op in (Op.DESCRIBE, Op.LIMITS, Op.RESET, Op.ARM):
                host.exchange(
                    host.request(op, {Op.DESCRIBE: b"\2", Op.LIMITS: bytes(9), Op.RESET: bytes(8)}.get(op, b""))
                )
            host.send(host.command(host.latest_state().frame, host.setpoint(2)))
        assert 500 < board.word(4) <= 4096
