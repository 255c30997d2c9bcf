"""Devices tested with ``onrig.hw.conformance``."""

import pytest

pytest.register_assert_rewrite("onrig.hw.conformance")
