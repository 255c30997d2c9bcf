"""Atomic export of a run into a new folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import sync, try_lock
from onrig.runtime.run_state.folder_access import check_folder
from onrig.tools.api.run_data import RunData
from onrig.tools.exporting.source import CONFIG, CannotExport, Progress, Source

Format = Literal["parquet", "csv", "minari", "lerobot"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
PROVENANCE: Final = "provenance.json"
_LIBRARIES: Final[dict[Format, tuple[str, ...]]] = {
    "csv": (),
    "parquet": ("pyarrow",),
    "lerobot": ("pyarrow",),
    "minari": ("minari", "h5py"),
}


class ExportResult(NamedTuple):
    """Result of an export."""

    folder: Path
    counts: dict[str, int]
    """Rows of each table, or episodes and steps of a data set."""
    missing: tuple[str, ...]
    """Missing data of the run, one line each."""
    never_recorded: tuple[str, ...]
    """Data that the run never recorded, one line each."""


def export(run: RunData, format_: Format, out: Path, progress: Progress = lambda records: None) -> ExportResult:
    """Export a run to the new folder ``out``, which appears only when it is complete.

    Raises CannotExport and OSError, in which case no partial export remains.
    """
    missing_library = next((name for name in _LIBRARIES[format_] if find_spec(name) is None), None)
    if missing_library is not None:
        raise CannotExport(f"--format {format_} needs {missing_library}: pip install 'onrig[data]'", ExitCode.PREFLIGHT)
    if out.exists():
        raise CannotExport(f"'{out}' exists already; choose another folder with --out")
    source = Source(run, progress)
    with _partial_folder(out) as folder:
        counts = _write(source, format_, folder, out.name)
        missing = source.missing_data()
        provenance = {**source.provenance, "format": format_, "missing": missing, "absent": source.never_recorded}
        text = msgspec.json.format(msgspec.json.encode(provenance), indent=2) + b"\n"
        (folder / PROVENANCE).write_bytes(text)
        shutil.copyfile(run.folder / CONFIG, folder / CONFIG)
    return ExportResult(out, counts, missing, tuple(source.never_recorded))


def _write(source: Source, format_: Format, folder: Path, name: str) -> dict[str, int]:
    if format_ == "minari":
        from onrig.tools.exporting.minari_format import write_minari

        return write_minari(source, folder, name)
    if format_ == "lerobot":
        from onrig.tools.exporting.lerobot_format import write_lerobot

        return write_lerobot(source, folder)
    from onrig.tools.exporting.table_formats import write_tables

    return write_tables(source, folder, format_)


@contextmanager
def _partial_folder(out: Path) -> Iterator[Path]:
    """Yield a folder next to ``out``, and rename it to ``out`` at the end of the context.

    Any files of a killed export are removed first.
    """
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    folder = out.absolute().parent / f".{out.name}.partial"
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise CannotExport(f"'{folder}' is a link: remove it")
    check_folder(folder)  # its content will be removed
    fd = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(fd):
            raise CannotExport(f"'{out}': another `onrig export` is writing to it")
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        try:
            yield folder
            for path in folder.rglob("*"):
                sync(path)
            folder.rename(out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sync(out.absolute().parent)
    finally:
        os.close(fd)
