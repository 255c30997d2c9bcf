"""Checks of the loop's CPU and what competes for it: isolcpus, nohz_full, cpuset, affinity mask, interrupts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from onrig.runtime.control.realtime import (
    MIN_COUNTED_RATE_HZ,
    Interrupt,
    parse_cpu_list,
    quietest_cpu,
    rates_hz,
    read_interrupts,
    uptime_s,
)
from onrig.tools.doctor.finding import Check, Needs, report_pass, report_warning
from onrig.tools.machine import Machine, cpus_as_text, kernel_argument_command

_N_PROCESSES: Final = 4
"""Number of processes of a run: device or its twin, control, replay, learner."""


class CpuFacts(NamedTuple):
    """CPUs of the machine, and those available to a run."""

    online: set[int]
    allowed: set[int]
    """Affinity mask of this process; excludes isolated CPUs."""
    cpuset: set[int] | None
    """CPUs allowed by the control group; None if not reported."""
    isolated: set[int]
    nohz_full: set[int]
    interrupt_rates_hz: Mapping[int, float] = MappingProxyType({})
    """Rate of device interrupts by CPU; 0 for a CPU that is not listed."""
    quota: float | None = None
    """CPU quota of the control group, as a number of CPUs; None without a limit."""


def read_cpus(machine: Machine) -> CpuFacts:
    """Read the facts about the loop's CPU."""
    allowed: set[int] = set()
    for line in (machine.text("proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            allowed = parse_cpu_list(line.split(":", 1)[1])
    online = parse_cpu_list(machine.text("sys/devices/system/cpu/online")) or set(range(os.cpu_count() or 1))
    return CpuFacts(
        online,
        allowed or online,
        _read_cpuset(machine),
        parse_cpu_list(machine.text("sys/devices/system/cpu/isolated")),
        parse_cpu_list(machine.text("sys/devices/system/cpu/nohz_full")),
        rates_hz(read_interrupts(machine.root), uptime_s(machine.root)),
        machine.cpu_quota(),
    )


def check_quota(facts: CpuFacts, needs: Needs) -> Iterator[Check]:
    """Findings on the CPU quota; none if it does not limit a run."""
    quota = facts.quota
    if quota is None or quota >= len(facts.allowed):
        return
    found = f"the control group grants {quota:.2g} of {len(facts.allowed)} CPUs"
    remedy = "remove the limit or grant all CPUs (CPUQuota= of the unit, --cpus of the container)"
    if needs.realtime:
        effect = (
            "once it is exhausted, all processes, including the loop, stop for the rest of the quota's period (often "
            "100 ms)"
        )
        yield needs.timing_finding("cpu-quota", f"{found}; {effect}", remedy)
    elif quota < _N_PROCESSES:
        yield report_warning(
            "cpu-quota", f"{found}; a run has {_N_PROCESSES} processes and slows down accordingly", remedy
        )
    else:
        yield report_pass("cpu-quota", found)


def _read_cpuset(machine: Machine) -> set[int] | None:
    for line in (machine.text("proc/self/cgroup") or "").splitlines():
        group, controllers, path = line.split(":", 2)
        if group == "0" and not controllers:
            text = machine.text(f"sys/fs/cgroup{path.rstrip('/')}/cpuset.cpus.effective")
            return parse_cpu_list(text) if text else None
    return None


def loop_cpu(facts: CpuFacts, needs: Needs) -> int | None:
    """CPU that ``onrig.runtime.control.realtime.loop_cpu`` chooses for the loop with this affinity mask."""
    if needs.cpu != "auto":
        return needs.cpu
    return quietest_cpu(facts.allowed, facts.interrupt_rates_hz)


def check_cpus(facts: CpuFacts, needs: Needs, machine: Machine) -> Iterator[Check]:
    """Findings on the loop's CPU."""
    cpu = loop_cpu(facts, needs)
    online = f"this machine has CPU {cpus_as_text(facts.online)}"
    if not needs.realtime:
        yield report_pass("cpu", f"{online}; in lockstep, the loop may run on any of them")
        return
    if cpu is None:
        reason = "realtime.cpu is null" if needs.cpu is None else f"only CPU {cpus_as_text(facts.allowed)} is available"
        yield report_warning(
            "cpu",
            f"{reason}: the loop shares it with all other programs",
            "give the loop its own CPU: realtime: {cpu: N}",
        )
        return
    if cpu not in facts.online:
        yield needs.timing_finding("cpu", f"realtime.cpu is {cpu}, but {online}", "set realtime: {cpu: auto}")
        return
    if facts.cpuset is not None and cpu not in facts.cpuset:
        found = f"realtime.cpu is {cpu}, but the control group allows {cpus_as_text(facts.cpuset)}"
        yield needs.timing_finding("cpu", found, f"realtime: {{cpu: {max(facts.cpuset)}}}, or AllowedCPUs= of the unit")
        return
    yield _check_isolation(facts, cpu, machine)


def _check_isolation(facts: CpuFacts, cpu: int, machine: Machine) -> Check:
    shown = cpus_as_text(facts.isolated)
    if cpu in facts.isolated:
        ticks = " and without scheduler ticks (nohz_full)" if cpu in facts.nohz_full else ""
        return report_pass("cpu", f"the loop runs on CPU {cpu}, isolated{ticks}")
    if facts.isolated:
        found = f"the loop runs on CPU {cpu}, although CPU {shown} is isolated (auto never selects an isolated CPU)"
        return report_warning("cpu", found, f"select it in the configuration: realtime: {{cpu: {max(facts.isolated)}}}")
    found = f"the loop runs on CPU {cpu} of {cpus_as_text(facts.online)}; other programs may run there, too"
    if len(facts.online) < 3:
        return report_pass("cpu", f"{found} (too few CPUs to isolate one)")
    last_cpu = max(facts.online)
    command = kernel_argument_command(machine, f"isolcpus={last_cpu} nohz_full={last_cpu} rcu_nocbs={last_cpu}")
    return report_warning("cpu", found, f"{command}; then realtime: {{cpu: {last_cpu}}}")


def examine_cpus(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about the loop's CPU, and check them."""
    facts = read_cpus(machine)
    yield from check_cpus(facts, needs, machine)
    yield from check_quota(facts, needs)


_MAX_NAMED_INTERRUPTS: Final = 4


def check_interrupts(
    interrupts: Sequence[Interrupt], uptime_s: float, cpu: int, other_cpus: set[int], machine: Machine
) -> Iterator[Check]:
    """Findings on interrupts of the loop's ``cpu`` that ``other_cpus`` could handle."""
    if not interrupts or uptime_s <= 0:
        return
    rates = [(i.counts.get(cpu, 0) / uptime_s, i) for i in interrupts if cpu in i.served_by]
    frequent = sorted(((rate, i) for rate, i in rates if rate >= MIN_COUNTED_RATE_HZ), key=lambda found: -found[0])
    if not frequent:
        yield report_pass("interrupts", f"no device interrupts CPU {cpu} once a second or more")
        return
    names = ", ".join(
        f"{i.device or 'a device'} ({i.number}): {rate:.3g}/s" for rate, i in frequent[:_MAX_NAMED_INTERRUPTS]
    )
    omitted = f" and {len(frequent) - _MAX_NAMED_INTERRUPTS} more" if len(frequent) > _MAX_NAMED_INTERRUPTS else ""
    numbers = " ".join(str(i.number) for _, i in frequent)
    allowed = cpus_as_text(other_cpus)
    command = f"for n in {numbers}; do echo {allowed} | sudo tee /proc/irq/$n/smp_affinity_list; done"
    found = f"devices interrupt the loop's CPU {cpu}: {names}{omitted}"
    permanent = kernel_argument_command(machine, f"irqaffinity={allowed}")
    yield report_warning("interrupts", found, f"{command} (until the next boot); permanently: {permanent}")


def examine_interrupts(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Findings on interrupts; none in lockstep, or without another CPU."""
    facts = read_cpus(machine)
    cpu = loop_cpu(facts, needs)
    if not needs.realtime or cpu is None or not facts.online - {cpu}:
        return
    yield from check_interrupts(
        read_interrupts(machine.root), uptime_s(machine.root), cpu, facts.online - {cpu}, machine
    )
