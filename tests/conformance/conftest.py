"""Processes of devices under test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="class")
def device_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """One process for all tests of a class, each of which connects anew."""
    with request.cls.started() as (request.cls.process, request.cls.port):
        yield
