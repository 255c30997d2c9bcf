"""Processes of devices under test, and the pytest marks of the checks."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from onrig.hw.conformance.check import CheckSkipped


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for cases in getattr(metafunc.function, "cases", ()):
        metafunc.parametrize(cases.names, cases.rows, ids=cases.ids)


def pytest_itemcollected(item: pytest.Item) -> None:
    if numbers := getattr(getattr(item, "function", None), "rules", ()):
        item.add_marker(pytest.mark.rules(*numbers))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    try:
        yield
    except CheckSkipped as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="class")
def device_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """One process for all tests of a class; each test reconnects."""
    with request.cls.started() as (request.cls.process, request.cls.port):
        yield
