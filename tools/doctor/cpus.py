"""Checks of the loop's CPU and of what competes for it: isolcpus, nohz_full, cpuset, affinity mask and interrupts."""

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
"""Number of a run's processes: the device or its twin, control, replay and learner."""


class CpuFacts(NamedTuple):
    """The machine's CPUs, and those available to a run."""

    online_cpus: set[int]
    allowed_cpus: set[int]
    """Affinity mask of this process, which excludes isolated CPUs."""
    cpuset: set[int] | None
    """CPUs that the control group allows; None if not reported."""
    isolated_cpus: set[int]
    nohz_full: set[int]
    interrupt_rates_hz: Mapping[int, float] = MappingProxyType({})
    """Rate of device interrupts by CPU; a CPU that is not listed has a rate of 0."""
    quota: float | None = None
    """CPU quota of the control group as a number of CPUs; None if there is no limit."""


def read_cpus(machine: Machine) -> CpuFacts:
    """Read the facts about the loop's CPU."""
    allowed_cpus: set[int] = set()
    for line in (machine.text("proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            allowed_cpus = parse_cpu_list(line.split(":", 1)[1])
    online_cpus = parse_cpu_list(machine.text("sys/devices/system/cpu/online")) or set(range(os.cpu_count() or 1))
    return CpuFacts(
        online_cpus,
        allowed_cpus or online_cpus,
        _read_cpuset(machine),
        parse_cpu_list(machine.text("sys/devices/system/cpu/isolated")),
        parse_cpu_list(machine.text("sys/devices/system/cpu/nohz_full")),
        rates_hz(read_interrupts(machine.root), uptime_s(machine.root)),
        machine.cpu_quota(),
    )


def check_quota(facts: CpuFacts, needs: Needs) -> Iterator[Check]:
    """Yield a finding on the CPU quota, or none if the quota does not limit a run."""
    quota = facts.quota
    if quota is None or quota >= len(facts.allowed_cpus):
        return
    finding = f"the control group grants {quota:.2g} of {len(facts.allowed_cpus)} CPUs"
    remedy = "remove the limit or grant all CPUs (CPUQuota= of the unit, --cpus of the container)"
    if needs.realtime:
        effect = (
            "once this quota is exhausted, all processes, including the loop, stop for the rest of its period (often "
            "100 ms)"
        )
        yield needs.timing_finding("cpu-quota", f"{finding}; {effect}", remedy)
    elif quota < _N_PROCESSES:
        yield report_warning(
            "cpu-quota", f"{finding}; a run has {_N_PROCESSES} processes and slows down accordingly", remedy
        )
    else:
        yield report_pass("cpu-quota", finding)


def _read_cpuset(machine: Machine) -> set[int] | None:
    for line in (machine.text("proc/self/cgroup") or "").splitlines():
        group, controllers, path = line.split(":", 2)
        if group == "0" and not controllers:
            text = machine.text(f"sys/fs/cgroup{path.rstrip('/')}/cpuset.cpus.effective")
            return parse_cpu_list(text) if text else None
    return None


def loop_cpu(facts: CpuFacts, needs: Needs) -> int | None:
    """Return the CPU that ``onrig.runtime.control.realtime.loop_cpu`` chooses for the loop with this affinity mask."""
    if needs.cpu != "auto":
        return needs.cpu
    return quietest_cpu(facts.allowed_cpus, facts.interrupt_rates_hz)


def check_cpus(facts: CpuFacts, needs: Needs, machine: Machine) -> Iterator[Check]:
    """Yield the findings on the loop's CPU."""
    cpu = loop_cpu(facts, needs)
    online_text = f"this machine has CPU {cpus_as_text(facts.online_cpus)}"
    if not needs.realtime:
        yield report_pass("cpu", f"{online_text}; in lockstep, the loop may run on any of them")
        return
    if cpu is None:
        reason = (
            "realtime.cpu is null" if needs.cpu is None else f"only CPU {cpus_as_text(facts.allowed_cpus)} is available"
        )
        yield report_warning(
            "cpu",
            f"{reason}: the loop shares its CPU with all other programs",
            "give the loop its own CPU: realtime: {cpu: N}",
        )
        return
    if cpu not in facts.online_cpus:
        yield needs.timing_finding("cpu", f"realtime.cpu is {cpu}, but {online_text}", "set realtime: {cpu: auto}")
        return
    if facts.cpuset is not None and cpu not in facts.cpuset:
        finding = f"realtime.cpu is {cpu}, but the control group allows {cpus_as_text(facts.cpuset)}"
        yield needs.timing_finding(
            "cpu", finding, f"realtime: {{cpu: {max(facts.cpuset)}}}, or AllowedCPUs= of the unit"
        )
        return
    yield _check_isolation(facts, cpu, machine)


def _check_isolation(facts: CpuFacts, cpu: int, machine: Machine) -> Check:
    isolated_text = cpus_as_text(facts.isolated_cpus)
    if cpu in facts.isolated_cpus:
        ticks = " and without scheduler ticks (nohz_full)" if cpu in facts.nohz_full else ""
        return report_pass("cpu", f"the loop runs on CPU {cpu}, isolated{ticks}")
    if facts.isolated_cpus:
        finding = (
            f"the loop runs on CPU {cpu}, although CPU {isolated_text} is isolated (auto never selects an isolated CPU)"
        )
        return report_warning(
            "cpu", finding, f"select it in the configuration: realtime: {{cpu: {max(facts.isolated_cpus)}}}"
        )
    finding = f"the loop runs on CPU {cpu} of {cpus_as_text(facts.online_cpus)}; other programs may run there too"
    if len(facts.online_cpus) < 3:
        return report_pass("cpu", f"{finding} (too few CPUs to isolate one)")
    last_cpu = max(facts.online_cpus)
    command = kernel_argument_command(machine, f"isolcpus={last_cpu} nohz_full={last_cpu} rcu_nocbs={last_cpu}")
    return report_warning("cpu", finding, f"{command}; then realtime: {{cpu: {last_cpu}}}")


def examine_cpus(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about the loop's CPU and check them."""
    facts = read_cpus(machine)
    yield from check_cpus(facts, needs, machine)
    yield from check_quota(facts, needs)


_MAX_NAMED_INTERRUPTS: Final = 4


def check_interrupts(
    interrupts: Sequence[Interrupt], uptime_s: float, cpu: int, other_cpus: set[int], machine: Machine
) -> Iterator[Check]:
    """Yield findings on interrupts of the loop's ``cpu`` that ``other_cpus`` could handle."""
    if not interrupts or uptime_s <= 0:
        return
    rates = [(i.counts.get(cpu, 0) / uptime_s, i) for i in interrupts if cpu in i.served_by]
    frequent_interrupts = sorted(
        ((rate, i) for rate, i in rates if rate >= MIN_COUNTED_RATE_HZ), key=lambda pair: -pair[0]
    )
    if not frequent_interrupts:
        yield report_pass("interrupts", f"no device interrupts CPU {cpu} once a second or more")
        return
    names = ", ".join(
        f"{i.device or 'a device'} ({i.number}): {rate:.3g}/s"
        for rate, i in frequent_interrupts[:_MAX_NAMED_INTERRUPTS]
    )
    omitted_text = (
        f" and {len(frequent_interrupts) - _MAX_NAMED_INTERRUPTS} more"
        if len(frequent_interrupts) > _MAX_NAMED_INTERRUPTS
        else ""
    )
    interrupt_numbers = " ".join(str(i.number) for _, i in frequent_interrupts)
    allowed_text = cpus_as_text(other_cpus)
    command = f"for n in {interrupt_numbers}; do echo {allowed_text} | sudo tee /proc/irq/$n/smp_affinity_list; done"
    finding = f"devices interrupt the loop's CPU {cpu}: {names}{omitted_text}"
    permanent_command = kernel_argument_command(machine, f"irqaffinity={allowed_text}")
    yield report_warning("interrupts", finding, f"{command} (until the next boot); permanently: {permanent_command}")


def examine_interrupts(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Yield findings on interrupts, or none in lockstep or if there is no other CPU."""
    facts = read_cpus(machine)
    cpu = loop_cpu(facts, needs)
    if not needs.realtime or cpu is None or not facts.online_cpus - {cpu}:
        return
    yield from check_interrupts(
        read_interrupts(machine.root), uptime_s(machine.root), cpu, facts.online_cpus - {cpu}, machine
    )
