"""Library checks: each library is imported and exercised in a separate process.

A wheel built for a newer processor kills its process (SIGILL), as onnxruntime 1.21 and several torch releases do on a
Raspberry Pi 4. These checks report the crash before it can end a run.
"""

from __future__ import annotations

import importlib.metadata
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from onrig.hw import native
from onrig.tools.doctor.finding import Check, Needs, report_failure, report_pass, report_warning
from onrig.tools.machine import Machine

_EXERCISE_TIMEOUT_S: Final = 120.0
"""Timeout for exercising a library; the first import of torch from an SD card takes a long time."""
GEMM_MODEL: Final = (
    b"c-rIOusX}c#m~i9!NpiE#8|1s;+~qDE5w+t)x*RA1OkjsjOAVpObiSR_9Gcb2?K*jh>wehgHecsi;05~h&hsgf|clkPApsu0=xip_8Nl"
)
"""Model of y = x w, where x is float32 (1, 8) and all elements of w (8, 8) are 0.5; opset 13, zlib, base 85."""


class Wheel(NamedTuple):
    """Library, with code that exercises it briefly."""

    package: str
    """Package name for pip."""
    code: str
    """Python code that succeeds only if the library works."""
    needs_torch: bool = False
    """Whether only algorithms written in torch need the library."""


WHEELS: Final = (
    Wheel("numpy", "import numpy as n; a = n.ones((64, 64), n.float32); assert float((a @ a).sum()) == 64.0**3"),
    Wheel(
        "onnxruntime",
        f"import base64, zlib, numpy as n, onnxruntime as o; m = zlib.decompress(base64.b85decode({GEMM_MODEL!r}))\n"
        "s = o.InferenceSession(m, providers=['CPUExecutionProvider'])\n"
        "assert float(s.run(None, {'x': n.ones((1, 8), n.float32)})[0].sum()) == 32.0",
    ),
    Wheel("pyserial", "import serial, serial.tools.list_ports"),
    Wheel("pyzmq", "import zmq; assert zmq.has('curve'), 'built without CURVE'; assert zmq.curve_keypair()"),
    Wheel("pyyaml", "import yaml; assert yaml.safe_load('{a: 1}') == {'a': 1}"),
    Wheel(
        "msgspec", "import msgspec; assert msgspec.json.decode(msgspec.json.encode({'a': 1.5}), type=dict[str, float])"
    ),
    Wheel(
        "torch",
        "import torch as t; a = t.ones(64, 64, requires_grad=True); (a @ a).sum().backward()\n"
        "assert float(a.grad[0, 0]) == 128.0",
        needs_torch=True,
    ),
)


class WheelFacts(NamedTuple):
    """Result of exercising a library."""

    wheel: Wheel
    version: str | None
    """Installed version; None if the library is not installed."""
    code: int | None
    """Exit code, or the negative number of the signal that killed the process; None after a timeout."""
    last_line: str


def read_wheel(wheel: Wheel) -> WheelFacts:
    """Exercise a library."""
    try:
        version = importlib.metadata.version(wheel.package)
    except importlib.metadata.PackageNotFoundError:
        return WheelFacts(wheel, None, 0, "")
    command = [sys.executable, "-P", "-c", wheel.code]  # -P: a numpy.py in this folder is not imported
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_EXERCISE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return WheelFacts(wheel, version, None, "")
    except OSError as error:
        return WheelFacts(wheel, version, 1, str(error))
    lines = result.stderr.strip().splitlines()
    return WheelFacts(wheel, version, result.returncode, lines[-1] if lines else "")


def read_wheels(wheels: Iterable[Wheel], reader: Callable[[Wheel], WheelFacts] = read_wheel) -> list[WheelFacts]:
    """Exercise several libraries, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(reader, wheels))


def required_wheels(needs_learner: bool | None) -> list[Wheel]:
    """Return the libraries that a run needs, including torch unless no learner runs."""
    return [w for w in WHEELS if not w.needs_torch or needs_learner is not False]


def is_importable(facts: WheelFacts) -> bool:
    """Return whether the library is installed and its exercise succeeded."""
    return facts.version is not None and facts.code == 0


def check_wheel(facts: WheelFacts) -> Check:
    """Return the finding on one library."""
    wheel, version = facts.wheel, facts.version
    name = f"wheel-{wheel.package}"
    pip_command = f"{sys.executable} -m pip install"
    if version is None:
        if wheel.needs_torch:
            return report_pass(name, "not installed; only algorithms written in torch need it")
        return report_failure(name, "not installed", f"{pip_command} {wheel.package}")
    if is_importable(facts):
        return report_pass(name, version)
    remedy = f"{pip_command} '{wheel.package}<{version.partition('+')[0]}'"
    if facts.code is None:
        finding, remedy = (
            f"{version}: did not start in {_EXERCISE_TIMEOUT_S:g} s",
            f"{pip_command} --force-reinstall {wheel.package}",
        )
    elif facts.code < 0:
        try:
            cause = signal.Signals(-facts.code).name
        except ValueError:
            cause = f"signal {-facts.code}"
        hint = ": it uses instructions that this processor lacks" if cause == "SIGILL" else ""
        finding = f"{version}: crashes with {cause}{hint}"
    else:
        finding = f"{version}: {facts.last_line or f'ends with code {facts.code}'}"
        remedy = f"{pip_command} --force-reinstall {wheel.package}"
    return report_warning(name, finding, remedy) if wheel.needs_torch else report_failure(name, finding, remedy)


def check_wheels(facts: Iterable[WheelFacts]) -> Iterator[Check]:
    """Yield the findings on all exercised libraries."""
    for wheel_facts in facts:
        yield check_wheel(wheel_facts)


_OLDEST_PYTHON = (3, 11)
_NEWEST_PYTHON = (3, 13)
"""Newest Python version tested."""


def check_python(
    version: tuple[int, int], full_version: str, *, has_gil: bool, in_virtual_environment: bool
) -> Iterator[Check]:
    """Yield a finding on the Python version, the interpreter lock and the virtual environment."""
    environment = "in a virtual environment" if in_virtual_environment else "system installation"
    finding = f"Python {full_version}, {environment}"
    if version < _OLDEST_PYTHON:
        yield report_failure(
            "python", f"{finding}: too old", "sudo apt install python3.11 python3.11-venv, then make setup"
        )
    elif version > _NEWEST_PYTHON:
        newest_text = ".".join(map(str, _NEWEST_PYTHON))
        yield report_warning(
            "python",
            f"{finding}: newer than the versions that Onrig is tested with",
            f"use Python 3.11 to {newest_text}",
        )
    elif not has_gil:
        yield report_warning("python", f"{finding}: free-threaded build, not tested", "use an ordinary build of Python")
    else:
        yield report_pass("python", finding)


def examine_python(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about this Python and check them."""
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    in_virtual_environment = sys.prefix != sys.base_prefix
    yield from check_python(
        sys.version_info[:2],
        platform.python_version(),
        has_gil=bool(has_gil),
        in_virtual_environment=in_virtual_environment,
    )


def check_native(library: native.LibraryState, python: str) -> Check:
    """Return the finding on the loaded variant of the C library."""
    if library.library is not None:
        return report_pass("c-library", library.variant)
    reason = f"none: {library.reason}; {native.COST_WITHOUT_LIBRARY}"
    if "ONRIG_NATIVE" in library.reason:
        return report_warning("c-library", reason, "unset ONRIG_NATIVE")
    build_command = f"sudo apt install gcc libc6-dev, then {python} {Path(native.__file__).parent / 'build.py'}"
    return report_warning("c-library", reason, build_command)


def examine_native(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read the facts about the C library and check them."""
    yield check_native(native.library_state(), sys.executable)
