"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.sockets import short_folder

# No test asserts on the wall clock; fixtures of one test serve all of its examples.
settings.register_profile(
    "onrig", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("onrig")

SLOW_PATHS: Final = ("docs", "processes", "lab", "tools/web", "tools/experiments", "tools")
"""The most expensive files (whole rigs), which run first, so that all workers finish at about the same time."""
EXTRAS: Final = ("torch", "onnx")
"""Libraries without which a learner, and therefore most of its tests, must work."""


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths must be short."""
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def no_plots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide matplotlib from the runs that a test starts, because the final plot takes a second each."""
    folder = tmp_path_factory.mktemp("no-plots")
    (folder / "matplotlib.py").write_text("raise ImportError('left out')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports a library of an extra that is not installed."""
    report = yield
    absent = next((name for name in EXTRAS if f"No module named '{name}'" in str(report.longrepr)), None)
    if report.failed and absent is not None and find_spec(absent) is None:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {absent} is not installed")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the most expensive files first, keeping the order within each file."""
    root = Path(__file__).parent

    @cache
    def rank(file: Path) -> int:
        paths = [path.relative_to(root).as_posix() for path in (file, *file.parents) if path.is_relative_to(root)]
        return next((n for n, path in enumerate(SLOW_PATHS) if path in paths), len(SLOW_PATHS))

    items.sort(key=lambda item: rank(item.path))


def pytest_configure() -> None:
    """Set what this process and all processes started by tests inherit."""
    _compile_once()
    _restore_signals()


def _compile_once() -> None:
    """Keep bytecode even where PYTHONDONTWRITEBYTECODE is set: tests start hundreds of interpreters."""
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _restore_signals() -> None:
    """Restore default signal handling if the caller ignores signals (nohup, a background job).

    Processes started by tests would inherit it, and a run that inherits an ignored SIGHUP correctly ignores it.
    """
    for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
