"""The checks of `onrig.hw.conformance` as classes of tests; a device is put to the test by inheriting from one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onrig.hw.conformance import lockstep, paced
from onrig.hw.conformance.device import DeviceConformance
from onrig.hw.conformance.host import Host


class _AsTests(DeviceConformance):
    @pytest.fixture
    def host(self) -> Iterator[Host]:
        host = self.connect()
        yield host
        host.close()

    @pytest.fixture
    def armed(self, host: Host) -> Host:
        return self.armed_by(host)


class PacedConformance(_AsTests, paced.PacedConformance):
    """Hardware, or a twin whose time runs by itself."""


class LockstepConformance(_AsTests, lockstep.LockstepConformance):
    """A twin whose time stands still until the host acts."""
