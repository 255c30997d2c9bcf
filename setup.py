"""Build of the C library as part of every installation; everything else is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

_spec = importlib.util.spec_from_file_location("onrig_native_build", Path(__file__).parent / "onrig/hw/native/build.py")
assert _spec is not None
assert _spec.loader is not None
native = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = native
_spec.loader.exec_module(native)


class BuildNative(Command):
    """Compile the C library, if there is a compiler: into the wheel, or next to its sources in an editable install."""

    description = "compile the C library"
    user_options = []  # noqa: RUF012
    editable_mode = False

    def initialize_options(self) -> None:
        """Set what setuptools expects of a step of the build."""
        self.build_lib: str | None = None
        self.built: list[Path] = []

    def finalize_options(self) -> None:
        """Take the build's folder."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Compile; without a library Python and numpy do its work."""
        folder = native.HERE if self.editable_mode else Path(str(self.build_lib), "onrig", "hw", "native")
        try:
            self.built = native.build(folder)
        except native.BuildError as error:
            self.warn(f"C library not built: {error}; Python and numpy do its work, slower")

    def get_source_files(self) -> list[str]:
        """Return the files that a source distribution needs."""
        return [f"onrig/hw/native/{path.name}" for path in native.HERE.glob("*.[ch]")]

    def get_outputs(self) -> list[str]:
        """Return what the wheel gets."""
        return [] if self.editable_mode else [str(path) for path in self.built]

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing: no output is a copy of a file."""
        return {}


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3, and with the library in it for one platform."""

    def run(self) -> None:
        """Build the library first: it decides what kind of wheel this is."""
        self.run_command("build_native")
        self.root_is_pure = not self.get_finalized_command("build_native").built
        self.distribution.has_ext_modules = lambda: not self.root_is_pure
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Return interpreter, ABI and platform."""
        tag: tuple[str, str, str] = super().get_tag()
        if self.root_is_pure:
            return tag
        return "py3", "none", native.platform_tag(self.get_finalized_command("build_native").built) or tag[2]


class Build(build):
    """The usual build, and the C library."""

    sub_commands = [*build.sub_commands, ("build_native", None)]  # noqa: RUF012


setup(cmdclass={"build": Build, "build_native": BuildNative, "bdist_wheel": PlatformWheel})
