"""Build of the C library: ``python hw/native/build.py [--sanitize] [--out FOLDER]``.

This module uses only the standard library and can be imported by its path, because the installation runs it before
Onrig is installed.  The compiler is ``CC``, or else the first of cc, gcc and clang; its target determines which
variants are built.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent


class Source(NamedTuple):
    """A C file, its macro definitions, and whether the compiler may fuse multiplications and additions."""

    file: str
    defines: tuple[str, ...] = ()
    may_fuse: bool = False


SOURCES: Final = (
    Source("framing.c"),
    Source("order.c"),
    Source("sum_tree.c"),
    Source("minibatch.c"),
    Source("network.c", may_fuse=True),
    Source("python.c"),
    Source("returns.c"),
    Source("tape.c", ("REAL=float", "INTEGER=int32_t"), may_fuse=True),
    Source("tape.c", ("REAL=double", "INTEGER=int64_t"), may_fuse=True),
)
VARIANTS: Final = {
    "x86_64": {f"x86-64-v{level}": (f"-march=x86-64-v{level}",) for level in (2, 3, 4)},
    "aarch64": {"aarch64": ("-mcpu=generic",)},
}
"""Compiler flags of each variant, keyed by the compiler's target architecture."""
OLDEST_GLIBC: Final = (2, 17)
"""Oldest glibc version for which ``pip`` supports wheels for both architectures."""
FLAGS: Final = ("-std=gnu11", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
OPTIMISATION_FLAGS: Final = ("-O3", "-fno-math-errno", "-fno-trapping-math")
"""The compiler must neither reorder sums nor assume finite numbers, which rules out -ffast-math; when linking, that
flag would also set flush-to-zero for the process.  Matrix products need the fused multiply-add (``Source.may_fuse``);
the build determines which expressions use it, so that each variant is reproducible bit for bit.  The other sources give
the same bits as their Python implementations."""
SANITIZER_FLAGS: Final = (
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
)


class BuildError(Exception):
    """Missing compiler, unknown architecture or failed compilation; the message is one line."""


def compiler() -> list[str]:
    """Return the command of the C compiler.  Raises BuildError if none is found."""
    if cc := os.environ.get("CC"):
        command = shlex.split(cc)
        if command and shutil.which(command[0]):
            return command
        raise BuildError(f"no C compiler: CC is '{cc}', which is not on the path")
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C compiler (cc, gcc or clang; or set CC)")


def build(folder: Path = HERE, *, sanitize: bool = False) -> list[Path]:
    """Compile all variants into a folder and return the libraries.  Raises BuildError.

    Each library appears complete or not at all, even to a process that loads it during the build.
    """
    command = compiler()
    macros = _run([*command, "-dM", "-E", "-x", "c", os.devnull]).split()
    target = next((architecture for architecture in VARIANTS if f"__{architecture}__" in macros), None)
    if target is None:
        raise BuildError(f"no variant for the target of {shlex.join(command)} (known: {', '.join(VARIANTS)})")
    folder.mkdir(parents=True, exist_ok=True)
    libraries = []
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
        for variant, machine_flags in VARIANTS[target].items():
            flags = [*FLAGS, *(SANITIZER_FLAGS if sanitize else OPTIMISATION_FLAGS), *_flags_of(machine_flags, command)]
            name = f"libonrig-{variant}.so"
            objects = compile_sources(command, flags, Path(scratch))
            link_arguments = ["-shared", *(() if sanitize else ("-s",)), *objects, "-o", f"{scratch}/{name}", "-lm"]
            _run([*command, *flags, *link_arguments])
            libraries.append(Path(scratch, name).replace(folder / name))
    return libraries


def _flags_of(machine_flags: tuple[str, ...], command: list[str]) -> list[str]:
    """Return the flags of a variant; Zig needs underscores in processor names, because it ends a name at a hyphen."""
    uses_zig = any(Path(argument).name in ("zig", "ziglang") for argument in command)
    parts = [flag.partition("=") for flag in machine_flags]
    return [flag + sign + (name.replace("-", "_") if uses_zig else name) for flag, sign, name in parts]


def platform_tag(libraries: Iterable[Path]) -> str | None:
    """Return the platform tag of a wheel with these libraries, such as ``manylinux_2_17_aarch64``; None without glibc.

    The tag's version is that of the newest glibc function that any of them calls, but at least ``OLDEST_GLIBC``.
    """
    libraries = list(libraries)
    glibc_versions = {
        (int(major), int(minor))
        for library in libraries
        for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library.read_bytes())
    }
    if not glibc_versions:
        return None
    names = {library.name for library in libraries}
    (architecture,) = (a for a, variants in VARIANTS.items() if {f"libonrig-{name}.so" for name in variants} & names)
    major, minor = max(OLDEST_GLIBC, *glibc_versions)
    return f"manylinux_{major}_{minor}_{architecture}"


def compile_sources(
    command: Sequence[str], flags: Sequence[str], folder: Path, sources: Sequence[Source] = SOURCES
) -> list[str]:
    """Compile sources into a folder and return the object files.  Raises BuildError."""
    objects = []
    for number, source in enumerate(sources):
        # A flag, because compilers disagree on the pragmas for contraction.
        contraction = f"-ffp-contract={'fast' if source.may_fuse else 'off'}"
        source_flags = [contraction, *(f"-D{define}" for define in source.defines)]
        objects.append(f"{folder}/{number}.o")
        _run([*command, *flags, *source_flags, "-c", str(HERE / source.file), "-o", objects[-1]])
    return objects


def _run(command: list[str]) -> str:
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from error
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else f"code {process.returncode}")
        raise BuildError(f"{command[0]} failed: {first}")
    return process.stdout.strip()


def main(arguments: list[str]) -> int:
    """Build the libraries and print their names; return 1 if the build fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UndefinedBehaviorSanitizer")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: next to the sources; build/sanitized")
    args = parser.parse_args(arguments)
    folder = args.out or (HERE.parents[1] / "build" / "sanitized" if args.sanitize else HERE)
    try:
        built = build(folder, sanitize=args.sanitize)
    except BuildError as error:
        print(f"C library not built: {error}; Python and numpy are used instead, which is slower", file=sys.stderr)
        return 1
    print("\n".join(map(str, built)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
