"""The keys of the link: there, ours alone, and belonging together."""

from __future__ import annotations

from collections.abc import Iterator

from onrig.tools.diagnosis.check import Check, failed, passed, warned
from onrig.tools.diagnosis.machine import Machine
from onrig.tools.diagnosis.needs import Needs


def examine(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read them as a run would; needs zmq."""
    if needs.config is None:
        return
    if not needs.listens:
        yield passed("keys", "none needed: nobody connects from outside")
        return
    if needs.keys is None:
        found = "plain loopback: whoever is on this machine may connect, unencrypted"
        yield warned("keys", found, "onrig keys K, then link: {keys: K/rig}")
        return
    from onrig.runtime.link.keys import KeyFault, fingerprint_of, load_rig_keys

    try:
        keys = load_rig_keys(needs.keys)
    except KeyFault as fault:
        found, _, remedy = str(fault).rpartition("; ")
        yield failed("keys", found or remedy, remedy if found else "onrig keys DIR")
        return
    names = ", ".join(sorted(keys.allowed.values()))
    yield passed("keys", f"{needs.keys}: rig {fingerprint_of(keys.own)}, may enter: {names}")
