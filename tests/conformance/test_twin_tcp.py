"""The twin's process complies with the protocol over TCP, with the command line of docs/extending.md."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from onrig.hw.line import Line
from onrig.hw.transport import Transport
from tests.conformance.classes import LockstepConformance
from tests.conformance.test_twin_pty import TwinOnPty
from tests.docs import outside
from tests.lab.rig.processes import Process
from tests.sockets import short_folder


class TestOnTcp(TwinOnPty, LockstepConformance):
    pace = "lockstep"
    kind: ClassVar[type[Line]]

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[tuple[Process, str]]:
        with short_folder() as folder:
            cls.kind = outside.import_example("A device over TCP", folder).MyTcp
        with super().started() as (process, path), outside.on_tcp(path) as port:
            yield process, str(port)

    def opened(self, port: str) -> Transport:
        return self.kind(host="127.0.0.1", port=int(port)).open()
