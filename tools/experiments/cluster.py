"""Execution of units on a Ray cluster; its nodes need the same version of Onrig and the packages that a spec uses.

Ray transfers the function by name and its arguments as bytes: nothing is pickled by value.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import ray

from onrig.runtime.python_files import allowed_contents, receive
from onrig.tools.experiments.jobs import (
    ENGINE,
    JobWorker,
    Unit,
    create_job,
    load_engine,
)
from onrig.tools.experiments.workers import Event, NoWorkers, UnitLost, outcome_event
from onrig.tools.workers import Outcome, execute_call

PROBE_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 60.0
"""Connection timeout: a driver on a busy machine takes several seconds, and an unrelated program at the port never
answers."""
_POLL_S: Final = 0.5
_RETRIES: Final = 2
"""Number of retries of a unit whose node is lost."""
_ADDRESS: Final = re.compile(r"(?P<scheme>ray://)?(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})")
_PROBE_CODE: Final = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False); ray.shutdown()"


def address_problem(address: str) -> str | None:
    """Return what is wrong with the format of an address, or None."""
    match = _ADDRESS.fullmatch(address)
    if address == "auto" or (match is not None and 0 < int(match["port"]) < 1 << 16):
        return None
    return f"'{address}' is not an address: expected HOST:PORT, ray://HOST:PORT or auto"


class ClusterWorkers:
    """Workers on the CPUs of a Ray cluster."""

    def __init__(self, address: str) -> None:
        """Connect to the cluster. Raises NoWorkers within about a minute if there is none."""
        _probe(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            cpus = int(ray.cluster_resources().get("CPU", 0))
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise NoWorkers(_unreachable_message(address, _last_line(str(error)))) from None
        if cpus < 1:
            ray.shutdown()
            raise NoWorkers(f"the Ray cluster at {address} has no CPUs")
        self.slots: Final = cpus
        self._pending_units: dict[ray.ObjectRef[bytes], Unit] = {}

    def run(self, units: Sequence[Unit]) -> Iterator[Event | None]:
        """See ``Workers``."""
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(run_remotely)
        for unit in units:
            job = msgspec.json.encode(create_job(unit))
            self._pending_units[task.remote(job, ENGINE, allowed_contents())] = unit
        while self._pending_units:
            finished_references, _ = ray.wait(list(self._pending_units), num_returns=1, timeout=_POLL_S)
            if not finished_references:
                yield None
            for reference in finished_references:
                yield _outcome(self._pending_units.pop(reference), reference)

    def close(self) -> None:
        """See ``Workers``."""
        for reference in self._pending_units:
            with suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)
        self._pending_units.clear()
        ray.shutdown()


def run_remotely(job: bytes, engine: str, files: dict[str, bytes]) -> bytes:
    """Run a job on a node of the cluster, and return its outcome. The job (`AnyJob`) and the outcome (`Outcome`) are
    encoded as bytes.

    ``files`` are the contents of the Python files named in the job's configuration, which the node does not have.
    """
    receive(files)
    worker = JobWorker(load_engine(engine), lambda episodes: None)
    return msgspec.json.encode(execute_call(worker.run_job, [msgspec.Raw(job)]))


def _outcome(unit: Unit, reference: ray.ObjectRef[bytes]) -> Event:
    try:
        reply: Outcome = msgspec.json.decode(ray.get(reference), type=Outcome)
    except ray.exceptions.RayError as error:
        return UnitLost(unit, f"lost on the cluster: {_last_line(str(error))}")
    return outcome_event(unit, reply)


def _probe(address: str) -> None:
    """Try the port, then a connection in a separate process, because Ray's own attempt has no timeout."""
    match = _ADDRESS.fullmatch(address)
    if match is not None:
        try:
            socket.create_connection((match["host"].strip("[]"), int(match["port"])), PROBE_S).close()
        except OSError as error:
            raise NoWorkers(_unreachable_message(address, error.strerror or str(error))) from None
    try:
        result = subprocess.run(
            [sys.executable, "-c", _PROBE_CODE, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CONNECT_TIMEOUT_S,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoWorkers(_unreachable_message(address, f"no answer within {CONNECT_TIMEOUT_S:g} s")) from None
    if result.returncode != 0:
        raise NoWorkers(_unreachable_message(address, _last_line(result.stderr.decode(errors="replace"))))


def _unreachable_message(address: str, reason: str) -> str:
    return f"no Ray cluster at {address} ({reason}); start one with `ray start --head`"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"
