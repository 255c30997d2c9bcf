"""Which kernel runs, and whether it can be interrupted everywhere (PREEMPT_RT)."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import NamedTuple

from onrig.tools.diagnosis.check import Check, failed, passed, warned
from onrig.tools.diagnosis.machine import Machine
from onrig.tools.diagnosis.needs import PAGE, Needs

_MODELS = ("PREEMPT_RT", "PREEMPT_DYNAMIC", "PREEMPT_LAZY", "PREEMPT")
_FIGURES = "on a Raspberry Pi 5 under stress cyclictest shows up to 37 ms without it, 0.12 ms with it (OSPERT 2024)"


class KernelFacts(NamedTuple):
    """What the kernel says of itself."""

    system: str
    release: str
    version: str
    realtime_flag: int | None
    """/sys/kernel/realtime; missing where the kernel is an ordinary one."""
    architecture: str


def read(machine: Machine) -> KernelFacts:
    """Read it."""
    return KernelFacts(
        machine.text("proc/sys/kernel/ostype") or platform.system(),
        machine.text("proc/sys/kernel/osrelease") or platform.release(),
        machine.text("proc/sys/kernel/version") or platform.version(),
        machine.number("sys/kernel/realtime"),
        platform.machine(),
    )


def judge(facts: KernelFacts, needs: Needs) -> Iterator[Check]:
    """Judge it."""
    found = f"{facts.system} {facts.release} on {facts.architecture}"
    if facts.system != "Linux":
        yield warned("kernel", found, "a rig is driven from Linux; elsewhere only its twin runs, without real time")
        return
    if facts.architecture.startswith(("armv6", "armv7", "i386", "i586", "i686")):
        yield failed("kernel", f"{found}: 32 bits", "install a 64-bit system: onnxruntime has no 32-bit wheels")
    else:
        yield passed("kernel", found)
    model = next((m for m in _MODELS if m in facts.version.split()), "no kernel preemption")
    if facts.realtime_flag == 1 or model == "PREEMPT_RT":
        yield passed("preempt-rt", "PREEMPT_RT")
    elif needs.realtime:
        yield warned("preempt-rt", f"an ordinary kernel ({model}); {_FIGURES}", f"see {PAGE}, 'A kernel'")
    else:
        yield passed("preempt-rt", f"an ordinary kernel ({model}); in lockstep nothing is ever late")


def examine(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Look, and judge."""
    yield from judge(read(machine), needs)
