"""Choice of the C library's variant, and the message if none can be used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import BuiltinFunctionType

import pytest

from onrig.hw.native import ABI, build, builtin, library
from onrig.hw.native.library import VARIANT_CPU_FLAGS, cpu_flags, supported_variants

HERE = Path(build.__file__).parent
V4 = VARIANT_CPU_FLAGS["x86-64-v4"]


def loaded(**environment: str) -> tuple[str, str]:
    """Variant and reason in a separate process: a process loads the library once."""
    code = "import json; from onrig.hw.native import library_state; print(json.dumps(library_state()[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    variant, reason = json.loads(done.stdout)
    return variant, reason


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of libraries built from this tree."""
    folder = tmp_path_factory.mktemp("libraries")
    sources = [*HERE.glob("*.[ch]"), HERE / "build.py"]
    ready = list(HERE.glob("libonrig-*.so"))
    if ready and min(path.stat().st_mtime for path in ready) > max(path.stat().st_mtime for path in sources):
        for path in ready:  # the installation has already built them from these sources; building takes half a minute
            shutil.copy(path, folder)
        return folder
    try:
        build.build(folder)
    except build.BuildError as error:
        if os.environ.get("CI") or shutil.which("cc"):
            raise
        pytest.skip(str(error))
    return folder


def test_every_c_file_is_compiled() -> None:
    assert {source.file for source in build.SOURCES} == {path.name for path in HERE.glob("*.c")}


def test_both_sides_define_the_same_number() -> None:
    assert f"#define ONRIG_ABI {ABI}\n" in (HERE / "native.h").read_text()


def test_no_option_lets_the_compiler_reorder_sums_or_ignore_nan() -> None:
    flags = {*build.FLAGS, *build.OPTIMISATION_FLAGS}
    assert not flags & {
        "-ffast-math",
        "-Ofast",
        "-fassociative-math",
        "-ffinite-math-only",
        "-funsafe-math-optimizations",
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (V4, ["x86-64-v4", "x86-64-v3", "x86-64-v2"]),
        (V4 - {"avx512vl"}, ["x86-64-v3", "x86-64-v2"]),
        (V4 - {"fma"}, ["x86-64-v2"]),
        (V4 - {"ssse3"}, []),
        (frozenset[str](), []),
    ],
)
def test_a_variant_is_used_only_if_the_kernel_reports_all_of_its_features(
    flags: frozenset[str], expected: list[str]
) -> None:
    assert supported_variants("x86_64", flags) == expected


def test_other_architectures() -> None:
    assert supported_variants("aarch64", frozenset()) == ["aarch64"]
    assert supported_variants("riscv64", V4) == []


def test_flags_are_read_from_the_kernels_page() -> None:
    assert cpu_flags(["processor\t: 0", "flags\t\t: fpu avx2", "flags : other"]) == {"fpu", "avx2"}
    assert cpu_flags(["model name : flags"]) == frozenset()


def test_the_build_is_loaded(built: Path) -> None:
    variant, reason = loaded(ONRIG_NATIVE=f"{built}/")
    assert reason == ""
    assert (built / f"libonrig-{variant}.so").is_file()
    assert not list(built.glob(".build-*"))


def test_the_library_can_be_switched_off() -> None:
    assert loaded(ONRIG_NATIVE="off") == ("none", "switched off by ONRIG_NATIVE=off")


def test_a_variant_that_the_processor_does_not_support_is_not_loaded() -> None:
    assert loaded(ONRIG_NATIVE="x86-64-v9")[0] == "none"


@pytest.mark.parametrize(
    ("code", "reason"), [("int onrig_abi(void) { return 0; }", "other sources (ABI 0, not"), ("int x;", "onrig_abi")]
)
def test_a_library_built_from_other_sources_is_not_used(built: Path, tmp_path: Path, code: str, reason: str) -> None:
    (tmp_path / "old.c").write_text(code)
    for path in built.glob("*.so"):
        command = [*build.compiler(), "-shared", "-fPIC", "old.c", "-o", path.name]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    variant, said = loaded(ONRIG_NATIVE=f"{tmp_path}/")
    assert variant == "none"
    assert reason in said


def test_a_damaged_library_is_not_used(built: Path, tmp_path: Path) -> None:
    for path in built.glob("*.so"):
        (tmp_path / path.name).write_bytes(b"not a library")
    variant, said = loaded(ONRIG_NATIVE=f"{tmp_path}/")
    assert variant == "none"
    assert "cannot be loaded" in said


def test_a_missing_compiler_and_a_failed_compilation_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(build.BuildError, match="no C compiler: CC is"):
        build.build(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build.BuildError, match="false failed: code 1"):
        build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(library() is None, reason="the library is not built")
def test_short_functions_are_builtins_that_a_cold_cache_does_not_slow_down() -> None:
    encode, decode = builtin("frame_encode"), builtin("frame_decode")
    assert isinstance(encode, BuiltinFunctionType)
    assert isinstance(decode, BuiltinFunctionType)
    assert decode(encode(b"\x11\x00\x22")[1:-1]) == b"\x11\x00\x22"
    assert encode(b"") == encode(bytes(250)) == encode(bytes(100_000)) == b""
    with pytest.raises(TypeError, match="bytes"):
        encode(1)


@pytest.mark.skipif(library() is None, reason="the library is not built")
def test_a_network_of_another_layout_is_not_run() -> None:
    run = builtin("network_run", b"short")
    assert run is not None
    assert run() == -1
