"""Protections required for a rig on a port, but not for a twin."""

from __future__ import annotations

import pytest

from onrig.runtime.config.problem import ConfigError, Problem
from onrig.tools.load import load_for_rig

ON_PORT = "device={port: {path: /dev/ttyS77}}"


def refused(*overrides: str, port: str | None = None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_for_rig("pendulum-hardware", overrides, port=port)
    return [str(problem) for problem in error.value.problems]


def warned(*overrides: str, port: str | None = None) -> list[str]:
    told: list[Problem] = []
    load_for_rig("pendulum-hardware", overrides, port=port, on_warning=told.append)
    return [str(problem) for problem in told]


def test_a_rig_on_a_port_needs_an_envelope() -> None:
    (told,) = refused(ON_PORT, "limits={}")
    assert told.startswith("--set limits={}:1:1: the rig on /dev/ttyS77 has no envelope: no fallback acts on its ")
    assert "give an observation bounds" in told
    assert told.endswith("the device's own limits protect it, at limits.envelope")


def test_so_does_one_that_the_command_line_puts_on_a_port() -> None:
    (told,) = refused("limits={}", "device.pace=realtime", port="/dev/ttyS77")
    assert "the rig on /dev/ttyS77 has no envelope" in told


def test_who_accepts_a_rig_without_says_so_and_is_reminded() -> None:
    (told,) = warned(ON_PORT, "limits={unguarded: true}")
    assert ": warning: the rig on /dev/ttyS77 has no envelope" in told
    (told,) = refused(ON_PORT, "limits.unguarded=true")
    assert "remove this, because the limits have an envelope, at limits.unguarded" in told


def test_without_a_reset_the_device_must_put_itself_back() -> None:
    (told,) = warned(ON_PORT, "task.reset=null")
    assert told.startswith("--set task.reset=null:1:1: warning: ")
    assert "only a device that can reset itself is accepted (RESET in its hello), at task.reset" in told


@pytest.mark.parametrize("device", ["device.pace=realtime", "device.pace=lockstep"])
def test_a_twin_may_do_without_and_is_told_of_it(device: str) -> None:
    (told,) = warned(device, "limits={}")
    assert "warning: this twin has no envelope" in told
    assert "a rig on a port requires one, unless" in told


@pytest.mark.parametrize("pace", ["lockstep", "{scaled: 10}"])
def test_a_twin_behind_a_port_is_known_by_its_pace_and_hardware_has_another(pace: str) -> None:
    (told,) = warned(f"device={{port: {{path: /dev/ttyS77}}, pace: {pace}}}", "task.reset=null")
    assert "hardware needs real time (--set device.pace=realtime), at device.pace" in told
    assert warned(f"device.pace={pace}") == []


def test_a_guarded_rig_is_told_nothing() -> None:
    assert warned(ON_PORT) == warned() == []
