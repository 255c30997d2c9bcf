"""Table of faults that can stop a run: name, cause, hint and exit code of each.

A fault is *latched*: it remains, with its first cause, until it is re-armed. The table states who may re-arm it.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from onrig.hw.messages import Fault as DeviceFault
from onrig.hw.messages import State, Status
from onrig.hw.transport import LinkError
from onrig.runtime.exit_codes import ExitCode


class Rearm(enum.Enum):
    """Who may release a latched fault, from easiest to hardest."""

    RUN = "run"
    """The run itself, between episodes and a bounded number of times."""
    PERSON = "person"
    """An operator: key ``r``, or ``onrig resume`` from another terminal."""
    NEVER = "nobody"
    """The fault cannot be released: the run ends."""


class FaultEntry(NamedTuple):
    """Cause and remedy of a fault, who may re-arm it, and the run's exit code."""

    cause: str
    hint: str
    code: ExitCode
    rearm: Rearm


class FaultName(enum.StrEnum):
    """Names of the faults in ``events.jsonl`` and ``summary.json``."""

    DEVICE_LEASE = "device_lease"
    DEVICE_SENSOR = "device_sensor"
    DEVICE_ESTOP = "device_estop"
    DEVICE_INTERNAL = "device_internal"
    DEVICE_DISARMED = "device_disarmed"
    DEVICE_UNKNOWN = "device_unknown"
    DEVICE_UNNAMED = "device_unnamed"
    DEVICE_UNSAFE = "device_unsafe"
    DEVICE_RATE = "device_rate"
    SENSORS_FROZEN = "sensors_frozen"
    DEVICE_REBOOTED = "device_rebooted"
    DEVICE_REFUSED = "device_refused"
    LINK_CLOSED = "link_closed"
    LINK_UNPLUGGED = "link_unplugged"
    LINK_SILENT = "link_silent"
    LINK_FROZEN = "link_frozen"
    LINK_GARBLED = "link_garbled"
    FALLBACK_DIVERGES = "fallback_diverges"
    RESET_DIVERGES = "reset_diverges"
    RESET_FAILED = "reset_failed"
    RESET_LIMIT = "reset_limit"
    NO_POLICY = "no_policy"
    BARRIER = "barrier"
    NOT_RESUMED = "not_resumed"
    LOOP_KILLED = "loop_killed"
    LOOP_HUNG = "loop_hung"
    LEARNER_GONE = "learner_gone"
    PLANT_FAILED = "plant_failed"
    DRIVER_FAILED = "driver_failed"
    CAMERA_SILENT = "camera_silent"
    TICK_CODE_FAILED = "tick_code_failed"
    PROGRAM = "program"


FAULTS: Final[dict[FaultName, FaultEntry]] = {
    FaultName.DEVICE_LEASE: FaultEntry(
        "no command reached the device during a complete lease, so it switched to its safe output",
        "check the load of the host and the link; a longer rig.lease_periods tolerates more",
        ExitCode.SAFETY,
        Rearm.RUN,
    ),
    FaultName.DEVICE_SENSOR: FaultEntry(
        "a sensor reads outside its range or not at all",
        "check its cable, then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_ESTOP: FaultEntry(
        "the emergency stop at the device was pressed",
        "release it when the rig is clear, then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_INTERNAL: FaultEntry(
        "the device reports an internal error",
        "power-cycle it, then start again",
        ExitCode.SAFETY,
        Rearm.NEVER,
    ),
    FaultName.DEVICE_DISARMED: FaultEntry(
        "the device disarmed without a request and reports no fault",
        "check whether another host uses the same connection",
        ExitCode.SAFETY,
        Rearm.RUN,
    ),
    FaultName.DEVICE_UNKNOWN: FaultEntry(
        "the device latched a fault unknown to this version",
        "look it up in the firmware, or update Onrig; then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_UNNAMED: FaultEntry(
        "the device reports a latched fault without a code",
        "check the firmware: it sets FAULT but leaves the code at 0; then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_UNSAFE: FaultEntry(
        "the device reports its safe output in force, and another output in the same frame or the next",
        "cut power to the actuators; then check the firmware and the motor drivers, and start again",
        ExitCode.SAFETY,
        Rearm.NEVER,
    ),
    FaultName.DEVICE_RATE: FaultEntry(
        "the device samples at a rate other than the configured one",
        "fix its firmware (the period of CONFIGURE, its timer), then start again",
        ExitCode.HARDWARE,
        Rearm.NEVER,
    ),
    FaultName.SENSORS_FROZEN: FaultEntry(
        "the sensor readings are frozen although the commands should have moved the rig",
        "check the sensors, their cables and whether the rig is blocked, then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_REBOOTED: FaultEntry(
        "the device rebooted during the run",
        "check its power supply, then start again",
        ExitCode.HARDWARE,
        Rearm.NEVER,
    ),
    FaultName.DEVICE_REFUSED: FaultEntry(
        "the device declined an operation that the run needs",
        "correct the configuration or the firmware, then start again",
        ExitCode.HARDWARE,
        Rearm.NEVER,
    ),
    FaultName.LINK_CLOSED: FaultEntry(
        "the link to the device is closed or accepts no requests",
        "check its power and its cable, then start again",
        ExitCode.HARDWARE,
        Rearm.NEVER,
    ),
    FaultName.LINK_UNPLUGGED: FaultEntry(
        "the connection to the device has closed: cable unplugged, or device without power",
        "plug it in, check that the rig is clear, then re-arm",
        ExitCode.HARDWARE,
        Rearm.PERSON,
    ),
    FaultName.LINK_SILENT: FaultEntry(
        "the device has stopped sending",
        "check its power and its cable, then start again",
        ExitCode.HARDWARE,
        Rearm.NEVER,
    ),
    FaultName.LINK_FROZEN: FaultEntry(
        "the device repeats a state frame: its number or its time does not advance",
        "restart everything between host and device (hub, bridge, firmware), then start again",
        ExitCode.HARDWARE,
        Rearm.NEVER,
    ),
    FaultName.LINK_GARBLED: FaultEntry(
        "the device sends bytes, but no valid state frame",
        "check cable, shielding and baud rate, then start again",
        ExitCode.HARDWARE,
        Rearm.NEVER,
    ),
    FaultName.FALLBACK_DIVERGES: FaultEntry(
        "the state keeps leaving its envelope although the fallback acts with full effort",
        "check the signs and the wiring of actuators and sensors, and that the drive can brake; then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.RESET_DIVERGES: FaultEntry(
        "the reset drives the rig away from its start although it acts with full effort",
        "check the signs and the wiring of actuators and sensors, and task.reset; then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.RESET_FAILED: FaultEntry(
        "the reset did not reach the start state in any of its attempts",
        "free the rig by hand, or give task.reset more time, more effort or a wider tolerance",
        ExitCode.HARDWARE,
        Rearm.PERSON,
    ),
    FaultName.RESET_LIMIT: FaultEntry(
        "a reset drove the rig beyond the limits of task.reset",
        "find out what moved it; then lower task.reset.effort or widen task.reset.limits",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.NO_POLICY: FaultEntry(
        "no first policy arrived in time",
        "check that a learner runs and is connected, or name a file with `policy`",
        ExitCode.INTERNAL,
        Rearm.NEVER,
    ),
    FaultName.BARRIER: FaultEntry(
        "replay process and learner did not finish an episode in time",
        "see stderr.log, or raise barrier_timeout_s",
        ExitCode.INTERNAL,
        Rearm.NEVER,
    ),
    FaultName.NOT_RESUMED: FaultEntry(
        "the run was paused and not resumed in time",
        "remove the reason for the pause, then start again",
        ExitCode.SAFETY,
        Rearm.NEVER,
    ),
    FaultName.LOOP_KILLED: FaultEntry(
        "the control process was killed",
        "find the cause in the system log (out of memory?), then start again",
        ExitCode.INTERNAL,
        Rearm.NEVER,
    ),
    FaultName.LOOP_HUNG: FaultEntry(
        "the control process has stopped ticking",
        "find out what stopped it; the run ends if it does not recover",
        ExitCode.INTERNAL,
        Rearm.NEVER,
    ),
    FaultName.LEARNER_GONE: FaultEntry(
        "the learner exited and will not be restarted; the run cannot continue without it",
        "see stderr.log",
        ExitCode.INTERNAL,
        Rearm.NEVER,
    ),
    FaultName.PLANT_FAILED: FaultEntry(
        "the code of the twin's plant raised an exception",
        "correct the plant at the reported line, then start again",
        ExitCode.INTERNAL,
        Rearm.NEVER,
    ),
    FaultName.DRIVER_FAILED: FaultEntry(
        "the code of the device's driver raised an exception",
        "check the rig; correct the driver at the reported line, or the device behind it, then start again",
        ExitCode.HARDWARE,
        Rearm.NEVER,
    ),
    FaultName.CAMERA_SILENT: FaultEntry(
        "the newest image of a camera is too old",
        "check the camera, its cable and `device.cameras`, or raise the rig's max_age_ms; then re-arm",
        ExitCode.HARDWARE,
        Rearm.PERSON,
    ),
    FaultName.TICK_CODE_FAILED: FaultEntry(
        "the task's own code in the tick raised an exception, returned an invalid value or exceeded its time budget",
        "correct the code at the reported line, or make it faster (`onrig check` measures it), then start again",
        ExitCode.SAFETY,
        Rearm.NEVER,
    ),
    FaultName.PROGRAM: FaultEntry(
        "internal error of the program",
        "please report it with events.jsonl and stderr.log",
        ExitCode.INTERNAL,
        Rearm.NEVER,
    ),
}

_DEVICE_FAULTS: Final = {
    DeviceFault.NONE: FaultName.DEVICE_DISARMED,
    DeviceFault.LEASE: FaultName.DEVICE_LEASE,
    DeviceFault.SENSOR: FaultName.DEVICE_SENSOR,
    DeviceFault.ESTOP: FaultName.DEVICE_ESTOP,
    DeviceFault.INTERNAL: FaultName.DEVICE_INTERNAL,
}


def device_fault(code: int, *, latched: bool = False) -> FaultName:
    """Return the fault for a device's fault code.

    Code 0 names no fault: the device was found disarmed, or its FAULT bit is set without a code (``latched``).
    """
    if latched and not code:
        return FaultName.DEVICE_UNNAMED
    return _DEVICE_FAULTS[DeviceFault(code)] if code in {f.value for f in DeviceFault} else FaultName.DEVICE_UNKNOWN


def is_harder_to_release(fault: FaultName, other: FaultName) -> bool:
    """Return whether ``fault`` is harder to release than ``other``."""
    ranks = list(Rearm)
    return ranks.index(FAULTS[fault].rearm) > ranks.index(FAULTS[other].rearm)


def most_severe(latched: FaultName, code: int) -> FaultName:
    """Return the latched fault, or the device's newer one (``code``) if it is harder to release."""
    reported = device_fault(code) if code else latched
    return reported if is_harder_to_release(reported, latched) else latched


class Halted(Exception):
    """Raised to end a run because of a fault; ``str`` is one line for users."""

    def __init__(self, fault: FaultName, detail: str = "") -> None:
        entry = FAULTS[fault]
        super().__init__(detail or f"{entry.cause}; {entry.hint}")
        self.fault = fault


class LinkFault(LinkError):
    """Raised for a lost link, with the specific fault."""

    def __init__(self, fault: FaultName, detail: str) -> None:
        entry = FAULTS[fault]
        super().__init__(f"{detail}: {entry.cause}; {entry.hint}" if detail else f"{entry.cause}; {entry.hint}")
        self.fault = fault


def link_fault(error: LinkError) -> FaultName:
    """Return the fault that corresponds to a LinkError."""
    return error.fault if isinstance(error, LinkFault) else FaultName.LINK_CLOSED


_ARMED_OR_FAULT: Final = int(Status.ARMED | Status.FAULT)
"""Both bits as a plain number, because operations on a flag enumeration take microseconds."""


def is_unfit(state: State) -> bool:
    """Return whether a device cannot continue because it has latched a fault, named or not, or is not armed."""
    return state.fault != 0 or state.status & _ARMED_OR_FAULT != Status.ARMED


def precedes_arming(state: State) -> bool:
    """Return whether a frame was sampled before the device processed the request to arm; False if the frame reports a
    fault."""
    return not is_faulted(state) and not state.status & Status.ARMED


def is_faulted(state: State) -> bool:
    """Return whether a device reports a latched fault, by its code or by the FAULT bit alone."""
    return state.fault != 0 or state.status & Status.FAULT != 0


def reported_fault(state: State) -> FaultName:
    """Return the fault reported by a frame, or the fault for a device found disarmed if it reports none."""
    return device_fault(state.fault, latched=is_faulted(state))
