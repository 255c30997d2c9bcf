"""Names of wheels, arguments of compilers, and the message if a tool is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onrig.hw.native import build

WHEELS = Path(__file__).parents[3] / "hw" / "native" / "wheels.py"
ZIG = """#!/bin/sh
case "$*" in
    *-dM*) echo "#define __{architecture}__ 1" ;;
    *"-o "*) echo "$*" >> {log}; for word; do last=$word; [ "$before" = -o ] && : > "$word"; before=$word; done ;;
esac
"""


def library(folder: Path, variant: str, *versions: str) -> Path:
    path = folder / f"libonrig-{variant}.so"
    path.write_bytes(b"\x7fELF\0" + b"".join(b"%s\0" % version.encode() for version in versions))
    return path


def test_the_platform_of_a_wheel_is_the_newest_glibc_that_a_library_calls(tmp_path: Path) -> None:
    v2 = library(tmp_path, "x86-64-v2", "pow", "GLIBC_2.2.5", "GLIBC_2.29")
    v3 = library(tmp_path, "x86-64-v3", "GLIBC_2.4")
    assert build.platform_tag([v2, v3]) == "manylinux_2_29_x86_64"
    assert build.platform_tag([library(tmp_path, "aarch64", "GLIBC_2.9")]) == "manylinux_2_17_aarch64"


def test_a_library_without_glibc_names_no_platform(tmp_path: Path) -> None:
    assert build.platform_tag([library(tmp_path, "aarch64", "memcpy")]) is None
    assert build.platform_tag([]) is None


@pytest.mark.parametrize(("architecture", "variants"), build.VARIANTS.items())
def test_a_compiler_builds_the_variants_of_its_target(
    architecture: str, variants: dict[str, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zig, log = tmp_path / "zig", tmp_path / "calls"
    zig.write_text(ZIG.format(architecture=architecture, log=log))
    zig.chmod(0o755)
    monkeypatch.setenv("CC", f"{zig} cc -target {architecture}-linux-gnu.2.17")
    made = build.build(tmp_path / "made")
    assert [path.name for path in made] == [f"libonrig-{name}.so" for name in variants]
    assert "-march=x86-64" not in log.read_text()  # Zig would take it for a processor named x86
    monkeypatch.setenv("CC", f"{zig.rename(tmp_path / 'cc')} -target {architecture}-linux-gnu")
    log.unlink()
    build.build(tmp_path / "made")
    for flag in (flag for flags in variants.values() for flag in flags):
        assert flag in log.read_text()


def test_only_sources_without_a_form_in_python_that_has_the_same_bits_may_be_fused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, log = tmp_path / "cc", tmp_path / "calls"
    compiler.write_text(ZIG.format(architecture="aarch64", log=log))
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    build.build(tmp_path / "made")
    compilations = [line for line in log.read_text().splitlines() if " -c " in line]
    assert len(compilations) == len(build.SOURCES)
    fused = {line.split(" -c ")[1].split()[0].rpartition("/")[2] for line in compilations if "contract=fast" in line}
    assert fused == {"tape.c", "network.c"}
    assert all(line.count("-ffp-contract=") == 1 for line in compilations)


def test_a_compiler_for_another_architecture_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "riscv-cc"
    compiler.write_text("#!/bin/sh\necho '#define __riscv 1'\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(build.BuildError, match=r"no variant for the target of .*riscv-cc \(known: x86_64, aarch64\)"):
        build.build(tmp_path / "made")


@pytest.mark.parametrize("present", [False, True])
def test_a_missing_tool_is_reported_in_one_line_with_what_to_install(present: bool, tmp_path: Path) -> None:
    code = (
        "import sys, runpy; sys.argv = ['wheels.py']; from pathlib import Path\n"
        f"names = runpy.run_path({str(WHEELS)!r}); folder = Path({str(tmp_path)!r})\n"
        "missing = names['MissingToolError']\n"
        "other = [a for a in names['VARIANTS'] if a != names['platform'].machine()][0]\n"
        "try:\n"
        "    names['install_emulated'](other, folder / 'x.whl', folder / 'none', folder)\n"
        "except missing as reason:\n"
        "    print(reason)"
    )
    if present:
        for other in build.VARIANTS:
            (tmp_path / f"qemu-{other}-static").write_text("#!/bin/sh\n")
            (tmp_path / f"qemu-{other}-static").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    (said,) = done.stdout.splitlines()
    assert ("sudo apt install mmdebstrap" if present else "sudo apt install qemu-user-static") in said
