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


def test_a_rig_put_on_a_port_by_the_command_line_also_needs_one() -> None:
    (problem,) = collect_problems("limits={}", "device.pace=realtime", port="/dev/ttyS77")
    assert "the rig on /dev/ttyS77 has no envelope" in problem


def test_accepting_a_rig_without_an_envelope_is_explicit_and_reported() -> None:
    (problem,) = collect_warnings(ON_SERIAL_PORT, "limits={unguarded: true}")
    assert ": warning: the rig on /dev/ttyS77 has no envelope" in problem
    (problem,) = collect_problems(ON_SERIAL_PORT, "limits.unguarded=true")
    assert "remove this, because the limits have an envelope, at limits.unguarded" in problem


def test_without_a_reset_the_device_must_return_to_its_start_by_itself() -> None:
    (warning,) = collect_warnings(ON_SERIAL_PORT, "task.reset=null")
    assert warning.startswith("--set task.reset=null:1:1: warning: ")
    assert "only a device that can reset itself is accepted (RESET in its hello), at task.reset" in warning


@pytest.mark.parametrize("device", ["device.pace=realtime", "device.pace=lockstep"])
def test_a_twin_may_lack_both_and_is_reported(device: str) -> None:
    (warning,) = collect_warnings(device, "limits={}")
    assert "warning: this twin has no envelope" in warning
    assert "a rig on a port requires one, unless" in warning


@pytest.mark.parametrize("pace", ["lockstep", "{scaled: 10}"])
def test_a_twin_behind_a_port_is_recognised_by_its_pace_which_differs_from_hardware(pace: str) -> None:
    (warning,) = collect_warnings(f"device={{port: {{path: /dev/ttyS77}}, pace: {pace}}}", "task.reset=null")
    assert "hardware needs real time (--set device.pace=realtime), at device.pace" in warning
    assert collect_warnings(f"device.pace={pace}") == []


def test_a_guarded_rig_has_no_warnings() -> None:
    assert collect_warnings(ON_SERIAL_PORT) == collect_warnings() == []
