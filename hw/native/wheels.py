"""Build and test of the wheels for x86-64 and aarch64 with the C library inside: ``python hw/native/wheels.py``.

Zig's C compiler (``pip install ziglang``) builds both for glibc 2.17, so that they run with any Python 3 on any Linux
with a glibc from 2013 or later.  The wheel for this machine's architecture is tested in a fresh environment, the other
one under QEMU; both tests install Onrig's dependencies from the package index that ``pip`` is configured for.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from onrig.hw.native.build import OLDEST_GLIBC, VARIANTS

ROOT: Final = Path(__file__).resolve().parents[2]
TEST_PACKAGES: Final = ("onnx", "pytest", "pytest-timeout", "hypothesis")
TESTS: Final = (
    "tests/hw/native",
    "tests/hw/test_framing.py",
    "tests/learner/tape",
    "tests/learner/algorithms",
    "tests/learner/samplers",
    "tests/runtime/policy/test_network.py",
    "tests/runtime/memory/order",
)
"""Tests that compare the C library with its Python form; files that need torch are skipped."""
_DEBIAN: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_CORTEX_A72_CPUINFO: Final = "processor\t: 0\nFeatures\t: fp asimd cpuid\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n"
"""Content of /proc/cpuinfo on a Cortex-A72; QEMU passes the host's file through, in which onnxruntime for aarch64 finds
no processor."""


class MissingToolError(Exception):
    """Missing tool; the message says in one line how to install it."""


class StepError(Exception):
    """Failed step of the build or test; the message is one line."""


def compiler(architecture: str) -> str:
    """Return the command of the compiler for an architecture.  Raises MissingToolError."""
    zig = shutil.which("zig")
    if zig is None and (package := importlib.util.find_spec("ziglang")) is not None and package.origin is not None:
        zig = str(Path(package.origin).with_name("zig"))
    if zig is None:
        raise MissingToolError(f"no cross compiler: {sys.executable} -m pip install ziglang")
    return shlex.join([zig, "cc", "-target", f"{architecture}-linux-gnu.{'.'.join(map(str, OLDEST_GLIBC))}"])


def build_wheels(architectures: Sequence[str], out: Path) -> dict[str, Path]:
    """Build a wheel per architecture into ``out``.  Raises MissingToolError or StepError.

    The wheels are built from a source distribution, so that untracked files in the tree cannot get into them.
    """
    out.mkdir(parents=True, exist_ok=True)
    major, minor = OLDEST_GLIBC
    wheels = {}
    with tempfile.TemporaryDirectory() as folder:
        code = f"import setuptools.build_meta as backend; backend.build_sdist({folder!r})"
        run([sys.executable, "-c", code], "the source distribution", quiet=True)
        (source,) = Path(folder).glob("*.tar.gz")
        for architecture in architectures:
            pip = [
                *pip_command(sys.executable),
                "wheel",
                "--no-deps",
                "--no-build-isolation",
                "-w",
                folder,
                str(source),
            ]
            run(pip, f"the wheel for {architecture}", {"CC": compiler(architecture)}, quiet=True)
            candidates = list(Path(folder).glob(f"*-py3-none-manylinux_{major}_{minor}_{architecture}.whl"))
            if not candidates:
                raise StepError(
                    f"no library in the wheel for {architecture}: CC='{compiler(architecture)}' python {BUILD}"
                )
            wheels[architecture] = Path(shutil.copy(candidates[0], out))
    return wheels


BUILD: Final = "hw/native/build.py --out build/native"


def install_natively(wheel: Path, folder: Path) -> Path:
    """Install a wheel for this machine's architecture into a fresh environment and return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run([*pip_command(python), "install", "--quiet", str(wheel), *TEST_PACKAGES], f"the installation of {wheel.name}")
    return python


def install_emulated(architecture: str, wheel: Path, system: Path, folder: Path) -> Path:
    """Install a wheel for an unpacked system's Python; return a command that runs this Python under the emulator."""
    names = [f"qemu-{architecture}-static", f"qemu-{architecture}"]
    emulator = next((path for name in names if (path := shutil.which(name))), None)
    if emulator is None:
        raise MissingToolError(f"no {names[0]}: sudo apt install qemu-user-static")
    if not (system / "usr/bin/python3").exists():
        bootstrap_command = (
            f"mmdebstrap --arch={_DEBIAN[architecture]} --variant=extract --include=python3,libstdc++6 bookworm"
        )
        raise MissingToolError(
            f"no Python for {architecture}: sudo apt install mmdebstrap, then {bootstrap_command} {system}"
        )
    processor = system / "proc/cpuinfo"
    if architecture == "aarch64" and not processor.exists():
        processor.parent.mkdir(exist_ok=True)
        processor.write_text(_CORTEX_A72_CPUINFO)
    # A script, so that processes started by a test also run under the emulator.
    python, site = folder / "python", folder / "site"
    python.write_text(
        f"#!/bin/sh\nexport PYTHONHOME={shlex.quote(str(system / 'usr'))} PYTHONPATH={shlex.quote(str(site))}\n"
        f'exec {shlex.join([emulator, "-L", str(system), "-0", str(python), str(system / "usr/bin/python3")])} "$@"\n'
    )
    python.chmod(0o755)
    code = "import os, sys; print(*sys.version_info[:2], os.confstr('CS_GNU_LIBC_VERSION').rpartition('.')[2])"
    major, minor, glibc = run([str(python), "-c", code], "Python under the emulator", quiet=True).split()
    platforms = [f"manylinux2014_{architecture}"]
    platforms += [f"manylinux_2_{k}_{architecture}" for k in range(OLDEST_GLIBC[1], int(glibc) + 1)]
    target = ["--only-binary=:all:", "--python-version", f"{major}.{minor}", "--target", str(site)]
    target += [argument for name in platforms for argument in ("--platform", name)]
    install_command = [*pip_command(sys.executable), "install", "--quiet", *target, str(wheel), *TEST_PACKAGES]
    run(install_command, f"the installation of {wheel.name}")
    return python


def test_wheel(python: Path, architecture: str, tests: Sequence[str]) -> None:
    """Run the tree's tests against the installed wheel.  Raises StepError."""
    code = (
        "from onrig.hw.native import library_state; s = library_state(); "
        f"assert s.variant in {list(VARIANTS[architecture])}, s.reason"
    )
    run([str(python), "-P", "-c", code], "loading the library from the wheel", quiet=True)
    # The tree's folder `onrig` must not hide the wheel, either here or in processes started by a test.
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    options = ["--import-mode=append", "-p", "no:cacheprovider", "-o", "timeout=0"]
    command = [str(python), "-m", "pytest", *options, *tests]
    if architecture != platform.machine():
        environment["CC"] = compiler(architecture)  # tests compile for the emulator, which has no sanitizers
        command.append("--ignore=tests/learner/tape/test_fuzzing.py")
    run(command, f"the tests of the wheel for {architecture}", environment)


def pip_command(python: str | Path) -> list[str]:
    """Return the command that runs an interpreter's pip."""
    return [str(python), "-m", "pip", "--disable-pip-version-check"]


def run(command: Sequence[str], step: str, environment: Mapping[str, str] | None = None, *, quiet: bool = False) -> str:
    """Run a command in the tree and show its output, or return the output if ``quiet``.  Raises StepError."""
    base_environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    process = subprocess.run(
        command, cwd=ROOT, env={**base_environment, **(environment or {})}, capture_output=quiet, text=True, check=False
    )
    if process.returncode:
        output = (process.stderr or process.stdout or "").strip().splitlines()
        raise StepError(f"{step} failed with code {process.returncode}{': ' + output[-1] if output else ''}")
    return process.stdout or ""


def main(arguments: list[str]) -> int:
    """Build, then test; return 1 if a step fails, 2 if a tool is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER", help="default: dist")
    parser.add_argument("--arch", action="append", choices=VARIANTS, help="only this architecture (repeatable)")
    parser.add_argument("--system", type=Path, metavar="FOLDER", help="unpacked system with Python, for the emulator")
    parser.add_argument("--no-tests", action="store_true", help="only build, without testing")
    parser.add_argument("tests", nargs="*", default=TESTS, help="tests to run (default: those of the C library)")
    args = parser.parse_args(arguments)
    try:
        for architecture, wheel in build_wheels(args.arch or list(VARIANTS), args.out).items():
            print(wheel, flush=True)
            if args.no_tests:
                continue
            with tempfile.TemporaryDirectory() as folder:
                if architecture == platform.machine():
                    python = install_natively(wheel, Path(folder, "environment"))
                else:
                    system = (args.system or ROOT / "build" / f"system-{architecture}").resolve()
                    python = install_emulated(architecture, wheel, system, Path(folder))
                test_wheel(python, architecture, args.tests)
    except (MissingToolError, StepError) as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 2 if isinstance(error, MissingToolError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
