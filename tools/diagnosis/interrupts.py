"""Which devices interrupt the loop's CPU, and how often; their handlers go before any thread, SCHED_FIFO or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from onrig.runtime.control.cpus import MATTERS_HZ, Interrupt, read_interrupts, uptime_s
from onrig.tools.diagnosis.check import Check, passed, warned
from onrig.tools.diagnosis.cpus import loop_cpu
from onrig.tools.diagnosis.cpus import read as read_cpus
from onrig.tools.diagnosis.machine import Machine, cpus_as_text, with_kernel_argument
from onrig.tools.diagnosis.needs import Needs

_NAMED: Final = 4


def judge(
    interrupts: Sequence[Interrupt], up_s: float, cpu: int, others: set[int], machine: Machine
) -> Iterator[Check]:
    """Judge what goes to the loop's ``cpu`` although there are ``others`` to take it."""
    if not interrupts or up_s <= 0:
        return
    rates = [(i.counts.get(cpu, 0) / up_s, i) for i in interrupts if cpu in i.served_by]
    often = sorted(((rate, i) for rate, i in rates if rate >= MATTERS_HZ), key=lambda found: -found[0])
    if not often:
        yield passed("interrupts", f"no device interrupts CPU {cpu} once a second or more")
        return
    named = ", ".join(f"{i.device or 'a device'} ({i.number}): {rate:.3g}/s" for rate, i in often[:_NAMED])
    more = f" and {len(often) - _NAMED} more" if len(often) > _NAMED else ""
    numbers = " ".join(str(i.number) for _, i in often)
    allowed = cpus_as_text(others)
    now = f"for n in {numbers}; do echo {allowed} | sudo tee /proc/irq/$n/smp_affinity_list; done"
    found = f"devices interrupt the loop's CPU {cpu}: {named}{more}"
    for_good = with_kernel_argument(machine, f"irqaffinity={allowed}")
    yield warned("interrupts", found, f"{now} (until the next boot); for good: {for_good}")


def examine(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Look, and judge; silent where nothing can be late, or no other CPU could take them."""
    facts = read_cpus(machine)
    cpu = loop_cpu(facts, needs)
    if not needs.realtime or cpu is None or not facts.online - {cpu}:
        return
    yield from judge(read_interrupts(machine.root), uptime_s(machine.root), cpu, facts.online - {cpu}, machine)
