"""Devices that are put to the test of ``onrig.hw.conformance``."""

import pytest

pytest.register_assert_rewrite("onrig.hw.conformance")
