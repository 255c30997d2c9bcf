"""The library's variant for this processor, loaded once per process.

``ONRIG_NATIVE`` selects a variant (such as ``x86-64-v2``), a folder of libraries built elsewhere (its name must contain
a slash), or ``off``.  ``ONRIG_TORCH`` names a torch device (``cpu``, ``cuda``, ``cuda:1``), which then runs the
learner's programs.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterable, Set
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

ABI: Final = 7
"""Version of the functions and arguments used here; must equal the number in ``native.h``."""

_V2: Final = frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
_V3: Final = _V2 | frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"])
_V4: Final = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
VARIANT_CPU_FLAGS: Final = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2}
"""CPU flags that the kernel must report for each variant, best first (x86-64 psABI, *Micro-architecture levels*)."""


COST_WITHOUT_LIBRARY: Final = (
    "Python and numpy are used instead: updates take 5 to 9 times as long, prioritised sampling 3 times as long, "
    "a tick a third longer"
)
"""Cost of running without the library."""


class LibraryState(NamedTuple):
    """The loaded library, or the reason why none is loaded."""

    library: ctypes.CDLL | None
    variant: str
    """``x86-64-v4``, ``aarch64``, ...; ``none`` without a library."""
    reason: str = ""
    """Why no library was loaded; empty if one was."""


def library() -> ctypes.CDLL | None:
    """Return the loaded library, whose calls release the GIL, or None if none is loaded."""
    return library_state().library


_BUILTINS: Final = ("frame_encode", "frame_decode", "network_run")
"""Names of the functions, in the order of ``python.c``."""


def builtin(name: str, bound: bytes | None = None) -> Callable[..., Any] | None:
    """Return a library function as a Python built-in, bound to ``bound``; None if no library is loaded."""
    native_library = library()
    if native_library is None:
        return None
    create_builtin = ctypes.PyDLL(native_library._name).onrig_builtin  # creates a Python object, so it needs the GIL
    create_builtin.restype = ctypes.py_object
    function: Callable[..., Any] = create_builtin(_BUILTINS.index(name), ctypes.py_object(bound))
    return function


def variant() -> str:
    """Return the name of the loaded variant; ``none`` if no library is loaded."""
    return library_state().variant


def torch_device() -> str:
    """Return the device on which torch runs the learner's programs instead of the library; empty if unset."""
    return os.environ.get("ONRIG_TORCH", "")


@cache
def library_state() -> LibraryState:
    """Return the state of the library; the first call loads it."""
    choice = os.environ.get("ONRIG_NATIVE", "")
    if choice == "off":
        return LibraryState(None, "none", "switched off by ONRIG_NATIVE=off")
    folder = Path(choice) if "/" in choice else Path(__file__).parent
    variants = supported_variants(platform.machine(), cpu_flags())
    if choice and "/" not in choice:
        if choice not in variants:
            return LibraryState(
                None, "none", f"ONRIG_NATIVE={choice}: this processor runs {', '.join(variants) or 'no variant'}"
            )
        variants = [choice]
    reason = f"no variant for this processor ({platform.machine()})"
    for name in variants:
        path = folder / f"libonrig-{name}.so"
        if not path.is_file():
            reason = f"not built: no {path.name} in {folder}"
            continue
        try:
            candidate = ctypes.CDLL(str(path))
            abi = candidate.onrig_abi()
        except (OSError, AttributeError) as error:
            reason = f"{path.name} cannot be loaded: {error}"
            continue
        if abi == ABI:
            return LibraryState(candidate, name)
        reason = f"{path.name} was built from other sources (ABI {abi}, not {ABI})"
    return LibraryState(None, "none", reason)


def usable_variants() -> list[str]:
    """Return the built variants that this processor supports, best first."""
    supported = supported_variants(platform.machine(), cpu_flags())
    return [name for name in supported if (Path(__file__).parent / f"libonrig-{name}.so").is_file()]


def supported_variants(machine: str, flags: Set[str]) -> list[str]:
    """Return the variants that a processor supports, best first; empty if its features are unknown."""
    if machine == "aarch64":
        return ["aarch64"]
    return [
        name for name, required_flags in VARIANT_CPU_FLAGS.items() if machine == "x86_64" and required_flags <= flags
    ]


def cpu_flags(lines: Iterable[str] | None = None) -> frozenset[str]:
    """Return the processor's features as reported (and permitted) by the kernel; empty if it reports none."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines() if lines is None else lines:
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()
