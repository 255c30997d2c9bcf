"""Checks of the kernel: version, PREEMPT_RT, scheduling permissions and locked memory."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from onrig.tools.doctor.finding import REAL_TIME_PAGE, Check, Needs, report_failure, report_pass, report_warning
from onrig.tools.machine import Machine

_PREEMPTION_MODELS = ("PREEMPT_RT", "PREEMPT_DYNAMIC", "PREEMPT_LAZY", "PREEMPT")
_LATENCY_EVIDENCE = (
    "on a Raspberry Pi 5 under load, cyclictest measured up to 37 ms without PREEMPT_RT and 0.12 ms with it (OSPERT "
    "2024)"
)


class KernelFacts(NamedTuple):
    """Facts about the kernel."""

    system: str
    release: str
    version: str
    realtime_flag: int | None
    """Content of /sys/kernel/realtime, which only a PREEMPT_RT kernel has."""
    architecture: str


def read_kernel(machine: Machine) -> KernelFacts:
    """Read the facts about the kernel."""
    return KernelFacts(
        machine.text("proc/sys/kernel/ostype") or platform.system(),
        machine.text("proc/sys/kernel/osrelease") or platform.release(),
        machine.text("proc/sys/kernel/version") or platform.version(),
        machine.number("sys/kernel/realtime"),
        platform.machine(),
    )


def check_kernel(facts: KernelFacts, needs: Needs) -> Iterator[Check]:
    """Yield the findings on the kernel."""
    finding = f"{facts.system} {facts.release} on {facts.architecture}"
    if facts.system != "Linux":
        yield report_warning(
            "kernel", finding, "a rig needs Linux; other systems can run only its twin, without real time"
        )
        return
    if facts.architecture.startswith(("armv6", "armv7", "i386", "i586", "i686")):
        yield report_failure(
            "kernel", f"{finding}: 32-bit system", "install a 64-bit system: onnxruntime has no 32-bit wheels"
        )
    else:
        yield report_pass("kernel", finding)
    model = next((m for m in _PREEMPTION_MODELS if m in facts.version.split()), "no kernel preemption")
    if facts.realtime_flag == 1 or model == "PREEMPT_RT":
        yield report_pass("preempt-rt", "PREEMPT_RT")
    elif needs.realtime:
        yield report_warning(
            "preempt-rt", f"an ordinary kernel ({model}); {_LATENCY_EVIDENCE}", f"see {REAL_TIME_PAGE}, 'A kernel'"
        )
    else:
        yield report_pass("preempt-rt", f"an ordinary kernel ({model}); lockstep has no deadlines")


def examine_kernel(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about the kernel and check them."""
    yield from check_kernel(read_kernel(machine), needs)


_PROBE_CODE: Final = """
import ctypes, json, os, sys
priority = int(sys.argv[1])
errors = {}
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    errors["fifo"] = ""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
except (OSError, AttributeError) as error:
    errors["fifo"] = getattr(error, "strerror", None) or str(error)
libc = ctypes.CDLL(None, use_errno=True)
errors["lock"] = "" if libc.mlockall(3) == 0 else os.strerror(ctypes.get_errno())
print(json.dumps(errors))
"""
_PROBE_TIMEOUT_S: Final = 10.0
_LOOP_LOCKED_BYTES: Final = 256 << 20
"""Upper bound on the memory that the control process locks; it does not grow while ticking."""
_CAP_IPC_LOCK: Final = 14
_UNLIMITED: Final = -1


class SchedulingFacts(NamedTuple):
    """Results of requesting real-time scheduling and locked memory, and the limits on both."""

    fifo_error: str
    """Reason why SCHED_FIFO was not granted; empty if it was."""
    lock_error: str
    """Reason why locking all memory of a small process failed; empty if it succeeded."""
    rtprio: int
    memlock_bytes: int
    """-1 if there is no limit."""
    may_lock_all: bool
    """Whether the process has CAP_IPC_LOCK."""
    throttle_runtime_us: int | None
    throttle_period_us: int | None


def try_scheduling(priority: int) -> tuple[str, str]:
    """Request SCHED_FIFO and locked memory in a child process.

    Returns the reason why each of them was refused, which is empty if it was granted.
    """
    try:
        result = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE_CODE, str(priority)],
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
        reasons = json.loads(result.stdout)
        return str(reasons["fifo"]), str(reasons["lock"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        return (f"the request could not be made: {error}",) * 2


def read_scheduling(machine: Machine, needs: Needs) -> SchedulingFacts:
    """Read the limits of this process, and request real-time scheduling in a child process."""
    fifo_error, lock_error = try_scheduling(max(1, needs.priority))
    rtprio, memlock_bytes = _read_limit(machine, "Max realtime priority"), _read_limit(machine, "Max locked memory")
    return SchedulingFacts(
        fifo_error,
        lock_error,
        rtprio,
        memlock_bytes,
        _has_capability(machine.text("proc/self/status") or "", _CAP_IPC_LOCK),
        machine.number("proc/sys/kernel/sched_rt_runtime_us"),
        machine.number("proc/sys/kernel/sched_rt_period_us"),
    )


def grant_command(user: str, item: str, value: str) -> str:
    """Return the command that raises a user's limit from the next login on."""
    line = f"{user} - {item} {value}"
    return f"echo '{line}' | sudo tee -a /etc/security/limits.d/onrig.conf, then log out and in again"


def check_scheduling(facts: SchedulingFacts, needs: Needs, user: str) -> Iterator[Check]:
    """Yield the findings on scheduling permissions and locked memory."""
    yield _check_fifo(facts, needs, user)
    yield _check_throttling(facts, needs)
    yield _check_lock(facts, needs, user)


def _check_fifo(facts: SchedulingFacts, needs: Needs, user: str) -> Check:
    if needs.priority <= 0:
        return report_pass("sched-fifo", "not requested (realtime.priority 0)")
    if not facts.fifo_error:
        return report_pass("sched-fifo", f"SCHED_FIFO {needs.priority} granted to a test process")
    limit = "no limit" if facts.rtprio == _UNLIMITED else facts.rtprio
    finding = (
        f"SCHED_FIFO {needs.priority} refused ({facts.fifo_error}; rtprio limit {limit}): ticks will be late under load"
    )
    if facts.throttle_runtime_us == 0:
        return needs.timing_finding("sched-fifo", finding, "sudo sysctl kernel.sched_rt_runtime_us=950000")
    if facts.rtprio == _UNLIMITED or facts.rtprio >= needs.priority:
        remedy = "a control group or container prevents it: start Onrig outside, or grant the group real-time bandwidth"
        return needs.timing_finding("sched-fifo", finding, remedy)
    return needs.timing_finding("sched-fifo", finding, grant_command(user, "rtprio", "99"))


def _check_throttling(facts: SchedulingFacts, needs: Needs) -> Check:
    runtime_us, period_us = facts.throttle_runtime_us, facts.throttle_period_us
    if runtime_us is None or not period_us:
        return report_pass("rt-throttling", "this kernel reports no limit for real-time processes")
    if runtime_us < 0:
        return report_warning(
            "rt-throttling",
            "off (sched_rt_runtime_us -1): a runaway real-time process would block its CPU",
            "sudo sysctl kernel.sched_rt_runtime_us=950000",
        )
    fraction = runtime_us / period_us
    limit_text = f"{runtime_us / 1000:g} ms of each {period_us / 1000:g} ms"
    finding = f"real-time processes may use {limit_text}; the loop sleeps between ticks"
    if fraction < 0.5:
        return needs.timing_finding("rt-throttling", finding, "sudo sysctl kernel.sched_rt_runtime_us=950000")
    return report_pass("rt-throttling", finding)


def _check_lock(facts: SchedulingFacts, needs: Needs, user: str) -> Check:
    if not needs.lock_memory:
        return report_pass("memory-lock", "not requested (realtime.lock_memory false)")
    limit = facts.memlock_bytes
    is_sufficient = limit == _UNLIMITED or limit >= _LOOP_LOCKED_BYTES
    if facts.may_lock_all and not facts.lock_error:
        return report_pass("memory-lock", "granted (CAP_IPC_LOCK)")
    size = "no limit" if limit == _UNLIMITED else f"limit {limit / 2**20:.0f} MiB"
    if is_sufficient and not facts.lock_error:
        return report_pass("memory-lock", f"granted ({size})")
    # Under a finite limit, locking succeeds at first, but later allocations fail.
    finding = f"{size}; the loop locks up to {_LOOP_LOCKED_BYTES >> 20} MiB"
    finding += f" ({facts.lock_error})" if facts.lock_error else ""
    return needs.timing_finding("memory-lock", finding, grant_command(user, "memlock", "unlimited"))


def _read_limit(machine: Machine, name: str) -> int:
    """Read a soft limit of this process by its name in /proc/self/limits; -1 if unlimited, 0 if missing."""
    for line in (machine.text("proc/self/limits") or "").splitlines():
        if line.startswith(name):
            fields = line.removeprefix(name).split()
            value = fields[0] if fields else "0"
            return _UNLIMITED if value == "unlimited" else int(value) if value.isdigit() else 0
    return 0


def _has_capability(status: str, bit: int) -> bool:
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def examine_scheduling(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about scheduling permissions and locked memory, and check them."""
    yield from check_scheduling(read_scheduling(machine, needs), needs, getpass.getuser())
