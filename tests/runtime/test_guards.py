"""Protections required for a rig on a port, but not for a twin."""

from __future__ import annotations

import pytest

from onrig.runtime.config.problem import ConfigError, Problem
from onrig.tools.load import load_for_rig

ON_SERIAL_PORT = "device={port: {path: /dev/ttyS77}}"


def collect_problems(*overrides: str, port: str | None = None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_for_rig("pendulum-hardware", overrides, port=port)
    return [str(problem) for problem in error.value.problems]


def collect_warnings(*overrides: str, port: str | None = None) -> list[str]:
    problems: list[Problem] = []
    load_for_rig("pendulum-hardware", overrides, port=port, on_warning=problems.append)
    return [str(problem) for problem in problems]


def test_a_rig_on_a_port_needs_an_envelope() -> None:
    (problem,) = collect_problems(ON_SERIAL_PORT, "limits={}")
    assert problem.startswith("--set limits={}:1:1: the rig on /dev/ttyS77 has no envelope: no fallback acts on its ")
    assert "give an observation bounds" in problem
    assert problem.endswith("the device's own limits protect it, at limits.envelope")


def test_so_does_one_that_the_command_line_puts_on_a_port() -> None:
    (problem,) = collect_problems("limits={}", "device.pace=realtime", port="/dev/ttyS77")
    assert "the rig on /dev/ttyS77 has no envelope" in problem


def test_who_accepts_a_rig_without_says_so_and_is_reminded() -> None:
    (problem,) = collect_warnings(ON_SERIAL_PORT, "limits={unguarded: true}")
    assert ": warning: the rig on /dev/ttyS77 has no envelope" in problem
    (problem,) = collect_problems(ON_SERIAL_PORT, "limits.unguarded=true")
    assert "remove this, because the limits have an envelope, at limits.unguarded" in problem


def test_without_a_reset_the_device_must_put_itself_back() -> None:
    (warning,) = collect_warnings(ON_SERIAL_PORT, "task.reset=null")
    assert warning.startswith("--set task.reset=null:1:1: warning: ")
    assert "only a device that can reset itself is accepted (RESET in its hello), at task.reset" in warning


@pytest.mark.parametrize("device", ["device.pace=realtime", "device.pace=lockstep"])
def test_a_twin_may_do_without_and_is_told_of_it(device: str) -> None:
    (warning,) = collect_warnings(device, "limits={}")
    assert "warning: this twin has no envelope" in warning
    assert "a rig on a port requires one, unless" in warning


@pytest.mark.parametrize("pace", ["lockstep", "{scaled: 10}"])
def test_a_twin_behind_a_port_is_known_by_its_pace_and_hardware_has_another(pace: str) -> None:
    (warning,) = collect_warnings(f"device={{port: {{path: /dev/ttyS77}}, pace: {pace}}}", "task.reset=null")
    assert "hardware needs real time (--set device.pace=realtime), at device.pace" in warning
    assert collect_warnings(f"device.pace={pace}") == []


def test_a_guarded_rig_is_told_nothing() -> None:
    assert collect_warnings(ON_SERIAL_PORT) == collect_warnings() == []
