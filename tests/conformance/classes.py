"""The checks of `onrig.hw.conformance` as test classes; a device is tested by inheriting from one of them."""

from __future__ import annotations

import inspect
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
        return self.configure_and_arm(host)


def of_the_policy(test_class: type[DeviceConformance]) -> type[DeviceConformance]:
    """Keep only the tests of a device's own policy in a class; another class covers the other rules."""
    for name in dir(test_class):
        if name.startswith("test_") and "self.configure_for_policy(" not in inspect.getsource(
            getattr(test_class, name)
        ):
            setattr(test_class, name, None)
    return test_class


class PacedConformance(_AsTests, paced.PacedConformance):
    """Hardware, or a twin whose time runs by itself."""


class LockstepConformance(_AsTests, lockstep.LockstepConformance):
    """A twin whose time advances only when the host acts."""
