"""Everything that can stop a run by itself: one name, one cause, one hint, one exit code each.

A fault is *latched*: it stays, with the cause it came with, until somebody re-arms.  Who may do that is part of it.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from onrig.hw.messages import Fault as DeviceFault
from onrig.hw.transport import LinkError
from onrig.runtime.exit_codes import ExitCode


class Rearm(enum.Enum):
    """Who may release a latched fault."""

    RUN = "run"
    """The run itself, between episodes and a bounded number of times."""
    PERSON = "person"
    """A person: key ``r``, or ``onrig resume`` from a second terminal."""
    NOBODY = "nobody"
    """This run is over; the next one starts from nothing."""


class Entry(NamedTuple):
    """What a fault means."""

    cause: str
    hint: str
    code: ExitCode
    rearm: Rearm


class FaultName(enum.StrEnum):
    """The faults, as ``events.jsonl`` and ``summary.json`` name them."""

    DEVICE_LEASE = "device_lease"
    DEVICE_SENSOR = "device_sensor"
    DEVICE_ESTOP = "device_estop"
    DEVICE_INTERNAL = "device_internal"
    DEVICE_DISARMED = "device_disarmed"
    DEVICE_UNKNOWN = "device_unknown"
    DEVICE_UNNAMED = "device_unnamed"
    DEVICE_RATE = "device_rate"
    SENSORS_FROZEN = "sensors_frozen"
    DEVICE_REBOOTED = "device_rebooted"
    DEVICE_REFUSED = "device_refused"
    LINK_CLOSED = "link_closed"
    LINK_SILENT = "link_silent"
    LINK_FROZEN = "link_frozen"
    LINK_GARBLED = "link_garbled"
    RESET_FAILED = "reset_failed"
    RESET_LIMIT = "reset_limit"
    NO_POLICY = "no_policy"
    BARRIER = "barrier"
    NOT_RESUMED = "not_resumed"
    LOOP_KILLED = "loop_killed"
    LOOP_HUNG = "loop_hung"
    LEARNER_GONE = "learner_gone"
    PROGRAM = "program"


FAULTS: Final[dict[FaultName, Entry]] = {
    FaultName.DEVICE_LEASE: Entry(
        "no command reached the device for a whole lease, so it fell safe by itself",
        "look at the load of the host and at the line; a longer rig.lease_periods tolerates more",
        ExitCode.SAFETY,
        Rearm.RUN,
    ),
    FaultName.DEVICE_SENSOR: Entry(
        "a sensor reads outside its range or not at all",
        "look at its cable, then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_ESTOP: Entry(
        "the emergency stop at the device was pressed",
        "release it when the rig is clear, then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_INTERNAL: Entry(
        "the device found itself in an impossible state",
        "power-cycle it, then start again",
        ExitCode.SAFETY,
        Rearm.NOBODY,
    ),
    FaultName.DEVICE_DISARMED: Entry(
        "the device is disarmed though nobody disarmed it, and tells of no fault",
        "look whether another host uses the same line",
        ExitCode.SAFETY,
        Rearm.RUN,
    ),
    FaultName.DEVICE_UNKNOWN: Entry(
        "the device latched a fault that this version does not know",
        "look it up in the firmware, or update Onrig; then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_UNNAMED: Entry(
        "the device says that a fault is latched, but not which one",
        "look it up in the firmware: it sets FAULT and leaves the code 0; then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_RATE: Entry(
        "the device samples at another rate than it was set to, by its own clock",
        "set its firmware right (the period of CONFIGURE, its timer), then start again",
        ExitCode.HARDWARE,
        Rearm.NOBODY,
    ),
    FaultName.SENSORS_FROZEN: Entry(
        "the sensors do not change by one count although the commands must have moved the rig",
        "look at the sensors, their cables and what may block the rig, then re-arm",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.DEVICE_REBOOTED: Entry(
        "the device was started anew in mid-run",
        "look at its power supply, then start again",
        ExitCode.HARDWARE,
        Rearm.NOBODY,
    ),
    FaultName.DEVICE_REFUSED: Entry(
        "the device declined an operation that the run needs",
        "read which one and why, set the configuration or the firmware right, then start again",
        ExitCode.HARDWARE,
        Rearm.NOBODY,
    ),
    FaultName.LINK_CLOSED: Entry(
        "the line to the device is closed or takes no requests",
        "look at its power and its cable, then start again",
        ExitCode.HARDWARE,
        Rearm.NOBODY,
    ),
    FaultName.LINK_SILENT: Entry(
        "nothing comes from the device any more",
        "look at its power and its cable, then start again",
        ExitCode.HARDWARE,
        Rearm.NOBODY,
    ),
    FaultName.LINK_FROZEN: Entry(
        "the same state frame comes again and again: its number or its time does not grow",
        "restart whatever stands between host and device (hub, bridge, firmware), then start again",
        ExitCode.HARDWARE,
        Rearm.NOBODY,
    ),
    FaultName.LINK_GARBLED: Entry(
        "bytes come from the device, but no whole state frame",
        "look at cable, shielding and baud rate, then start again",
        ExitCode.HARDWARE,
        Rearm.NOBODY,
    ),
    FaultName.RESET_FAILED: Entry(
        "the rig was not brought to its start in all the attempts it had",
        "free the rig by hand, or give task.reset more time, more effort or a wider tolerance",
        ExitCode.HARDWARE,
        Rearm.PERSON,
    ),
    FaultName.RESET_LIMIT: Entry(
        "a reset drove the rig beyond the reset's own limits",
        "look what moved it; then lower task.reset.effort or widen task.reset.limits",
        ExitCode.SAFETY,
        Rearm.PERSON,
    ),
    FaultName.NO_POLICY: Entry(
        "no policy came to start with",
        "look whether a learner runs and is connected, or name a file with `policy`",
        ExitCode.INTERNAL,
        Rearm.NOBODY,
    ),
    FaultName.BARRIER: Entry(
        "replay process and learner did not come to the end of an episode in time",
        "look at stderr.log, or raise barrier_timeout_s",
        ExitCode.INTERNAL,
        Rearm.NOBODY,
    ),
    FaultName.NOT_RESUMED: Entry(
        "the run was paused and nobody resumed it",
        "see to the reason of the pause, then start again",
        ExitCode.SAFETY,
        Rearm.NOBODY,
    ),
    FaultName.LOOP_KILLED: Entry(
        "the control process was killed",
        "look for what killed it (memory?) in the system's log, then start again",
        ExitCode.INTERNAL,
        Rearm.NOBODY,
    ),
    FaultName.LOOP_HUNG: Entry(
        "the control process makes no ticks",
        "look for what stopped it; it is ended if it does not come back",
        ExitCode.INTERNAL,
        Rearm.NOBODY,
    ),
    FaultName.LEARNER_GONE: Entry(
        "the learner is gone for good, and without it the run cannot go on",
        "look at stderr.log",
        ExitCode.INTERNAL,
        Rearm.NOBODY,
    ),
    FaultName.PROGRAM: Entry(
        "the program came to where it should never be",
        "please report it with events.jsonl and stderr.log",
        ExitCode.INTERNAL,
        Rearm.NOBODY,
    ),
}

_DEVICE: Final = {
    DeviceFault.NONE: FaultName.DEVICE_DISARMED,
    DeviceFault.LEASE: FaultName.DEVICE_LEASE,
    DeviceFault.SENSOR: FaultName.DEVICE_SENSOR,
    DeviceFault.ESTOP: FaultName.DEVICE_ESTOP,
    DeviceFault.INTERNAL: FaultName.DEVICE_INTERNAL,
}


def device_fault(code: int, *, latched: bool = False) -> FaultName:
    """Name the fault that a device latched by its code.

    0 stands for a device that names none: it was found disarmed, or has its FAULT bit set all the same (``latched``).
    """
    if latched and not code:
        return FaultName.DEVICE_UNNAMED
    return _DEVICE[DeviceFault(code)] if code in {f.value for f in DeviceFault} else FaultName.DEVICE_UNKNOWN


class Halted(Exception):
    """A fault ended the run; ``str`` is the one line for people."""

    def __init__(self, fault: FaultName, detail: str = "") -> None:
        entry = FAULTS[fault]
        super().__init__(detail or f"{entry.cause}; {entry.hint}")
        self.fault = fault


class LinkFault(LinkError):
    """A lost line that was told apart more closely."""

    def __init__(self, fault: FaultName, detail: str) -> None:
        entry = FAULTS[fault]
        super().__init__(f"{detail}: {entry.cause}; {entry.hint}" if detail else f"{entry.cause}; {entry.hint}")
        self.fault = fault


def link_fault(error: LinkError) -> FaultName:
    """Name what a LinkError stands for."""
    return error.fault if isinstance(error, LinkFault) else FaultName.LINK_CLOSED
